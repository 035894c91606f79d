// The forms in which GPU memory goes to another process, between gpu_memory.cpp and gpu_imports.cpp.
#pragma once

#include <cstdint>

namespace zerohop::accel::gpu {

inline constexpr const char* kIpc = "ipc";   // one allocation, by a handle of the driver's
inline constexpr const char* kFd = "fd";     // one descriptor for each allocation
inline constexpr const char* kPool = "pool"; // an allocation by a handle, then its pool by a descriptor
inline constexpr int kDescriptor = 1;        // the driver's number for handles that are file descriptors

// Unlike that of any other process, also of one in another container.
[[nodiscard]] uint64_t this_process();

} // namespace zerohop::accel::gpu
