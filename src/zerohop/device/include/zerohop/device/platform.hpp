// Wraps the parts of a compiler that the functions for kernels need: atomics for the whole system, barriers, a clock.
//
// CUDA (nvcc, NVRTC), HIP, and compilers of the host, where every thread is a kernel of its own.
#pragma once

#include "zerohop/device/layout.hpp"

#if defined(__CUDA_ARCH__) || defined(__CUDACC_RTC__)
#define ZEROHOP_CUDA 1
#elif defined(__HIP_DEVICE_COMPILE__)
#define ZEROHOP_HIP 1
#else
#define ZEROHOP_HOST 1
#include <sched.h>
#include <time.h>
#endif

namespace zerohop::device {

// Which threads call a function together, each with the same arguments.
enum class Scope { thread, warp, block };

namespace platform {

// --- memory ----------------------------------------------------------------------------------------------------------

ZEROHOP_DEVICE_FN Word* pointer(Word address) {
    return reinterpret_cast<Word*>(address); // NOLINT(performance-no-int-to-ptr): descriptors hold addresses as words
}

ZEROHOP_DEVICE_FN Word look(Word address) { // a word that others change
#if defined(ZEROHOP_CUDA)
    Word value;
    asm volatile("ld.acquire.sys.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
    return value;
#elif defined(ZEROHOP_HIP)
    return __hip_atomic_load(pointer(address), __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_SYSTEM);
#else
    return __atomic_load_n(pointer(address), __ATOMIC_ACQUIRE);
#endif
}

ZEROHOP_DEVICE_FN void publish(Word address, Word value) { // after everything that this thread knows of
#if defined(ZEROHOP_CUDA)
    asm volatile("st.release.sys.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
#elif defined(ZEROHOP_HIP)
    __hip_atomic_store(pointer(address), value, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_SYSTEM);
#else
    __atomic_store_n(pointer(address), value, __ATOMIC_RELEASE);
#endif
}

ZEROHOP_DEVICE_FN Word add(Word address, Word value) { // orders everything before and after, for the system
#if defined(ZEROHOP_CUDA)
    Word old;
    asm volatile("atom.acq_rel.sys.add.u64 %0, [%1], %2;" : "=l"(old) : "l"(address), "l"(value) : "memory");
    return old;
#elif defined(ZEROHOP_HIP)
    return __hip_atomic_fetch_add(pointer(address), value, __ATOMIC_ACQ_REL, __HIP_MEMORY_SCOPE_SYSTEM);
#else
    return __atomic_fetch_add(pointer(address), value, __ATOMIC_ACQ_REL);
#endif
}

ZEROHOP_DEVICE_FN Word swap_if(Word address, Word expected, Word desired) { // returns what was there
#if defined(ZEROHOP_CUDA)
    Word old;
    asm volatile("atom.acq_rel.sys.cas.b64 %0, [%1], %2, %3;"
                 : "=l"(old)
                 : "l"(address), "l"(expected), "l"(desired)
                 : "memory");
    return old;
#elif defined(ZEROHOP_HIP)
    (void)__hip_atomic_compare_exchange_strong(pointer(address), &expected, desired, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE,
                                               __HIP_MEMORY_SCOPE_SYSTEM);
    return expected;
#else
    (void)__atomic_compare_exchange_n(pointer(address), &expected, desired, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    return expected;
#endif
}

// --- threads ---------------------------------------------------------------------------------------------------------

template <Scope kScope> ZEROHOP_DEVICE_FN Word rank() {
#if defined(ZEROHOP_HOST)
    return 0;
#else
    const Word in_block = threadIdx.x + blockDim.x * (threadIdx.y + static_cast<Word>(blockDim.y) * threadIdx.z);
    return kScope == Scope::thread ? 0 : kScope == Scope::block ? in_block : in_block % warpSize;
#endif
}

template <Scope kScope> ZEROHOP_DEVICE_FN Word size() {
#if defined(ZEROHOP_HOST)
    return 1;
#else
    const Word of_block = static_cast<Word>(blockDim.x) * blockDim.y * blockDim.z;
    return kScope == Scope::thread ? 1 : kScope == Scope::block ? of_block : warpSize;
#endif
}

template <Scope kScope> ZEROHOP_DEVICE_FN void barrier() {
#if !defined(ZEROHOP_HOST)
    if (kScope == Scope::block) {
        __syncthreads();
    } else if (kScope == Scope::warp) {
#if defined(ZEROHOP_CUDA)
        __syncwarp();
#else
        __builtin_amdgcn_wave_barrier();
#endif
    }
#endif
}

// Gives all threads what the first one has, and lets none of them go on before.
template <Scope kScope> ZEROHOP_DEVICE_FN Word from_first(Word value) {
#if !defined(ZEROHOP_HOST)
    if (kScope == Scope::block) {
        __shared__ Word shared;
        __syncthreads();
        if (rank<kScope>() == 0) {
            shared = value;
        }
        __syncthreads();
        value = shared;
    } else if (kScope == Scope::warp) {
#if defined(ZEROHOP_CUDA)
        value = __shfl_sync(0xffffffff, value, 0);
#else
        value = __shfl(value, 0);
#endif
    }
#endif
    return value;
}

// Called in each turn of a wait. The host has fewer processors than kernels: others go first.
ZEROHOP_DEVICE_FN void relax() {
#if defined(ZEROHOP_HOST)
    sched_yield();
#endif
}

ZEROHOP_DEVICE_FN Word now_ns() {
#if defined(ZEROHOP_CUDA)
    Word now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
#elif defined(ZEROHOP_HIP)
    return wall_clock64() * 10; // it counts at 100 MHz
#else
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<Word>(now.tv_sec) * 1000000000 + static_cast<Word>(now.tv_nsec);
#endif
}

} // namespace platform

} // namespace zerohop::device
