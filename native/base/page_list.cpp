#include "base/page_list.hpp"

#include <algorithm>
#include <cstddef>

#if defined(__x86_64__)
#define ZEROHOP_WIDE [[gnu::target("avx2")]]
#else
#define ZEROHOP_WIDE
#endif

namespace zerohop {

namespace {

// Each loop is compiled twice, for processors with and without AVX2. Lists have thousands of numbers, and a device
// waits while they are gone through.
struct Numbers {
    [[gnu::always_inline]] static bool copy(const int64_t* from, uint64_t* to, size_t count, int64_t& most) {
        int64_t all = 0;
        int64_t largest = 0;
        for (size_t i = 0; i < count; ++i) {
            to[i] = static_cast<uint64_t>(from[i]);
            all |= from[i];
            largest = from[i] > largest ? from[i] : largest;
        }
        most = largest;
        return all >= 0;
    }
    [[gnu::always_inline]] static bool narrow(const uint64_t* from, uint32_t* to, size_t count) {
        uint64_t all = 0;
        for (size_t i = 0; i < count; ++i) {
            all |= from[i];
            to[i] = static_cast<uint32_t>(from[i]);
        }
        return all <= UINT32_MAX;
    }
    [[gnu::always_inline]] static uint64_t largest(const uint64_t* from, size_t count) {
        uint64_t most = 0;
        for (size_t i = 0; i < count; ++i) {
            most = from[i] > most ? from[i] : most;
        }
        return most;
    }
};

ZEROHOP_WIDE bool copy_wide(const int64_t* from, uint64_t* to, size_t count, int64_t& most) {
    return Numbers::copy(from, to, count, most);
}
ZEROHOP_WIDE bool narrow_wide(const uint64_t* from, uint32_t* to, size_t count) {
    return Numbers::narrow(from, to, count);
}
ZEROHOP_WIDE uint64_t largest_wide(const uint64_t* from, size_t count) {
    return Numbers::largest(from, count);
}

bool has_avx2() {
#if defined(__x86_64__)
    static const bool supported = __builtin_cpu_supports("avx2") != 0;
    return supported;
#else
    return false;
#endif
}

} // namespace

bool copy_numbers(std::span<const int64_t> from, uint64_t* to, uint64_t& most) {
    int64_t largest = 0;
    const auto copy = has_avx2() ? &copy_wide : &Numbers::copy;
    const bool good = copy(from.data(), to, from.size(), largest);
    most = static_cast<uint64_t>(largest);
    return good;
}

bool narrow_numbers(std::span<const uint64_t> from, uint32_t* to) {
    const auto narrow = has_avx2() ? &narrow_wide : &Numbers::narrow;
    return narrow(from.data(), to, from.size());
}

uint64_t largest_number(std::span<const uint64_t> numbers) {
    const auto largest = has_avx2() ? &largest_wide : &Numbers::largest;
    return largest(numbers.data(), numbers.size());
}

std::shared_ptr<const PageList> in_remote_order(std::shared_ptr<const PageList> pages) {
    const PageNumbers& remote = pages->remote;
    if (pages->ranges() || remote.size() < 2 || std::is_sorted(remote.begin(), remote.end())) {
        return pages;
    }
    const auto [least, most] = std::minmax_element(remote.begin(), remote.end());
    const uint64_t first = *least;
    const uint64_t span = *most - first; // one less than the number of places, which could overflow
    if (span >= 2 * remote.size()) {
        return pages;
    }
    // Maps each place to its entry in the list, or to `none`.
    const size_t none = remote.size();
    std::vector<size_t> entries(span + 1, none);
    for (size_t i = 0; i < remote.size(); ++i) {
        size_t& entry = entries[remote[i] - first];
        if (entry != none) {
            return pages;
        }
        entry = i;
    }
    auto ordered = std::make_shared<PageList>();
    ordered->page_bytes = pages->page_bytes;
    ordered->remote_end = pages->remote_end;
    ordered->local.reserve(remote.size());
    ordered->remote.reserve(remote.size());
    for (size_t place = 0; place < entries.size(); ++place) {
        if (entries[place] != none) {
            ordered->local.push_back(pages->local[entries[place]]);
            ordered->remote.push_back(first + place);
        }
    }
    return ordered;
}

} // namespace zerohop
