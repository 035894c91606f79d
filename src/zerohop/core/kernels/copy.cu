// The library's copy kernels: of a list of pages, of a few ranges that have nothing in common, and of a long list of
// them.
//
// zh_pages_N: page src_pages[i] at `src` to page dst_pages[i] at `dst`, for all i < count, in one launch. A page is cut
// into pieces of 2 KiB, which 32 threads copy together, N bytes each at a time. Each block has a run of consecutive
// pieces, and so of consecutive places of the list; it reads their numbers first, together, because the lists lie in host
// memory and one such read takes about two microseconds.
typedef unsigned long long u64;
typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned char u8;

constexpr u32 kPiece = 2048;
constexpr u32 kWarp = 32;
constexpr u32 kThreads = 256;
constexpr u32 kWarps = kThreads / kWarp; // of a block

template <class Wide>
__device__ __forceinline__ void copy_piece(char* dst, const char* src, u32 nbytes, u32 lane) {
    constexpr u32 kAtOnce = sizeof(Wide) == 16 ? 4 : 8; // loads under way at a time
    Wide* to = reinterpret_cast<Wide*>(dst);
    const Wide* from = reinterpret_cast<const Wide*>(src);
    const u32 count = nbytes / sizeof(Wide);
    u32 i = lane;
    for (; i + (kAtOnce - 1) * kWarp < count; i += kAtOnce * kWarp) {
        Wide held[kAtOnce];
#pragma unroll
        for (u32 k = 0; k < kAtOnce; ++k) {
            held[k] = from[i + k * kWarp];
        }
#pragma unroll
        for (u32 k = 0; k < kAtOnce; ++k) {
            to[i + k * kWarp] = held[k];
        }
    }
    for (; i < count; i += kWarp) {
        to[i] = from[i];
    }
}

// `batch`: how many pages' numbers fit into a block's shared memory.
template <class Wide>
__device__ __forceinline__ void copy_pages(char* dst, const char* src, const u32* dst_pages, const u32* src_pages,
                                           u64 count, u64 page_bytes, u64 pieces, u64 batch) {
    extern __shared__ u32 numbers[];
    const u64 all = count * pieces;
    const u64 begin = all * blockIdx.x / gridDim.x;
    const u64 end = all * (blockIdx.x + 1) / gridDim.x;
    const u32 lane = threadIdx.x % kWarp;
    const u64 step_pages = kWarps / pieces;
    const u64 step_parts = kWarps % pieces;
    for (u64 start = begin; start < end;) {
        const u64 first = start / pieces;
        const u64 last = min((end - 1) / pieces, first + batch - 1);
        const u32 held = static_cast<u32>(last - first + 1);
        for (u32 i = threadIdx.x; i < held; i += kThreads) {
            numbers[i] = src_pages[first + i];
            numbers[batch + i] = dst_pages[first + i];
        }
        __syncthreads();
        const u64 stop = min(end, (last + 1) * pieces);
        // Its first piece by a division, the others by what a step comes to: a division takes as long as a copy.
        u64 piece = start + threadIdx.x / kWarp;
        u64 page = piece / pieces;
        u64 part = piece - page * pieces;
        for (; piece < stop; piece += kWarps) {
            const u64 offset = part * kPiece;
            const u64 from = numbers[page - first] * page_bytes + offset;
            const u64 to = numbers[batch + page - first] * page_bytes + offset;
            const u64 left = page_bytes - offset;
            copy_piece<Wide>(dst + to, src + from, static_cast<u32>(left < kPiece ? left : kPiece), lane);
            page += step_pages;
            part += step_parts;
            if (part >= pieces) {
                part -= pieces;
                ++page;
            }
        }
        __syncthreads(); // before the numbers are overwritten
        start = stop;
    }
}

#define ZH_PAGES(width, type)                                                                                          \
    extern "C" __global__ void __launch_bounds__(kThreads)                                                                  \
        zh_pages_##width(char* dst, const char* src, const u32* dst_pages, const u32* src_pages, u64 count,            \
                         u64 page_bytes, u64 pieces, u64 batch) {                                                      \
        copy_pages<type>(dst, src, dst_pages, src_pages, count, page_bytes, pieces, batch);                            \
    }

ZH_PAGES(16, uint4)
ZH_PAGES(8, u64)
ZH_PAGES(4, u32)
ZH_PAGES(2, u16)
ZH_PAGES(1, u8)

// zh_ranges: nbytes[i] at src[i] to dst[i], for i = blockIdx.x; a block copies one part of its range. What it copies is
// an argument of the launch, which a device has at hand; native/accel/gpu/copy_kernels.cpp fills it.
constexpr u32 kMostRanges = 128;
constexpr u64 kPart = 8192;

struct Ranges {
    u64 dst[kMostRanges];
    u64 src[kMostRanges];
    u64 nbytes[kMostRanges];
};

template <class Wide> __device__ __forceinline__ void copy_part(u64 dst, u64 src, u32 nbytes) {
    Wide* to = reinterpret_cast<Wide*>(dst);
    const Wide* from = reinterpret_cast<const Wide*>(src);
    const u32 count = nbytes / sizeof(Wide);
    u32 i = threadIdx.x;
    for (; i + kThreads < count; i += 2 * kThreads) {
        const Wide first = from[i]; // both loads are under way before the first store
        const Wide second = from[i + kThreads];
        to[i] = first;
        to[i + kThreads] = second;
    }
    if (i < count) {
        to[i] = from[i];
    }
}

// Where the device can, each block reads the argument where it is, and has no copy of its own.
#if __CUDA_ARCH__ >= 700
#define ZH_ARGUMENT const __grid_constant__
#else
#define ZH_ARGUMENT const
#endif

extern "C" __global__ void __launch_bounds__(kThreads) zh_ranges(ZH_ARGUMENT Ranges ranges) {
    const u64 begin = blockIdx.y * kPart;
    const u64 whole = ranges.nbytes[blockIdx.x];
    if (begin >= whole) {
        return;
    }
    const u32 nbytes = static_cast<u32>(min(whole - begin, kPart));
    const u64 dst = ranges.dst[blockIdx.x] + begin;
    const u64 src = ranges.src[blockIdx.x] + begin;
    const u64 alignment = dst | src;
    // The bytes at the end that the widest load leaves go one by one, by the first threads.
    const u32 width = alignment % 16 == 0 ? 16 : alignment % 8 == 0 ? 8 : alignment % 4 == 0 ? 4 : 1;
    const u32 even = nbytes / width * width;
    if (width == 16) {
        copy_part<uint4>(dst, src, even);
    } else if (width == 8) {
        copy_part<u64>(dst, src, even);
    } else if (width == 4) {
        copy_part<u32>(dst, src, even);
    } else {
        copy_part<u8>(dst, src, even);
    }
    copy_part<u8>(dst + even, src + even, nbytes - even);
}

// zh_list: entry i of a list, for all i < count, in one launch. The list lies in host memory: each block reads a few
// entries at a time, together, and 32 threads copy the bytes of one. The blocks take turns, so that a part of the list
// with long ranges is not one block's alone.
constexpr u32 kHeld = 64;

// The layout must match CopySegment of native/accel/driver.hpp.
struct Entry {
    u64 dst;
    u64 src;
    u64 nbytes;
};

__device__ __forceinline__ void copy_entry(const Entry& entry, u32 lane) {
    const u64 alignment = entry.dst | entry.src;
    char* to = reinterpret_cast<char*>(entry.dst);
    const char* from = reinterpret_cast<const char*>(entry.src);
    const u32 nbytes = static_cast<u32>(entry.nbytes);
    // The bytes at the end that the widest load leaves go one by one.
    const u32 width = alignment % 16 == 0 ? 16 : alignment % 8 == 0 ? 8 : alignment % 4 == 0 ? 4 : 1;
    const u32 even = nbytes / width * width;
    if (width == 16) {
        copy_piece<uint4>(to, from, even, lane);
    } else if (width == 8) {
        copy_piece<u64>(to, from, even, lane);
    } else if (width == 4) {
        copy_piece<u32>(to, from, even, lane);
    } else {
        copy_piece<u8>(to, from, even, lane);
    }
    copy_piece<u8>(to + even, from + even, nbytes - even, lane);
}

extern "C" __global__ void __launch_bounds__(kThreads) zh_list(const Entry* entries, u64 count) {
    __shared__ Entry held[kHeld];
    const u64 batch = min((count + gridDim.x - 1) / gridDim.x, static_cast<u64>(kHeld)); // short lists are for all, too
    for (u64 start = blockIdx.x * batch; start < count; start += gridDim.x * batch) {
        const u32 here = static_cast<u32>(min(count - start, batch));
        if (threadIdx.x < here) {
            held[threadIdx.x] = entries[start + threadIdx.x];
        }
        __syncthreads();
        for (u32 i = threadIdx.x / kWarp; i < here; i += kWarps) {
            copy_entry(held[i], threadIdx.x % kWarp);
        }
        __syncthreads(); // before the entries are overwritten
    }
}
