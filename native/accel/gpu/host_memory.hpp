// Host memory that GPUs copy to and from by themselves. A driver takes a page once per process, whoever asks for it:
// so all Contexts share what is registered.
#pragma once

#include "accel/gpu/gpu_memory.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

namespace zerohop::accel::gpu {

class HostMemory {
public:
    // That of the process for this driver.
    [[nodiscard]] static HostMemory& of(const GpuApi& api);

    // Memory that the user has pinned needs nothing. no_memory where the host cannot pin so much, host_registered where
    // the range overlaps another one without lying in it.
    Outcome add(const Devices& devices, void* address, size_t nbytes, bool writable);
    // What add() was called with, as often as that.
    Outcome remove(DeviceState& any, void* address);

private:
    struct Range {
        size_t nbytes = 0;
        size_t users = 0;
    };
    std::mutex mutex_;
    std::map<uint64_t, Range> ranges_;             // by their start
    std::multimap<uint64_t, uint64_t> registered_; // by what add() was called with: start of its range, 0: the user's
};

} // namespace zerohop::accel::gpu
