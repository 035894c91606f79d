// Registers host memory that GPUs copy to and from by themselves. A driver registers a page once per process, so all
// Contexts share the registrations.
#pragma once

#include "accel/gpu/gpu_memory.hpp"

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

namespace zerohop::accel::gpu {

class HostMemory {
public:
    // Returns the process's instance for this driver.
    [[nodiscard]] static HostMemory& of(const GpuApi& api);

    // Adds a user of a range. Memory that the user program has pinned needs nothing. Returns no_memory if the host
    // cannot pin so much; host_registered if it overlaps a range without lying in it, or one whose unregistering takes
    // more than a second.
    Outcome add(const Devices& devices, void* address, size_t nbytes, HostPages kind);
    // Removes a user; call it once for each add(). After the last one IdleCalls unregisters the range, unless add() has
    // taken it again, and drops `pages`.
    Outcome remove(std::shared_ptr<DeviceState> any, void* address, std::shared_ptr<void> pages);

private:
    struct Range {
        size_t nbytes = 0;
        size_t users = 0;
        bool unregistering = false; // the driver is unregistering it
    };
    using Ranges = std::map<uint64_t, Range>;
    void unregister(DeviceState& any, uint64_t first);
    [[nodiscard]] Ranges::iterator overlapping(uint64_t start, size_t nbytes);

    std::mutex mutex_;
    std::condition_variable unregistered_;
    Ranges ranges_; // by start address
    // address given to add() -> start of its range; 0: the user program's
    std::multimap<uint64_t, uint64_t> registered_;
};

} // namespace zerohop::accel::gpu
