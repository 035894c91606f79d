// Holds the accelerator drivers of one Context, and numbers their devices through.
#pragma once

#include "accel/driver.hpp"
#include "base/once.hpp"

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>
#include <utility>
#include <vector>

namespace zerohop {

// Registers host memory with drivers, so that devices copy to and from it by themselves, for as long as this object
// lives.
class HostRegistration {
public:
    // Registers with each of the drivers. `pages`, if given, stays alive until the drivers have released it, which may
    // be after this object's end. Throws NativeError, with nothing registered.
    HostRegistration(const std::vector<std::shared_ptr<accel::Driver>>& drivers, void* address, size_t nbytes,
                     accel::HostPages kind = accel::HostPages::writable, std::shared_ptr<void> pages = nullptr);
    ~HostRegistration() { unregister(); }
    HostRegistration(const HostRegistration&) = delete;
    HostRegistration& operator=(const HostRegistration&) = delete;

private:
    void unregister();
    std::vector<std::shared_ptr<accel::Driver>> drivers_;
    void* const address_;
    const std::shared_ptr<void> pages_;
};

class Accelerators {
public:
    explicit Accelerators(std::vector<std::shared_ptr<accel::Driver>> drivers) : drivers_(std::move(drivers)) {}

    enum class Direction : uint8_t { outbound, inbound };
    // Returns all devices. The first call opens the drivers, which takes some hundred milliseconds if there are GPUs.
    const std::vector<std::shared_ptr<accel::Device>>& devices();
    [[nodiscard]] const std::vector<std::shared_ptr<accel::Driver>>& drivers() const { return drivers_; }
    // Returns the drivers that have devices.
    [[nodiscard]] std::vector<std::shared_ptr<accel::Driver>> in_use();
    // Returns, for a device by our number, its driver and the driver's number for it.
    [[nodiscard]] const std::pair<std::shared_ptr<accel::Driver>, int>& place(int device);
    // Describes the address as the driver that knows it does, but `device` is our number, and no two drivers give the
    // same id.
    [[nodiscard]] accel::Description describe(uint64_t address);
    // Returns the allocation id alone; 0 if no driver knows the address.
    [[nodiscard]] uint64_t allocation_id(uint64_t address);
    // Describes all that a range of device memory lies in. That may be several allocations that follow one another;
    // their ids are hashed into one. Returns `unknown` if not all of the range is allocated on one device.
    [[nodiscard]] accel::Description describe(uint64_t address, size_t nbytes);
    // Returns the ways in which a NIC may register device memory, best first; empty if no driver knows the address.
    [[nodiscard]] std::vector<accel::Registrable> registrable(uint64_t address, size_t nbytes);
    // Notes that a NIC may write to the device's memory from now on.
    void expect_inbound(int device);
    // Flushes the devices that need it. Call it when NICs have reported something, before passing it on to anybody.
    void flush_inbound() {
        if (flushed_.load(std::memory_order_acquire) != 0) [[unlikely]] {
            flush_devices();
        }
    }
    // Returns the number of a stream for a link that need keep no order with others: they take turns over a few, none
    // of which is 0.
    [[nodiscard]] unsigned spread() { return 1 + next_.fetch_add(1, std::memory_order_relaxed) % kStreams; }
    // Returns the device's stream of this number for this direction, made on first use; null, and `why`, if the device
    // is lost, out of memory, or stopped.
    [[nodiscard]] accel::Stream* stream(int device, Direction direction, unsigned number, Outcome& why);
    // Ends all copies, however long that takes, and starts no more.
    void stop();

private:
    // A copy through a host buffer is short, and its driver takes as long to begin it: these overlap.
    static constexpr unsigned kStreams = 4;
    using StreamKey = std::tuple<int, Direction, unsigned>;
    void open();
    void flush_devices();

    const std::vector<std::shared_ptr<accel::Driver>> drivers_;
    Once opened_;
    std::vector<std::shared_ptr<accel::Device>> devices_;
    std::vector<std::pair<std::shared_ptr<accel::Driver>, int>> places_; // indexed by our device number
    std::atomic<uint64_t> flushed_{0}; // one bit per device that NICs write to and that must be flushed
    std::mutex mutex_;
    std::map<StreamKey, std::unique_ptr<accel::Stream>> streams_;
    std::atomic<unsigned> next_{0};
    bool stopped_ = false;
};

} // namespace zerohop
