// A file that is open for transfers: through the page cache, and past it where the file system allows.
#pragma once

#include "base/descriptor.hpp"
#include "base/once.hpp"
#include "storage/gpudirect.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
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
    device, // the memory is a device's, and the file cannot be reached from there
    offset,
    length,
    memory,
    end, // a read goes behind the end of the file
};

// Names the ways of bytes. The first two lead through host memory, also to and from a device's.
enum class Passage : uint8_t { through_cache, past_cache, gpudirect };

// Counts the bytes that went each way. Any thread.
class Moved {
public:
    void count(Passage way, uint64_t nbytes) {
        (way == Passage::gpudirect    ? gpudirect_
         : way == Passage::past_cache ? past_
                                      : through_)
            .fetch_add(nbytes, std::memory_order_relaxed);
    }
    [[nodiscard]] uint64_t by_gpudirect() const { return gpudirect_.load(std::memory_order_relaxed); }
    [[nodiscard]] std::pair<uint64_t, uint64_t> past_and_through() const {
        return {past_.load(std::memory_order_relaxed), through_.load(std::memory_order_relaxed)};
    }

private:
    std::atomic<uint64_t> past_{0};
    std::atomic<uint64_t> through_{0};
    std::atomic<uint64_t> gpudirect_{0};
};

class OpenFile {
public:
    // `direct_fd`: the same file, opened with O_DIRECT; -1: that cannot be. Takes both descriptors. cuFile is not asked
    // for the file if there is a reason, `no_gpudirect`. `gpu_required`: bytes of GPUs' memory must not pass through
    // host memory, whatever the mode says of others.
    OpenFile(int fd, int direct_fd, Alignment alignment, Direct direct, std::string no_gpudirect = "",
             bool gpu_required = false)
        : cached_(fd), direct_(direct_fd), alignment_(alignment),
          mode_(direct_fd < 0 && direct != Direct::required ? Direct::never : direct),
          gpu_required_(gpu_required || direct == Direct::required), no_gpudirect_(std::move(no_gpudirect)) {}

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
    // Has cuFile take the file, the first time. Returns why bytes to and from GPUs pass through host memory; nothing,
    // if they need not.
    [[nodiscard]] std::string why_no_gpudirect(CuFile& library);
    // Returns the reason as it is known by now; nothing, if cuFile was not asked or has the file.
    [[nodiscard]] std::string known_no_gpudirect() const;
    // Returns what moves a range between the file and a GPU's memory without host memory; null, if nothing does.
    [[nodiscard]] const Carrier* carrier(bool write, uint64_t offset, uint64_t nbytes, uint64_t address,
                                         Length& length) const;
    // Returns what keeps a range from going that way, whether or not this file's mode would have it do so.
    [[nodiscard]] Obstacle gpu_obstacle(bool write, uint64_t offset, uint64_t nbytes, uint64_t address,
                                        Length& length) const;
    // Asks cuFile for no more of this file: it has refused a transfer.
    void refuse_gpudirect(std::string why);
    // Has the system know the descriptors by numbers, in the way that first asks; null for others, and where it does
    // not.
    [[nodiscard]] const FixedFile* fixed_in(FileIo& io);
    [[nodiscard]] bool is_gpudirect_required() const { return gpu_required_; }
    [[nodiscard]] bool is_direct_required() const { return mode_ == Direct::required; }
    // Goes through the cache from now on: the file system has refused the other way.
    void refuse_direct() { refused_.store(true, std::memory_order_relaxed); }
    [[nodiscard]] int fd() const { return cached_.get(); }
    // Returns the bytes that were moved past the cache, and through it.
    [[nodiscard]] std::pair<uint64_t, uint64_t> moved() const { return moved_.past_and_through(); }
    void count(Passage way, uint64_t nbytes) { moved_.count(way, nbytes); }

private:
    [[nodiscard]] Way way_in(Direct mode, bool write, uint64_t offset, uint64_t nbytes, const std::byte* data,
                             Length& length) const;
    [[nodiscard]] Obstacle misfit(uint64_t offset, uint64_t nbytes, const std::byte* data) const;
    [[nodiscard]] bool cached(uint64_t offset, uint64_t nbytes) const;
    [[nodiscard]] bool ends_before(uint64_t end, Length& length) const;

    const Descriptor cached_;
    const Descriptor direct_;
    const Alignment alignment_;
    const Direct mode_;
    const bool gpu_required_;
    std::atomic<bool> refused_{false};
    Moved moved_;
    Once asked_;
    uint64_t home_ = 0; // of the numbers
    std::unique_ptr<const FixedFile> fixed_;
    mutable std::mutex gpu_mutex_;
    std::string no_gpudirect_;
    std::unique_ptr<const GpuFile> gpu_file_;  // once there, it stays
    std::atomic<const GpuFile*> gpu_{nullptr}; // null, too, once cuFile has refused a transfer
};

} // namespace zerohop::storage
