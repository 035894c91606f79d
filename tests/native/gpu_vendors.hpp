// Names the vendors whose drivers are tested over GPUs in software (fake_cuda, fake_hip): a test of a driver is a
// TEST_CASE_TEMPLATE for both. Each type has the vendor's table, and the functions of its library that users call and
// the driver does not.
#pragma once

#include "shim/gpu_api.hpp"

#include <cstddef>
#include <cstdint>

// Declared as in libcuda.
extern "C" int cuDevicePrimaryCtxRelease_v2(int device);
extern "C" int cuMemAllocManaged(uint64_t* address, size_t nbytes, unsigned flags);
extern "C" int cuMemFreeHost(void* address);
extern "C" int cuMemCreate(uint64_t* handle, size_t nbytes, const int* properties, unsigned long long flags);
extern "C" int cuMemPoolCreate(void** pool, const int* properties);
extern "C" int cuMemPoolDestroy(void* pool);
extern "C" int cuMemAllocFromPoolAsync(uint64_t* address, size_t nbytes, void* pool, void* stream);
extern "C" int cuStreamBeginCapture_v2(void* stream, int mode);
extern "C" int cuStreamEndCapture(void* stream, void** graph);
// Declared as in libamdhip64.
extern "C" int hipDevicePrimaryCtxRelease(int device);
extern "C" int hipMallocManaged(uint64_t* address, size_t nbytes, unsigned flags);
extern "C" int hipHostFree(void* address);
extern "C" int hipMemCreate(uint64_t* handle, size_t nbytes, const int* properties, unsigned long long flags);
extern "C" int hipMemPoolCreate(void** pool, const int* properties);
extern "C" int hipMemPoolDestroy(void* pool);
extern "C" int hipMallocFromPoolAsync(uint64_t* address, size_t nbytes, void* pool, void* stream);
extern "C" int hipStreamBeginCapture(void* stream, int mode);
extern "C" int hipStreamEndCapture(void* stream, void** graph);

namespace zerohop::test {

struct Cuda {
    static const shim::GpuApi& api() { return *shim::cuda(); }
    static constexpr bool kHip = false;
    static constexpr auto kReleaseContext = &cuDevicePrimaryCtxRelease_v2;
    static constexpr auto kAllocManaged = &cuMemAllocManaged;
    static constexpr auto kFreeHost = &cuMemFreeHost;
    static constexpr auto kCreate = &cuMemCreate;
    static constexpr auto kPoolCreate = &cuMemPoolCreate;
    static constexpr auto kPoolDestroy = &cuMemPoolDestroy;
    static constexpr auto kAllocFromPool = &cuMemAllocFromPoolAsync;
    static constexpr auto kBeginCapture = &cuStreamBeginCapture_v2;
    static constexpr auto kEndCapture = &cuStreamEndCapture;
};

struct Hip {
    static const shim::GpuApi& api() { return *shim::hip(); }
    static constexpr bool kHip = true;
    static constexpr auto kReleaseContext = &hipDevicePrimaryCtxRelease;
    static constexpr auto kAllocManaged = &hipMallocManaged;
    static constexpr auto kFreeHost = &hipHostFree;
    static constexpr auto kCreate = &hipMemCreate;
    static constexpr auto kPoolCreate = &hipMemPoolCreate;
    static constexpr auto kPoolDestroy = &hipMemPoolDestroy;
    static constexpr auto kAllocFromPool = &hipMallocFromPoolAsync;
    static constexpr auto kBeginCapture = &hipStreamBeginCapture;
    static constexpr auto kEndCapture = &hipStreamEndCapture;
};

} // namespace zerohop::test
