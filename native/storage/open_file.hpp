// A file that is open for transfers: through the page cache, and past it where the file system allows.
#pragma once

#include "base/descriptor.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace zerohop::storage {

// When transfers go past the page cache (O_DIRECT).
enum class Direct : uint8_t {
    never,
    automatic, // a read of bytes that the cache lacks, and a large write
    always,    // whatever is aligned
    required,  // everything: what cannot go past the cache fails
};

// Holds the powers of two that a transfer past the cache must keep to: its offset in the file and its length are
// multiples of `offset`, and its address in memory is one of `memory`.
struct Alignment {
    uint32_t memory = 4096;
    uint32_t offset = 4096;
};

// Names the reason why a range cannot go past the page cache.
enum class Obstacle : uint8_t {
    none,
    file,   // its file system has no such way, or has refused it
    device, // the memory is a device's
    offset,
    length,
    memory,
    end, // a read goes behind the end of the file
};

// Counts the bytes that went past the page cache, and through it. Any thread.
class Moved {
public:
    void count(bool past_cache, uint64_t nbytes) {
        (past_cache ? past_ : through_).fetch_add(nbytes, std::memory_order_relaxed);
    }
    [[nodiscard]] std::pair<uint64_t, uint64_t> past_and_through() const {
        return {past_.load(std::memory_order_relaxed), through_.load(std::memory_order_relaxed)};
    }

private:
    std::atomic<uint64_t> past_{0};
    std::atomic<uint64_t> through_{0};
};

class OpenFile {
public:
    // `direct_fd`: the same file, opened with O_DIRECT; -1: that cannot be. Takes both descriptors.
    OpenFile(int fd, int direct_fd, Alignment alignment, Direct direct)
        : cached_(fd), direct_(direct_fd), alignment_(alignment),
          mode_(direct_fd < 0 && direct != Direct::required ? Direct::never : direct) {}

    // The way in which the system reads or writes a range.
    struct Way {
        int fd = -1;
        bool past_cache = false;
    };
    // Remembers a file's length, so that the system is asked once for many ranges that are begun together.
    struct Length {
        const OpenFile* file = nullptr;
        uint64_t nbytes = 0;
    };
    [[nodiscard]] Way way(bool write, uint64_t offset, uint64_t nbytes, const std::byte* data, Length& length) const;
    // Returns what keeps a range from going past the cache, whether or not this file's mode would have it do so.
    [[nodiscard]] Obstacle obstacle(bool write, uint64_t offset, uint64_t nbytes, const std::byte* data,
                                    Length& length) const;
    [[nodiscard]] bool is_direct_required() const { return mode_ == Direct::required; }
    // Goes through the cache from now on: the file system has refused the other way.
    void refuse_direct() { refused_.store(true, std::memory_order_relaxed); }
    [[nodiscard]] int fd() const { return cached_.get(); }
    // Returns the bytes that were moved past the cache, and through it.
    [[nodiscard]] std::pair<uint64_t, uint64_t> moved() const { return moved_.past_and_through(); }
    void count(bool past_cache, uint64_t nbytes) { moved_.count(past_cache, nbytes); }

private:
    [[nodiscard]] Obstacle misfit(uint64_t offset, uint64_t nbytes, const std::byte* data) const;
    [[nodiscard]] bool cached(uint64_t offset, uint64_t nbytes) const;
    [[nodiscard]] bool ends_before(uint64_t end, Length& length) const;

    const Descriptor cached_;
    const Descriptor direct_;
    const Alignment alignment_;
    const Direct mode_;
    std::atomic<bool> refused_{false};
    Moved moved_;
};

} // namespace zerohop::storage
