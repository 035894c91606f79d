// Holds the host buffers between files and devices: a fixed number of bytes, taken when the first is needed.
#pragma once

#include "memory/accelerators.hpp"
#include "memory/region.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace zerohop::storage {

// A disk takes a read of 1 MiB into huge pages as one request of few parts, which can double its rate. Gathering the
// pages of more than this would take seconds.
inline constexpr uint64_t kGatheredBytes = 1ULL << 30;

// Not thread-safe: the queue's lock covers it.
class StagingBlocks {
public:
    StagingBlocks(Accelerators& accelerators, uint64_t nbytes, uint64_t block_bytes);

    // Holds one buffer, and gives it back when it is dropped.
    class Block {
    public:
        Block() = default;
        Block(Block&& other) noexcept : home_(std::exchange(other.home_, nullptr)), data_(other.data_) {}
        Block& operator=(Block&& other) noexcept {
            std::swap(home_, other.home_);
            std::swap(data_, other.data_);
            return *this;
        }
        ~Block() { reset(); }
        void reset() {
            if (home_ != nullptr) {
                std::exchange(home_, nullptr)->free_.push_back(data_);
            }
        }
        [[nodiscard]] std::byte* data() const { return data_; }
        explicit operator bool() const { return home_ != nullptr; }

    private:
        friend class StagingBlocks;
        Block(StagingBlocks* home, std::byte* data) : home_(home), data_(data) {}
        StagingBlocks* home_ = nullptr;
        std::byte* data_ = nullptr;
    };

    // Returns an empty block if all are in use; also, with the reason in `why`, if the system has no memory for them.
    [[nodiscard]] Block try_acquire(Outcome& why);
    [[nodiscard]] uint64_t nbytes() const { return count_ * block_bytes_; }

private:
    Accelerators& accelerators_;
    const uint64_t block_bytes_;
    const size_t count_;
    std::shared_ptr<Region> region_;
    std::vector<std::byte*> free_;
};

} // namespace zerohop::storage
