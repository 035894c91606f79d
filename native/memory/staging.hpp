// Holds the host buffers that device memory passes through if no fabric reaches it, and the streams that copy to and
// from them.
#pragma once

#include "base/sync.hpp"
#include "memory/accelerators.hpp"
#include "memory/copy.hpp"

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

namespace zerohop {

inline constexpr size_t kStagingBytes = kSliceBytes;
inline constexpr size_t kStagingBuffers = 8; // of each direction of a lane

class StagingPool;

// Holds one buffer, and returns it to the pool when dropped. It keeps the pool alive.
class StagingBuffer {
public:
    StagingBuffer() = default;
    StagingBuffer(std::shared_ptr<StagingPool> pool, std::byte* data) : pool_(std::move(pool)), data_(data) {}
    StagingBuffer(StagingBuffer&& other) noexcept;
    StagingBuffer& operator=(StagingBuffer&& other) noexcept;
    ~StagingBuffer();

    std::byte* data() const { return data_; }
    explicit operator bool() const { return data_ != nullptr; }

private:
    std::shared_ptr<StagingPool> pool_;
    std::byte* data_ = nullptr;
};

class StagingPool : public std::enable_shared_from_this<StagingPool> {
public:
    explicit StagingPool(Accelerators& accelerators) : accelerators_(accelerators) {}

    // Takes a free buffer; empty if all are in use, and the caller tries again later. The memory is mapped on first
    // use; empty, and `why`, if the system has none.
    [[nodiscard]] StagingBuffer try_acquire(Outcome& why);
    [[nodiscard]] bool fill();

private:
    friend class StagingBuffer;
    void give_back(std::byte* data);

    Accelerators& accelerators_; // used on first use only
    SpinLock lock_;
    std::shared_ptr<std::byte> base_;
    std::unique_ptr<HostRegistration> registration_; // null: unregistered memory copies correctly, only slower
    std::vector<std::byte*> free_;
};

// Moves the bytes of one lane to and from device memory. Each lane has its own buffers, so that a peer that has stopped
// holds none that another peer's lane needs. Each direction has its own, too, because inbound data must never wait for
// outbound data to leave: two peers could wait for each other.
class Staging {
public:
    using Direction = Accelerators::Direction;
    // `number`: which of the device's streams copy.
    explicit Staging(Accelerators& accelerators, unsigned number = 0)
        : accelerators_(accelerators), number_(number), outbound_(std::make_shared<StagingPool>(accelerators)),
          inbound_(std::make_shared<StagingPool>(accelerators)) {}

    // Makes the buffers and streams now that would be made on first use otherwise.
    void prepare(int device);
    // Returns the stream; null, and `why`, if there is none.
    [[nodiscard]] accel::Stream* stream(int device, Direction direction, Outcome& why) {
        return accelerators_.stream(device, direction, number_, why);
    }
    [[nodiscard]] StagingBuffer try_acquire(Direction direction, Outcome& why) {
        return (direction == Direction::outbound ? outbound_ : inbound_)->try_acquire(why);
    }

private:
    Accelerators& accelerators_;
    const unsigned number_;
    std::shared_ptr<StagingPool> outbound_;
    std::shared_ptr<StagingPool> inbound_;
};

} // namespace zerohop
