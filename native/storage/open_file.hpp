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
};

class OpenFile {
public:
    // `direct_fd`: the same file, opened with O_DIRECT; -1: that cannot be. `alignment`: of its offsets, lengths and
    // addresses. Takes both descriptors.
    OpenFile(int fd, int direct_fd, uint32_t alignment, Direct direct)
        : cached_(fd), direct_(direct_fd), alignment_(alignment), mode_(direct_fd < 0 ? Direct::never : direct) {}

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
    // Goes through the cache from now on: the file system has refused the other way.
    void refuse_direct() { refused_.store(true, std::memory_order_relaxed); }
    [[nodiscard]] int fd() const { return cached_.get(); }
    // Returns the bytes that were moved past the cache, and through it.
    [[nodiscard]] std::pair<uint64_t, uint64_t> moved() const {
        return {past_.load(std::memory_order_relaxed), through_.load(std::memory_order_relaxed)};
    }
    void count(bool past_cache, uint64_t nbytes) {
        (past_cache ? past_ : through_).fetch_add(nbytes, std::memory_order_relaxed);
    }

private:
    [[nodiscard]] bool cached(uint64_t offset, uint64_t nbytes) const;
    [[nodiscard]] bool ends_before(uint64_t end, Length& length) const;

    const Descriptor cached_;
    const Descriptor direct_;
    const uint32_t alignment_;
    const Direct mode_;
    std::atomic<bool> refused_{false};
    std::atomic<uint64_t> past_{0};
    std::atomic<uint64_t> through_{0};
};

} // namespace zerohop::storage
