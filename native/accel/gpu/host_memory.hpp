// Host memory that GPUs copy to and from by themselves. A driver takes a page once per process, whoever asks for it:
// so all Contexts share what is registered.
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
    // That of the process for this driver.
    [[nodiscard]] static HostMemory& of(const GpuApi& api);

    // Memory that the user has pinned needs nothing. no_memory where the host cannot pin so much, host_registered where
    // the range overlaps another one without lying in it, or one that does not come free within a second.
    Outcome add(const Devices& devices, void* address, size_t nbytes, bool writable);
    // What add() was called with, as often as that. The last one's end comes later, by IdleCalls, and `pages` with
    // it; unless somebody adds the range again before.
    Outcome remove(std::shared_ptr<DeviceState> any, void* address, std::shared_ptr<void> pages);

private:
    struct Range {
        size_t nbytes = 0;
        size_t users = 0;
        bool leaving = false; // the driver is being told
    };
    using Ranges = std::map<uint64_t, Range>;
    void let_go(DeviceState& any, uint64_t first);
    [[nodiscard]] Ranges::iterator overlapping(uint64_t start, size_t nbytes);

    std::mutex mutex_;
    std::condition_variable left_;
    Ranges ranges_;                                // by their start
    std::multimap<uint64_t, uint64_t> registered_; // by what add() was called with: start of its range, 0: the user's
};

} // namespace zerohop::accel::gpu
