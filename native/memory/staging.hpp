// Host buffers that device memory passes through where no fabric reaches it, and the streams that fill and drain them.
#pragma once

#include "accel/driver.hpp"
#include "engine/sync.hpp"
#include "memory/copy.hpp"

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

namespace zerohop {

inline constexpr size_t kStagingBytes = kSliceBytes;
inline constexpr size_t kStagingBuffers = 8;

class StagingPool;

// One buffer, back in its pool when dropped. The pool outlives it by shared ownership.
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
    explicit StagingPool(std::shared_ptr<accel::Driver> driver) : driver_(std::move(driver)) {}
    ~StagingPool();

    // Empty when all buffers are in use: the caller comes back later. The memory is mapped on first use.
    [[nodiscard]] StagingBuffer try_acquire();

private:
    friend class StagingBuffer;
    void give_back(std::byte* data);

    std::shared_ptr<accel::Driver> driver_;
    SpinLock lock_;
    std::byte* base_ = nullptr;
    bool registered_ = false;
    std::vector<std::byte*> free_;
};

// What one Context has of accelerators: its devices, and for each of them a stream per direction.
class Accelerators {
public:
    explicit Accelerators(std::shared_ptr<accel::Driver> driver);

    enum class Direction : uint8_t { outbound, inbound };
    const std::vector<std::shared_ptr<accel::Device>>& devices() const { return devices_; }
    accel::Driver& driver() const { return *driver_; }
    const std::shared_ptr<accel::Driver>& shared_driver() const { return driver_; }
    // Null where the device is lost.
    [[nodiscard]] accel::Stream* stream(int device, Direction direction);
    // Ends all copies, whatever that takes, and starts no more.
    void stop();

private:
    std::shared_ptr<accel::Driver> driver_;
    std::vector<std::shared_ptr<accel::Device>> devices_;
    std::mutex mutex_;
    std::vector<std::unique_ptr<accel::Stream>> streams_; // device × direction
    bool stopped_ = false;
};

// One lane's way to and from device memory. Buffers are of the lane, not of the Context, so that a peer that has
// stopped keeps none that another peer's lane waits for; and of one direction, because inbound data must never wait
// for outbound data to leave: two peers could wait for each other.
class Staging {
public:
    using Direction = Accelerators::Direction;
    explicit Staging(Accelerators& accelerators)
        : accelerators_(accelerators), outbound_(std::make_shared<StagingPool>(accelerators.shared_driver())),
          inbound_(std::make_shared<StagingPool>(accelerators.shared_driver())) {}

    [[nodiscard]] accel::Stream* stream(int device, Direction direction) {
        return accelerators_.stream(device, direction);
    }
    [[nodiscard]] StagingBuffer try_acquire(Direction direction) {
        return (direction == Direction::outbound ? outbound_ : inbound_)->try_acquire();
    }

private:
    Accelerators& accelerators_;
    std::shared_ptr<StagingPool> outbound_;
    std::shared_ptr<StagingPool> inbound_;
};

} // namespace zerohop
