// Wraps the parts of a compiler that the functions for kernels need: loads, stores and atomics, and a clock.
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

// Marks long functions that are not on the fastest path. Inlining them would cost the short paths registers.
#if defined(ZEROHOP_CUDA) || defined(ZEROHOP_HIP)
#define ZEROHOP_OUT_OF_LINE __noinline__ ZEROHOP_DEVICE_FN
#else
#define ZEROHOP_OUT_OF_LINE ZEROHOP_DEVICE_FN
#endif

namespace zerohop::device {

namespace platform {

// All memory is global: with generic addresses each atomic would have a second form, for shared memory.
//
// Functions with `near` in their names take only addresses in memory of the GPU that the kernel runs on.

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

// Returns a condition of values that nobody changes. Where the values are those of each turn of a loop, a compiler may
// work it out ahead of the loop, and not after each wait.
ZEROHOP_DEVICE_FN bool work_out_once(bool condition) {
#if defined(ZEROHOP_CUDA)
    unsigned flag = condition ? 1 : 0;
    asm("" : "+r"(flag));
    return flag != 0;
#else
    return condition;
#endif
}

ZEROHOP_DEVICE_FN Word load_acquire(Word address) { // of a word that others change
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

ZEROHOP_DEVICE_FN Word load_relaxed(Word address) { // as load_acquire(), but it need not order
#if defined(ZEROHOP_CUDA)
    Word value;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
    return value;
#else
    return load_acquire(address);
#endif
}

// Looks at a word of this device's own memory, by an atomic that changes nothing: on an H200 that returns a change 0.1
// µs before an acquire load does. It is no addition: the compiler would gather those of a warp, which takes 0.1 µs as
// well.
ZEROHOP_DEVICE_FN Word load_near(Word address) {
#if defined(ZEROHOP_CUDA)
    Word value;
    asm volatile("atom.acquire.sys.global.or.b64 %0, [%1], 0;" : "=l"(value) : "l"(address) : "memory");
    return value;
#else
    return load_acquire(address);
#endif
}

ZEROHOP_DEVICE_FN void store_release(Word address, Word value) { // after everything that this thread knows of
#if defined(ZEROHOP_CUDA)
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
#elif defined(ZEROHOP_HIP)
    __hip_atomic_store(pointer(address), value, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_SYSTEM);
#else
    __atomic_store_n(pointer(address), value, __ATOMIC_RELEASE);
#endif
}

ZEROHOP_DEVICE_FN void store_near(Word address, Word value) { // as store_release(), for kernels of this device
#if defined(ZEROHOP_CUDA)
    asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
#else
    store_release(address, value);
#endif
}

// Orders all earlier accesses that this thread knows of before its next store_relaxed(), store_half(), store_pair() and
// fetch_add_near(), for the whole system. It is empty for AMD's GPUs and on the host, where these functions are
// releases by themselves: ThreadSanitizer does not know fences.
ZEROHOP_DEVICE_FN void fence() {
#if defined(ZEROHOP_CUDA)
    asm volatile("fence.acq_rel.sys;" ::: "memory");
#endif
}

ZEROHOP_DEVICE_FN void store_relaxed(Word address, Word value) {
#if defined(ZEROHOP_CUDA)
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
#else
    store_release(address, value);
#endif
}

ZEROHOP_DEVICE_FN void store_half(Word address, unsigned value) { // store_relaxed(), of 32 bits
#if defined(ZEROHOP_CUDA)
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
#elif defined(ZEROHOP_HIP)
    __hip_atomic_store(reinterpret_cast<unsigned*>(address), value, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_SYSTEM);
#else
    // NOLINTNEXTLINE(performance-no-int-to-ptr): descriptors hold addresses as words
    __atomic_store_n(reinterpret_cast<unsigned*>(address), value, __ATOMIC_RELEASE);
#endif
}

// Writes two words by one write over PCIe; either of them may be seen first.
ZEROHOP_DEVICE_FN void store_pair(Word address, Word first, Word second) {
#if defined(ZEROHOP_CUDA)
    asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(address), "l"(first), "l"(second) : "memory");
#else
    store_release(address, first);
    store_release(address + sizeof(Word), second);
#endif
}

ZEROHOP_DEVICE_FN Word fetch_add(Word address, Word value) { // orders everything before and after, for the system
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

ZEROHOP_DEVICE_FN Word fetch_add_near(Word address, Word value) { // adds to a word of this device's own
#if defined(ZEROHOP_CUDA)
    Word old;
    asm volatile("atom.relaxed.gpu.global.add.u64 %0, [%1], %2;" : "=l"(old) : "l"(address), "l"(value) : "memory");
    return old;
#else
    return fetch_add(address, value);
#endif
}

// Makes a word of this device's own memory at least a value, as numbers without a sign.
ZEROHOP_DEVICE_FN void raise_near(Word address, Word value) {
#if defined(ZEROHOP_CUDA)
    asm volatile("red.relaxed.gpu.global.max.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
#elif defined(ZEROHOP_HIP)
    (void)__hip_atomic_fetch_max(pointer(address), value, __ATOMIC_ACQ_REL, __HIP_MEMORY_SCOPE_SYSTEM);
#else
    Word found = __atomic_load_n(pointer(address), __ATOMIC_RELAXED);
    while (found < value &&
           !__atomic_compare_exchange_n(pointer(address), &found, value, true, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
    }
#endif
}

// Sets bits of a word of this device's own memory; returns what was there.
ZEROHOP_DEVICE_FN Word fetch_or_near(Word address, Word bits) {
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

ZEROHOP_DEVICE_FN Word compare_swap(Word address, Word expected, Word desired) { // returns what was there
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

ZEROHOP_DEVICE_FN Word compare_swap_near(Word address, Word expected,
                                         Word desired) { // as compare_swap(), for kernels of this device
#if defined(ZEROHOP_CUDA)
    Word old;
    asm volatile("atom.acq_rel.gpu.global.cas.b64 %0, [%1], %2, %3;"
                 : "=l"(old)
                 : "l"(address), "l"(expected), "l"(desired)
                 : "memory");
    return old;
#else
    return compare_swap(address, expected, desired);
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
