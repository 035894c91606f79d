#include "base/page_list.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <mutex>
#include <utility>

#if defined(__x86_64__)
#define ZEROHOP_WIDE [[gnu::target("avx2")]]
#else
#define ZEROHOP_WIDE
#endif

namespace zerohop {

namespace {

// Holds the facts that a fast pass over a list of ranges finds.
struct RangeFacts {
    uint64_t offset_bits = 0; // that any offset has
    uint64_t length_bits = 0;
    uint64_t nbytes = 0; // of all ranges
    uint64_t local_end = 0;
    uint64_t remote_end = 0;
    bool plain = true; // no range is empty, and none follows the one before it on both sides
};

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
    // Adds `base` to each number; returns all bits that the numbers have.
    [[gnu::always_inline]] static uint64_t shift(const int64_t* from, uint64_t base, uint64_t* to, size_t count) {
        uint64_t bits = 0;
        for (size_t i = 0; i < count; ++i) {
            const auto number = static_cast<uint64_t>(from[i]);
            bits |= number;
            to[i] = number + base;
        }
        return bits;
    }
    // Copies ranges to a list that has room for them, in pieces that a near cache holds.
    [[gnu::always_inline]] static RangeFacts ranges(const RangeSide& local, const RangeSide& remote,
                                                    std::span<const int64_t> lengths, PageList& list) {
        constexpr size_t kPiece = 512;
        RangeFacts facts;
        int64_t local_end = 0; // signed numbers are what the processor compares several at a time
        int64_t remote_end = 0;
        uint64_t empty = 0;
        uint64_t joined = 0;
        for (size_t first = 0; first < lengths.size(); first += kPiece) {
            const size_t end = std::min(lengths.size(), first + kPiece);
            uint64_t* const here = list.local.data();
            uint64_t* const there = list.remote.data();
            uint64_t* const length = list.lengths.data();
            facts.offset_bits |= shift(local.offsets.data() + first, local.base, here + first, end - first);
            facts.offset_bits |= shift(remote.offsets.data() + first, remote.base, there + first, end - first);
            facts.length_bits |= shift(lengths.data() + first, 0, length + first, end - first);
            for (size_t i = first; i < end; ++i) {
                facts.nbytes += length[i];
                empty |= length[i] == 0 ? 1 : 0;
                const auto this_end = static_cast<int64_t>(here[i] + length[i]);
                const auto that_end = static_cast<int64_t>(there[i] + length[i]);
                local_end = this_end > local_end ? this_end : local_end;
                remote_end = that_end > remote_end ? that_end : remote_end;
            }
            for (size_t i = std::max<size_t>(first, 1); i < end; ++i) {
                const uint64_t gap = (here[i - 1] + length[i - 1]) ^ here[i];
                const uint64_t other = (there[i - 1] + length[i - 1]) ^ there[i];
                joined |= (gap | other) == 0 ? 1 : 0;
            }
        }
        facts.local_end = static_cast<uint64_t>(local_end);
        facts.remote_end = static_cast<uint64_t>(remote_end);
        facts.plain = (empty | joined) == 0;
        return facts;
    }
};

ZEROHOP_WIDE RangeFacts ranges_wide(const RangeSide& local, const RangeSide& remote, std::span<const int64_t> lengths,
                                    PageList& list) {
    return Numbers::ranges(local, remote, lengths, list);
}
ZEROHOP_WIDE bool copy_wide(const int64_t* from, uint64_t* to, size_t count, int64_t& most) {
    return Numbers::copy(from, to, count, most);
}
ZEROHOP_WIDE bool narrow_wide(const uint64_t* from, uint32_t* to, size_t count) {
    return Numbers::narrow(from, to, count);
}
ZEROHOP_WIDE uint64_t largest_wide(const uint64_t* from, size_t count) {
    return Numbers::largest(from, count);
}

// A free block begins with the address of the next one of its size.
struct FreeBlock {
    FreeBlock* next = nullptr;
};

// Keeps free blocks by their size, which is a power of two.
struct Blocks {
    std::mutex mutex;
    std::array<FreeBlock*, 64> free{};
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
    {
        const std::lock_guard lock(all.mutex);
        FreeBlock*& first = all.free[std::countr_zero(size)];
        if (first != nullptr) {
            all.nbytes -= size;
            return std::exchange(first, first->next);
        }
    }
    return ::operator new(size);
}

void give_block(void* block, size_t nbytes) noexcept {
    if (nbytes >= kLeastKept) {
        const size_t size = std::bit_ceil(nbytes);
        Blocks& all = blocks();
        const std::lock_guard lock(all.mutex);
        if (size <= kMostKept - all.nbytes) {
            FreeBlock*& first = all.free[std::countr_zero(size)];
            first = ::new (block) FreeBlock{first};
            all.nbytes += size;
            return;
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

namespace {

// Makes a list of which nothing is to be dropped, joined or refused, as most are. Returns false if this one is not so,
// or its numbers are so large that a sum could overflow.
bool make_plain_ranges(const RangeSide& local, const RangeSide& remote, std::span<const int64_t> lengths,
                       PageList& list, uint64_t& nbytes) {
    constexpr uint64_t kLargeOffset = uint64_t{1} << 61;
    constexpr uint64_t kLargeLength = uint64_t{1} << 40;
    constexpr size_t kMany = size_t{1} << 22;
    if (lengths.size() > kMany || local.base >= kLargeOffset || remote.base >= kLargeOffset) {
        return false;
    }
    const auto copy = has_avx2() ? &ranges_wide : &Numbers::ranges;
    const RangeFacts facts = copy(local, remote, lengths, list);
    // Negative numbers have the highest bit.
    if (!facts.plain || facts.offset_bits >= kLargeOffset || facts.length_bits >= kLargeLength) {
        return false;
    }
    if (facts.local_end - local.base > local.nbytes || facts.remote_end - remote.base > remote.nbytes) {
        return false;
    }
    list.local_end = facts.local_end;
    list.remote_end = facts.remote_end;
    nbytes = facts.nbytes;
    return true;
}

} // namespace

MadeRanges make_ranges(const RangeSide& local, const RangeSide& remote, std::span<const int64_t> lengths) {
    MadeRanges made;
    auto list = std::make_shared<PageList>();
    list->page_bytes = 1;
    for (PageNumbers* const each : {&list->local, &list->remote, &list->lengths}) {
        each->resize(lengths.size());
    }
    if (lengths.empty()) {
        return made;
    }
    if (make_plain_ranges(local, remote, lengths, *list, made.nbytes)) {
        made.list = std::move(list);
        return made;
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
