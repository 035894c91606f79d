// Copies between host addresses, with non-temporal stores if the destination would only evict the cache.
#pragma once

#include "base/extents.hpp"
#include "base/guarded.hpp"

#include <cstddef>
#include <cstdint>

namespace zerohop {

// The most bytes that a post, or one pass of the poller over a lane, moves: some 15 µs, in which another thread could
// have been woken for it. Payloads and staging buffers have this size, too.
inline constexpr uint32_t kSliceBytes = 256 * 1024;

// Operations from this size on write past the cache: the destination would not stay in the cache anyway, and a plain
// store first reads the line that it is about to overwrite.
inline constexpr uint64_t kStreamingBytes = 4ULL << 20;

// The limits for page lists: pages are written past the cache into memory larger than kStreamingPages.
inline constexpr uint64_t kStreamingPages = 16ULL << 20;
inline constexpr uint64_t kMinStreamingPage = 256;

// The two copies are guarded. The destination is the first memory, the source the second.
[[nodiscard]] inline Gone copy_cached(void* dst, const void* src, size_t nbytes) {
    return copy_guarded(dst, src, nbytes);
}
// Stores past the cache; call stream_fence() before anything reports that the data is there.
[[nodiscard]] Gone copy_streaming(void* dst, const void* src, size_t nbytes);
// Stores past the cache, too, in a call that is guarded already.
void stream_payload(void* dst, const void* src, size_t nbytes);
void stream_fence();
// Prefetches memory that will be read soon.
void prefetch(const void* src, size_t nbytes);

struct Copied {
    uint64_t nbytes = 0;
    Gone gone = Gone::nothing;
};

// Moves up to `budget` bytes between two walks over host memory, and advances both. `to` and `from` are the memories
// that the walks lie in. If one of them was gone, the walks are of no more use. Fenced.
[[nodiscard]] Copied copy_extents(Extents& dst, Extents& src, uint64_t budget, bool streaming, const Touched& to,
                                  const Touched& from);

} // namespace zerohop
