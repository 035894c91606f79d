// Declares what the threads of a block, of a warp, or one thread do together.
#pragma once

#include "zerohop/device/layout.hpp"
#include "zerohop/device/platform.hpp"

namespace zerohop::device {

// Which threads make a call together: one alone, all of a warp, or all of a block. They pass the same arguments, except
// to PostWrite(), to which each thread of a warp passes its own.
enum class Scope { thread, warp, block };

namespace platform {

template <Scope kScope> ZEROHOP_DEVICE_FN unsigned rank() {
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

template <Scope kScope> ZEROHOP_DEVICE_FN unsigned size() {
#if defined(ZEROHOP_HOST)
    return 1;
#else
    const unsigned of_block = blockDim.x * blockDim.y * blockDim.z;
    return kScope == Scope::thread ? 1 : kScope == Scope::block ? of_block : warpSize;
#endif
}

template <Scope kScope> ZEROHOP_DEVICE_FN bool is_whole() { // no thread is missing: a block's last warp may lack some
#if !defined(ZEROHOP_HOST)
    if (kScope == Scope::warp) {
        const unsigned first = rank<Scope::block>() - rank<Scope::warp>();
        return first + warpSize <= size<Scope::block>();
    }
#endif
    return true;
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

template <Scope kScope> ZEROHOP_DEVICE_FN bool any(bool found) { // tells all threads whether one of them has found it
#if !defined(ZEROHOP_HOST)
    if (kScope == Scope::block) {
        return __syncthreads_or(static_cast<int>(found)) != 0;
    }
    if (kScope == Scope::warp) {
#if defined(ZEROHOP_CUDA)
        return __any_sync(0xffffffff, static_cast<int>(found)) != 0;
#else
        return __any(static_cast<int>(found)) != 0;
#endif
    }
#endif
    return found;
}

// Gives all threads the status of the first one, as from_first() does. It is mostly 0, which takes one barrier. The
// other threads pass 0.
template <Scope kScope> ZEROHOP_DEVICE_FN Word agree(Word status) {
#if !defined(ZEROHOP_HOST)
    if (kScope == Scope::block) {
        return __syncthreads_or(static_cast<int>(status)) == 0 ? 0 : from_first<kScope>(status);
    }
#endif
    return from_first<kScope>(status);
}

} // namespace platform

} // namespace zerohop::device
