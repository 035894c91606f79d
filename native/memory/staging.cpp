#include "memory/staging.hpp"

#include <sys/mman.h>
#include <utility>

namespace zerohop {

StagingBuffer::StagingBuffer(StagingBuffer&& other) noexcept
    : pool_(std::move(other.pool_)), data_(std::exchange(other.data_, nullptr)) {}

StagingBuffer& StagingBuffer::operator=(StagingBuffer&& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(data_, other.data_);
    return *this;
}

StagingBuffer::~StagingBuffer() {
    if (data_ != nullptr) {
        pool_->give_back(data_);
    }
}

StagingPool::~StagingPool() {
    if (base_ == nullptr) {
        return;
    }
    if (registered_) {
        [[maybe_unused]] const Outcome outcome = driver_->unregister_host(base_);
    }
    munmap(base_, kStagingBytes * kStagingBuffers);
}

StagingBuffer StagingPool::try_acquire() {
    const std::lock_guard lock(lock_);
    if (base_ == nullptr) {
        void* base =
            mmap(nullptr, kStagingBytes * kStagingBuffers, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (base == MAP_FAILED) {
            return {};
        }
        base_ = static_cast<std::byte*>(base);
        // Unregistered memory still copies correctly, only slower.
        registered_ = driver_->register_host(base_, kStagingBytes * kStagingBuffers).ok();
        for (size_t i = kStagingBuffers; i-- > 0;) {
            free_.push_back(base_ + i * kStagingBytes);
        }
    }
    if (free_.empty()) {
        return {};
    }
    std::byte* data = free_.back();
    free_.pop_back();
    return {shared_from_this(), data};
}

void StagingPool::give_back(std::byte* data) {
    const std::lock_guard lock(lock_);
    free_.push_back(data);
}

Accelerators::Accelerators(std::shared_ptr<accel::Driver> driver)
    : driver_(std::move(driver)), devices_(driver_->devices()), streams_(devices_.size() * 2) {}

accel::Stream* Accelerators::stream(int device, Direction direction) {
    const std::lock_guard lock(mutex_);
    auto& stream = streams_[static_cast<size_t>(device) * 2 + (direction == Direction::inbound ? 1 : 0)];
    if (!stream && !stopped_) {
        stream = devices_[static_cast<size_t>(device)]->stream();
    }
    return stream.get();
}

void Accelerators::stop() {
    std::vector<std::unique_ptr<accel::Stream>> streams(streams_.size());
    {
        const std::lock_guard lock(mutex_);
        stopped_ = true;
        streams.swap(streams_);
    }
}

} // namespace zerohop
