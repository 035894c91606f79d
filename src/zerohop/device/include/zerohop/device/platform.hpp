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

#if defined(ZEROHOP_CUDA)
#define ZEROHOP_NO_UNROLL _Pragma("unroll 1")
#else
#define ZEROHOP_NO_UNROLL
#endif

namespace zerohop::device {

// Which threads call a function together, each with the same arguments.
enum class Scope { thread, warp, block };

namespace platform {

// --- memory ----------------------------------------------------------------------------------------------------------
// All of it is global: with generic addresses each atomic would have a second form, for shared memory.

ZEROHOP_DEVICE_FN Word* pointer(Word address) {
    return reinterpret_cast<Word*>(address); // NOLINT(performance-no-int-to-ptr): descriptors hold addresses as words
}

ZEROHOP_DEVICE_FN Word read_once(const Word* from) { // a word that nobody changes, here and not where it is used
#if defined(ZEROHOP_CUDA)
    Word found;
    asm("ld.global.nc.u64 %0, [%1];" : "=l"(found) : "l"(from));
    return found;
#else
    return *from;
#endif
}

// Reads what nobody changes, all of it at once: a compiler would load a field where it is used, and each such load
// takes 0.2 µs after a wait (H200), whose acquire empties the L1 cache.
template <typename Record> ZEROHOP_DEVICE_FN Record read_all(const Record* from) {
#if defined(ZEROHOP_CUDA)
    union {
        Record record;
        Word words[sizeof(Record) / sizeof(Word)];
    } found;
#pragma unroll
    for (unsigned i = 0; i < sizeof(Record) / sizeof(Word); i += 2) {
        asm("ld.global.nc.v2.u64 {%0, %1}, [%2];"
            : "=l"(found.words[i]), "=l"(found.words[i + 1])
            : "l"(reinterpret_cast<const Word*>(from) + i));
    }
    return found.record;
#else
    return *from;
#endif
}

ZEROHOP_DEVICE_FN Word look(Word address) { // at a word that others change
#if defined(ZEROHOP_CUDA)
    Word value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
    return value;
#elif defined(ZEROHOP_HIP)
    return __hip_atomic_load(pointer(address), __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_SYSTEM);
#else
    return __atomic_load_n(pointer(address), __ATOMIC_ACQUIRE);
#endif
}

// Looks at a word of this device's own memory, by an atomic addition of 0: on an H200 that returns a change 40 ns
// before an acquire load does.
ZEROHOP_DEVICE_FN Word look_near(Word address) {
#if defined(ZEROHOP_CUDA)
    Word value;
    asm volatile("atom.acquire.sys.global.add.u64 %0, [%1], 0;" : "=l"(value) : "l"(address) : "memory");
    return value;
#else
    return look(address);
#endif
}

ZEROHOP_DEVICE_FN void publish(Word address, Word value) { // after everything that this thread knows of
#if defined(ZEROHOP_CUDA)
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
#elif defined(ZEROHOP_HIP)
    __hip_atomic_store(pointer(address), value, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_SYSTEM);
#else
    __atomic_store_n(pointer(address), value, __ATOMIC_RELEASE);
#endif
}

ZEROHOP_DEVICE_FN void publish_near(Word address, Word value) { // does publish(), for kernels of this device alone
#if defined(ZEROHOP_CUDA)
    asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
#else
    publish(address, value);
#endif
}

// Orders all that this thread knows of before what note() and count() do next. Without a GPU these order by themselves:
// ThreadSanitizer does not know fences.
ZEROHOP_DEVICE_FN void order() {
#if defined(ZEROHOP_CUDA)
    asm volatile("fence.acq_rel.sys;" ::: "memory");
#endif
}

ZEROHOP_DEVICE_FN void note(Word address, Word value) {
#if defined(ZEROHOP_CUDA)
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
#else
    publish(address, value);
#endif
}

// Writes two words by one write over PCIe; either of them may be seen first.
ZEROHOP_DEVICE_FN void note_pair(Word address, Word first, Word second) {
#if defined(ZEROHOP_CUDA)
    asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(address), "l"(first), "l"(second) : "memory");
#else
    publish(address, first);
    publish(address + sizeof(Word), second);
#endif
}

ZEROHOP_DEVICE_FN Word add(Word address, Word value) { // orders everything before and after, for the system
#if defined(ZEROHOP_CUDA)
    Word old;
    asm volatile("atom.acq_rel.sys.global.add.u64 %0, [%1], %2;" : "=l"(old) : "l"(address), "l"(value) : "memory");
    return old;
#elif defined(ZEROHOP_HIP)
    return __hip_atomic_fetch_add(pointer(address), value, __ATOMIC_ACQ_REL, __HIP_MEMORY_SCOPE_SYSTEM);
#else
    return __atomic_fetch_add(pointer(address), value, __ATOMIC_ACQ_REL);
#endif
}

ZEROHOP_DEVICE_FN Word count(Word address, Word value) { // adds to a word of this device's own
#if defined(ZEROHOP_CUDA)
    Word old;
    asm volatile("atom.relaxed.gpu.global.add.u64 %0, [%1], %2;" : "=l"(old) : "l"(address), "l"(value) : "memory");
    return old;
#else
    return add(address, value);
#endif
}

// Sets bits of a word of this device's own memory; returns what was there.
ZEROHOP_DEVICE_FN Word mark(Word address, Word bits) {
#if defined(ZEROHOP_CUDA)
    Word old;
    asm volatile("atom.acquire.sys.global.or.b64 %0, [%1], %2;" : "=l"(old) : "l"(address), "l"(bits) : "memory");
    return old;
#elif defined(ZEROHOP_HIP)
    return __hip_atomic_fetch_or(pointer(address), bits, __ATOMIC_ACQ_REL, __HIP_MEMORY_SCOPE_SYSTEM);
#else
    return __atomic_fetch_or(pointer(address), bits, __ATOMIC_ACQ_REL);
#endif
}

ZEROHOP_DEVICE_FN Word swap_if(Word address, Word expected, Word desired) { // returns what was there
#if defined(ZEROHOP_CUDA)
    Word old;
    asm volatile("atom.acq_rel.sys.global.cas.b64 %0, [%1], %2, %3;"
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

struct alignas(16) Piece {
    Word words[2];
};

ZEROHOP_DEVICE_FN Piece load_piece(Word address) {
#if defined(ZEROHOP_CUDA)
    Piece piece;
    asm volatile("ld.global.v2.u64 {%0, %1}, [%2];"
                 : "=l"(piece.words[0]), "=l"(piece.words[1])
                 : "l"(address)
                 : "memory");
    return piece;
#else
    return *reinterpret_cast<const Piece*>(address); // NOLINT(performance-no-int-to-ptr): copies are given addresses
#endif
}

ZEROHOP_DEVICE_FN void store_piece(Word address, Piece piece) {
#if defined(ZEROHOP_CUDA)
    asm volatile("st.global.v2.u64 [%0], {%1, %2};" ::"l"(address), "l"(piece.words[0]), "l"(piece.words[1])
                 : "memory");
#else
    *reinterpret_cast<Piece*>(address) = piece; // NOLINT(performance-no-int-to-ptr): copies are given addresses
#endif
}

ZEROHOP_DEVICE_FN void copy_byte(Word target, Word source) {
#if defined(ZEROHOP_CUDA)
    unsigned value;
    asm volatile("ld.global.u8 %0, [%1];" : "=r"(value) : "l"(source) : "memory");
    asm volatile("st.global.u8 [%0], %1;" ::"l"(target), "r"(value) : "memory");
#else
    // NOLINTNEXTLINE(performance-no-int-to-ptr): copies are given addresses
    *reinterpret_cast<unsigned char*>(target) = *reinterpret_cast<const unsigned char*>(source);
#endif
}

// --- threads ---------------------------------------------------------------------------------------------------------

template <Scope kScope> ZEROHOP_DEVICE_FN Word rank() {
#if defined(ZEROHOP_HOST)
    return 0;
#else
    const unsigned in_block = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    return kScope == Scope::thread ? 0 : kScope == Scope::block ? in_block : in_block % warpSize;
#endif
}

template <Scope kScope> ZEROHOP_DEVICE_FN bool is_first() {
#if defined(ZEROHOP_HOST)
    return true;
#else
    return kScope == Scope::block ? (threadIdx.x | threadIdx.y | threadIdx.z) == 0 : rank<kScope>() == 0;
#endif
}

template <Scope kScope> ZEROHOP_DEVICE_FN Word size() {
#if defined(ZEROHOP_HOST)
    return 1;
#else
    const unsigned of_block = blockDim.x * blockDim.y * blockDim.z;
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
        __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront");
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
        if (is_first<kScope>()) {
            shared = value;
        }
        __syncthreads();
        value = shared;
    } else if (kScope == Scope::warp) {
#if defined(ZEROHOP_CUDA)
        value = __shfl_sync(0xffffffff, value, 0);
        __syncwarp(); // the exchange of a value orders no memory
#else
        value = __shfl(value, 0);
        __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront");
#endif
    }
#endif
    return value;
}

// Does the same for a status, which is mostly 0 and then takes one barrier. Other threads have 0.
template <Scope kScope> ZEROHOP_DEVICE_FN Word agree(Word status) {
#if !defined(ZEROHOP_HOST)
    if (kScope == Scope::block) {
        return __syncthreads_or(static_cast<int>(status)) == 0 ? 0 : from_first<kScope>(status);
    }
#endif
    return from_first<kScope>(status);
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
