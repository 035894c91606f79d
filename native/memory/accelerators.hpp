// What one Context has of accelerators: the drivers, and their devices numbered through.
#pragma once

#include "accel/driver.hpp"

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace zerohop {

// Host memory that devices copy to and from by themselves, for as long as this lives.
class HostRegistration {
public:
    // With each of the drivers. `pages`, where given, stays alive until they have let go of it, which may be after
    // this. Throws NativeError, with nothing registered.
    HostRegistration(const std::vector<std::shared_ptr<accel::Driver>>& drivers, void* address, size_t nbytes,
                     bool writable = true, std::shared_ptr<void> pages = nullptr);
    ~HostRegistration();
    HostRegistration(const HostRegistration&) = delete;
    HostRegistration& operator=(const HostRegistration&) = delete;

private:
    void give_back();
    std::vector<std::shared_ptr<accel::Driver>> drivers_;
    void* const address_;
    const std::shared_ptr<void> pages_;
};

class Accelerators {
public:
    explicit Accelerators(std::vector<std::shared_ptr<accel::Driver>> drivers) : drivers_(std::move(drivers)) {}

    enum class Direction : uint8_t { outbound, inbound };
    // The first call opens the drivers, which takes some hundred milliseconds where there are GPUs.
    const std::vector<std::shared_ptr<accel::Device>>& devices();
    [[nodiscard]] const std::vector<std::shared_ptr<accel::Driver>>& drivers() const { return drivers_; }
    // Those that have devices.
    [[nodiscard]] std::vector<std::shared_ptr<accel::Driver>> in_use();
    // Of a device by our number: its driver, and the driver's number for it.
    [[nodiscard]] const std::pair<std::shared_ptr<accel::Driver>, int>& place(int device);
    // As the driver that knows the address says; `device` is our number, and no two drivers give the same id.
    [[nodiscard]] accel::Description describe(uint64_t address);
    // The id alone; 0 where no driver knows the address.
    [[nodiscard]] uint64_t allocation_id(uint64_t address);
    // Of all that a range of device memory lies in, which may be several allocations that follow one another: their
    // ids make one. Unknown where not all of it is allocated on one device.
    [[nodiscard]] accel::Description describe(uint64_t address, size_t nbytes);
    // How a NIC may take device memory, best first; nothing where no driver knows it.
    [[nodiscard]] std::vector<accel::Registrable> registrable(uint64_t address, size_t nbytes);
    // A NIC may write to memory of the device from now on.
    void expect_inbound(int device);
    // To be called when NICs have told of something, and before anybody else is: flushes the devices that need it.
    void flush_inbound() {
        if (flushed_.load(std::memory_order_acquire) != 0) [[unlikely]] {
            flush_devices();
        }
    }
    // Null, and why: the device is lost, or out of memory.
    [[nodiscard]] accel::Stream* stream(int device, Direction direction, Outcome& why);
    // Ends all copies, whatever that takes, and starts no more.
    void stop();

private:
    void open();
    void flush_devices();

    const std::vector<std::shared_ptr<accel::Driver>> drivers_;
    std::once_flag opened_;
    std::vector<std::shared_ptr<accel::Device>> devices_;
    std::vector<std::pair<std::shared_ptr<accel::Driver>, int>> places_; // by device
    std::atomic<uint64_t> flushed_{0}; // a bit for each device that NICs write to and that has to be flushed
    std::mutex mutex_;
    std::map<std::pair<int, Direction>, std::unique_ptr<accel::Stream>> streams_;
    bool stopped_ = false;
};

} // namespace zerohop
