// Finds the GPUs' driver at run time, and holds a device's context with memory and a stream, for the floors of GPUs.
#pragma once

#include "common.hpp"

#include <array>
#include <dlfcn.h>

namespace floors {

using Address = uint64_t;

// Names an allocation to another process.
struct AllocationHandle {
    std::array<char, 64> bytes;
};

// As libcuda declares them.
struct Driver {
    int (*init)(unsigned);
    int (*device_get)(int*, int);
    int (*context_retain)(void**, int);
    int (*context_release)(int);
    int (*context_push)(void*);
    int (*context_pop)(void**);
    int (*enable_peer)(void*, unsigned);
    int (*alloc)(Address*, size_t);
    int (*free)(Address);
    int (*host_alloc)(void**, size_t, unsigned);
    int (*host_free)(void*);
    int (*copy)(Address, Address, size_t, void*);
    int (*ipc_get)(AllocationHandle*, Address);
    int (*ipc_open)(Address*, AllocationHandle, unsigned);
    int (*ipc_close)(Address);
    int (*stream_create)(void**, unsigned);
    int (*stream_destroy)(void*);
    int (*synchronize)(void*);
    int (*write32)(void*, Address, uint32_t, unsigned);
    int (*module_load)(void**, const void*);
    int (*module_function)(void**, void*, const char*);
    int (*launch)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**);
};

inline constexpr unsigned kNonBlocking = 1;
inline constexpr int kAlreadyEnabled = 704;

template <typename Function>
void find(void* library, Function& function, const char* name) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    if (function == nullptr)
        throw std::runtime_error(std::string("libcuda.so.1 has no ") + name);
}

inline const Driver& driver() {
    static const Driver once = [] {
        void* const library = dlopen("libcuda.so.1", RTLD_NOW);
        if (library == nullptr)
            throw std::runtime_error(dlerror());
        Driver found{};
        find(library, found.init, "cuInit");
        find(library, found.device_get, "cuDeviceGet");
        find(library, found.context_retain, "cuDevicePrimaryCtxRetain");
        find(library, found.context_release, "cuDevicePrimaryCtxRelease_v2");
        find(library, found.context_push, "cuCtxPushCurrent_v2");
        find(library, found.context_pop, "cuCtxPopCurrent_v2");
        find(library, found.enable_peer, "cuCtxEnablePeerAccess");
        find(library, found.alloc, "cuMemAlloc_v2");
        find(library, found.free, "cuMemFree_v2");
        find(library, found.host_alloc, "cuMemHostAlloc");
        find(library, found.host_free, "cuMemFreeHost");
        find(library, found.copy, "cuMemcpyAsync");
        find(library, found.ipc_get, "cuIpcGetMemHandle");
        find(library, found.ipc_open, "cuIpcOpenMemHandle_v2");
        find(library, found.ipc_close, "cuIpcCloseMemHandle");
        find(library, found.stream_create, "cuStreamCreate");
        find(library, found.stream_destroy, "cuStreamDestroy_v2");
        find(library, found.synchronize, "cuStreamSynchronize");
        find(library, found.write32, "cuStreamWriteValue32_v2");
        find(library, found.module_load, "cuModuleLoadData");
        find(library, found.module_function, "cuModuleGetFunction");
        find(library, found.launch, "cuLaunchKernel");
        if (found.init(0) != 0)
            throw std::runtime_error("cuInit fails");
        return found;
    }();
    return once;
}

inline void check(int result, const char* what) {
    if (result != 0)
        throw std::runtime_error(std::string(what) + " fails: error " + std::to_string(result) + " of the driver");
}

// Makes a context the calling thread's for as long as this lives; the caller's own, which torch takes for the current
// device, is current again afterwards.
class Current {
public:
    explicit Current(void* context) { check(api_.context_push(context), "cuCtxPushCurrent"); }
    ~Current() {
        void* popped = nullptr;
        api_.context_pop(&popped);
    }
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;

private:
    const Driver& api_ = driver();
};

// The primary context of a device, a stream on it, and memory.
class Gpu {
public:
    Gpu(int number, size_t nbytes) {
        check(driver().device_get(&device_, number), "cuDeviceGet");
        check(driver().context_retain(&context_, device_), "cuDevicePrimaryCtxRetain");
        const Current current = enter();
        check(driver().stream_create(&stream_, kNonBlocking), "cuStreamCreate");
        check(driver().alloc(&memory_, nbytes), "cuMemAlloc");
    }
    ~Gpu() {
        void* popped = nullptr;
        api_.context_push(context_);
        api_.stream_destroy(stream_);
        api_.free(memory_);
        api_.context_pop(&popped);
        api_.context_release(device_);
    }
    Gpu(const Gpu&) = delete;
    Gpu& operator=(const Gpu&) = delete;

    [[nodiscard]] Current enter() const { return Current(context_); }
    void reach(const Gpu& other) const {
        const Current current = enter();
        const int result = driver().enable_peer(other.context_, 0);
        if (result != kAlreadyEnabled)
            check(result, "cuCtxEnablePeerAccess");
    }
    void copy(Address to, Address from, size_t nbytes) const {
        check(driver().copy(to, from, nbytes, stream_), "cuMemcpyAsync");
    }
    void synchronize() const { check(driver().synchronize(stream_), "cuStreamSynchronize"); }

    [[nodiscard]] void* context() const { return context_; }
    [[nodiscard]] Address memory() const { return memory_; }
    [[nodiscard]] void* stream() const { return stream_; }

private:
    const Driver& api_ = driver();
    int device_ = 0;
    void* context_ = nullptr;
    void* stream_ = nullptr;
    Address memory_ = 0;
};

} // namespace floors
