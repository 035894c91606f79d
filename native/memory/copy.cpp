#include "memory/copy.hpp"

#include "base/payload.hpp"

#include <algorithm>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace zerohop {

namespace {

constexpr size_t kLine = 64;
constexpr size_t kPrefetchPage = 4096; // the hardware fetches the rest of a longer page by itself
constexpr size_t kPagesAhead = 4;

} // namespace

#if defined(__x86_64__)

namespace {

constexpr size_t kPrefetchAhead = 512;
constexpr size_t kPage = 4096;

[[gnu::target("avx"), gnu::no_sanitize("thread")]] void stream_lines(std::byte* to, const std::byte* from,
                                                                     size_t lines) {
    for (size_t at = 0; at < lines * kLine; at += 32) {
        _mm256_stream_si256(reinterpret_cast<__m256i*>(to + at),
                            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + at)));
    }
}

// Copies four pages side by side: more DRAM rows stay open than in one run, and they are what bounds a long copy.
[[gnu::target("avx"), gnu::no_sanitize("thread")]] void stream_pages(std::byte* to, const std::byte* from,
                                                                     size_t pages) {
    constexpr size_t kWide = 4;
    for (; pages >= kWide; pages -= kWide, to += kWide * kPage, from += kWide * kPage) {
        for (size_t at = 0; at < kPage; at += kLine) {
            for (size_t lane = 0; lane < kWide; ++lane) {
                const std::byte* s = from + lane * kPage + at;
                std::byte* d = to + lane * kPage + at;
                _mm_prefetch(reinterpret_cast<const char*>(s + kPrefetchAhead), _MM_HINT_T0);
                const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(s));
                const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(s + 32));
                _mm256_stream_si256(reinterpret_cast<__m256i*>(d), a);
                _mm256_stream_si256(reinterpret_cast<__m256i*>(d + 32), b);
            }
        }
    }
    stream_lines(to, from, pages * (kPage / kLine));
}

} // namespace

void stream_payload(void* dst, const void* src, size_t nbytes) {
    static const bool has_avx = __builtin_cpu_supports("avx") != 0;
    auto* to = static_cast<std::byte*>(dst);
    const auto* from = static_cast<const std::byte*>(src);
    const size_t head = (kLine - reinterpret_cast<uintptr_t>(to) % kLine) % kLine;
    if (!has_avx || nbytes < head + kLine) {
        copy_payload(to, from, nbytes);
        return;
    }
    copy_payload(to, from, head);
    to += head;
    from += head;
    nbytes -= head;
    const size_t pages = nbytes / kPage;
    const size_t lines = nbytes % kPage / kLine;
    stream_pages(to, from, pages);
    stream_lines(to + pages * kPage, from + pages * kPage, lines);
    const size_t done = pages * kPage + lines * kLine;
    copy_payload(to + done, from + done, nbytes - done);
}

void stream_fence() {
    _mm_sfence();
}

#else

void stream_payload(void* dst, const void* src, size_t nbytes) {
    copy_payload(dst, src, nbytes);
}

void stream_fence() {}

#endif

Gone copy_streaming(void* dst, const void* src, size_t nbytes) {
    return guarded({reinterpret_cast<uint64_t>(dst), nbytes}, {reinterpret_cast<uint64_t>(src), nbytes},
                   [=] { stream_payload(dst, src, nbytes); });
}

void prefetch(const void* src, size_t nbytes) {
    const auto* from = static_cast<const std::byte*>(src);
    for (size_t at = 0; at < std::min(nbytes, kPrefetchPage); at += kLine) {
        __builtin_prefetch(from + at, 0, 3);
    }
}

Copied copy_extents(Extents& dst, Extents& src, uint64_t budget, bool streaming, const Touched& to,
                    const Touched& from) {
    Copied copied;
    // One guard for all pieces of a list.
    copied.gone = guarded(to, from, [&] {
        uint64_t& moved = copied.nbytes;
        while (moved < budget && src.left() != 0 && dst.left() != 0) {
            const uint64_t n = std::min({src.contiguous(), dst.contiguous(), budget - moved});
            if (const uint64_t soon = src.page_ahead(kPagesAhead)) {
                prefetch(reinterpret_cast<const void*>(soon), n);
            }
            const auto copy = streaming ? stream_payload : copy_payload;
            copy(reinterpret_cast<void*>(dst.address()), reinterpret_cast<const void*>(src.address()), n);
            src.advance(n);
            dst.advance(n);
            moved += n;
        }
    });
    if (streaming) {
        stream_fence();
    }
    return copied;
}

} // namespace zerohop
