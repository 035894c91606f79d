#include "base/page_list.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <map>
#include <mutex>

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

// Keeps free blocks by their size, which is a power of two.
struct Blocks {
    std::mutex mutex;
    std::multimap<size_t, void*> free;
    size_t nbytes = 0; // of all
};

constexpr size_t kLeastKept = size_t{64} << 10; // the C library itself keeps smaller ones
constexpr size_t kMostKept = size_t{32} << 20;  // of all blocks

Blocks& blocks() {
    static auto* const kept = new Blocks; // never destroyed, because destructors use it at exit
    return *kept;
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

void* take_block(size_t nbytes) {
    if (nbytes < kLeastKept) {
        return ::operator new(nbytes);
    }
    const size_t size = std::bit_ceil(nbytes);
    Blocks& all = blocks();
    const std::lock_guard lock(all.mutex);
    if (const auto found = all.free.find(size); found != all.free.end()) {
        void* const block = found->second;
        all.free.erase(found);
        all.nbytes -= size;
        return block;
    }
    return ::operator new(size);
}

void give_block(void* block, size_t nbytes) noexcept {
    if (nbytes >= kLeastKept) {
        const size_t size = std::bit_ceil(nbytes);
        Blocks& all = blocks();
        const std::lock_guard lock(all.mutex);
        try {
            if (size <= kMostKept - all.nbytes) {
                all.free.emplace(size, block);
                all.nbytes += size;
                return;
            }
        } catch (const std::bad_alloc&) { // no room to note it: the block is not kept
        }
    }
    ::operator delete(block);
}

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

MadeRanges make_ranges(const RangeSide& local, const RangeSide& remote, std::span<const int64_t> lengths) {
    MadeRanges made;
    auto list = std::make_shared<PageList>();
    list->page_bytes = 1;
    for (PageNumbers* const each : {&list->local, &list->remote, &list->lengths}) {
        each->resize(lengths.size());
    }
    size_t count = 0;
    uint64_t here_end = 0; // of the range before
    uint64_t there_end = 0;
    for (size_t i = 0; i < lengths.size(); ++i) {
        // Negative numbers become very large ones.
        const auto length = static_cast<uint64_t>(lengths[i]);
        const auto here = static_cast<uint64_t>(local.offsets[i]);
        const auto there = static_cast<uint64_t>(remote.offsets[i]);
        made.local_inside = here <= local.nbytes && length <= local.nbytes - here;
        if (!made.local_inside) {
            return made;
        }
        if (length == 0) {
            continue;
        }
        made.remote_inside = there <= remote.nbytes && length <= remote.nbytes - there;
        made.local_inside = !__builtin_add_overflow(made.nbytes, length, &made.nbytes);
        if (!made.remote_inside || !made.local_inside) {
            return made;
        }
        if (count != 0 && local.base + here == here_end && remote.base + there == there_end) {
            list->lengths[count - 1] += length;
        } else {
            list->local[count] = local.base + here;
            list->remote[count] = remote.base + there;
            list->lengths[count] = length;
            ++count;
        }
        here_end = local.base + here + length;
        there_end = remote.base + there + length;
        list->local_end = std::max(list->local_end, here_end);
        list->remote_end = std::max(list->remote_end, there_end);
    }
    for (PageNumbers* const each : {&list->local, &list->remote, &list->lengths}) {
        each->resize(count);
    }
    if (count != 0) {
        made.list = std::move(list);
    }
    return made;
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
