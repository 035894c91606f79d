#include "memory/staging.hpp"

#include "base/pages.hpp"

#include <new>
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

// Makes the buffers; false, with nothing made, if there is no memory for them.
bool StagingPool::fill() {
    try {
        free_.reserve(kStagingBuffers);
        const std::shared_ptr<std::byte> base =
            std::static_pointer_cast<std::byte>(map_private(kStagingBytes * kStagingBuffers, PROT_READ | PROT_WRITE));
        if (!base) {
            return false;
        }
        try {
            registration_ = std::make_unique<HostRegistration>(
                accelerators_.in_use(), base.get(), kStagingBytes * kStagingBuffers, accel::HostPages::writable, base);
        } catch (const NativeError&) {
            registration_.reset(); // copies to unregistered memory are correct, only slower
        }
        for (size_t i = kStagingBuffers; i-- > 0;) {
            free_.push_back(base.get() + i * kStagingBytes);
        }
        base_ = base;
    } catch (const std::bad_alloc&) {
        return false;
    }
    return true;
}

StagingBuffer StagingPool::try_acquire(Outcome& why) {
    const std::lock_guard lock(lock_);
    if (base_ == nullptr && !fill()) {
        why = kLocalNoStaging;
        return {};
    }
    if (free_.empty()) {
        return {};
    }
    std::byte* data = free_.back();
    free_.pop_back();
    return {shared_from_this(), data};
}

void Staging::prepare(int device) {
    for (const Direction direction : {Direction::outbound, Direction::inbound}) {
        Outcome untold; // a lost device, or a lack of memory, is reported when it is used
        (void)stream(device, direction, untold);
        [[maybe_unused]] const auto buffer = try_acquire(direction, untold);
    }
}

void StagingPool::give_back(std::byte* data) {
    const std::lock_guard lock(lock_);
    free_.push_back(data);
}

} // namespace zerohop
