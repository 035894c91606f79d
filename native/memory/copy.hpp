// Copies between host addresses, with non-temporal stores where the destination would only wash the cache out.
#pragma once

#include "base/extents.hpp"

#include <cstddef>
#include <cstdint>

namespace zerohop {

// What a post, or one pass of the poller over a lane, moves at most: some 15 µs, the time in which another thread could
// have been woken for it. So large is a payload, and a staging buffer.
inline constexpr uint32_t kSliceBytes = 256 * 1024;

// Operations from this size on stream past the cache: above it the destination would not stay there anyway, and a
// plain store first reads the line that it is about to overwrite.
inline constexpr uint64_t kStreamingBytes = 4ULL << 20;

// The same for page lists: into memory larger than this the pages are written past the cache.
inline constexpr uint64_t kStreamingPages = 16ULL << 20;
inline constexpr uint64_t kMinStreamingPage = 256;

void copy_cached(void* dst, const void* src, size_t nbytes);
// With stores past the cache; call stream_fence() before anything tells that the data is there.
void copy_streaming(void* dst, const void* src, size_t nbytes);
void stream_fence();
// Asks for the lines of memory that will be read soon.
void prefetch(const void* src, size_t nbytes);

// Moves up to `budget` bytes between two walks over host memory and advances both; returns how many. Fenced.
uint64_t copy_extents(Extents& dst, Extents& src, uint64_t budget, bool streaming);

} // namespace zerohop
