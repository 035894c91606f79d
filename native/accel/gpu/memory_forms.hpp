// Names the forms in which GPU memory goes to another process, for gpu_memory.cpp and gpu_imports.cpp.
#pragma once

#include <cstdint>

namespace zerohop::accel::gpu {

inline constexpr const char* kIpc = "ipc";   // one allocation, by the driver's IPC handle
inline constexpr const char* kFd = "fd";     // one descriptor for each allocation
inline constexpr const char* kPool = "pool"; // an allocation by its pool pointer, then its pool by a descriptor
inline constexpr int kDescriptor = 1;        // the driver's handle type for file descriptors

// Returns a number unlike that of any other process, also in other containers.
[[nodiscard]] uint64_t this_process();

} // namespace zerohop::accel::gpu
