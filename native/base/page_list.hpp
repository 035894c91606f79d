// Holds the pages or ranges of one operation, on both sides, and the loops over their numbers.
#pragma once

#include "base/extents.hpp"

#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <utility>
#include <vector>

namespace zerohop {

// Return uninitialized memory, and take it back. Large blocks are kept for the next list: to have the kernel map and
// clear fresh pages takes several times as long as to write a list to them. Throws std::bad_alloc.
[[nodiscard]] void* take_block(size_t nbytes);
void give_block(void* block, size_t nbytes) noexcept;

// Leaves new elements uninitialized: lists have thousands of numbers, and each is written at once anyway.
template <class T> struct Unfilled : std::allocator<T> {
    T* allocate(size_t count) { return static_cast<T*>(take_block(count * sizeof(T))); }
    void deallocate(T* block, size_t count) noexcept { give_block(block, count * sizeof(T)); }
    template <class U> struct rebind { // NOLINT(readability-identifier-naming): the standard's name
        using other = Unfilled<U>;     // NOLINT(readability-identifier-naming)
    };
    void construct(T* /*where*/) noexcept {}
    template <class... Arguments> void construct(T* where, Arguments&&... arguments) {
        ::new (static_cast<void*>(where)) T(std::forward<Arguments>(arguments)...);
    }
};
using PageNumbers = std::vector<uint64_t, Unfilled<uint64_t>>;

struct PageList {
    PageNumbers local;
    PageNumbers remote; // as many as `local` has
    uint64_t page_bytes = 0;
    uint64_t remote_end = 0; // one past the largest number in `remote`; 0: not known
    // If not empty, this is a list of ranges: `local` and `remote` hold byte offsets (page_bytes is 1), `lengths` the
    // size of each range, and `local_end` and `remote_end` are one past the last byte of all.
    PageNumbers lengths;
    uint64_t local_end = 0;

    [[nodiscard]] bool ranges() const { return !lengths.empty(); }
    // Walks over one side, `local` or `remote`, of memory at `base`; `nbytes` in all.
    [[nodiscard]] Extents walk(uint64_t base, const PageNumbers& side, uint64_t nbytes) const {
        return ranges() ? Extents(base, side.data(), lengths.data(), nbytes)
                        : Extents(base, side.data(), side.size(), page_bytes);
    }
};

// The numbers of one side of a list of ranges, as a caller gives them: offsets from `base`, in memory of `nbytes` from
// there.
struct RangeSide {
    std::span<const int64_t> offsets;
    uint64_t base = 0;
    uint64_t nbytes = 0;
};

// Holds a list of ranges, or says which side of it was refused.
struct MadeRanges {
    std::shared_ptr<const PageList> list; // null if all ranges are empty
    uint64_t nbytes = 0;                  // of all ranges
    bool local_inside = true;             // no number is negative, and no range reaches beyond the memory here
    bool remote_inside = true;            // likewise; empty ranges may lie anywhere there
};

// Copies the numbers of a list of ranges, which other threads may change meanwhile. Drops empty ranges and joins those
// that follow each other on both sides. The three lists have the same length. Stops at the first that is not inside.
[[nodiscard]] MadeRanges make_ranges(const RangeSide& local, const RangeSide& remote, std::span<const int64_t> lengths);

// Copies the numbers and sets `most` to the largest; false if one is negative.
[[nodiscard]] bool copy_numbers(std::span<const int64_t> from, uint64_t* to, uint64_t& most);
// Copies the numbers into 32 bits; false if one does not fit.
[[nodiscard]] bool narrow_numbers(std::span<const uint64_t> from, uint32_t* to);
// Returns the largest number; 0 if there is none.
[[nodiscard]] uint64_t largest_number(std::span<const uint64_t> numbers);

// Returns the same pairs of pages sorted by remote page, if these lie so densely that most have neighbours: a NIC then
// moves several pages with one request. Returns the list itself if sorting gains nothing, or if the list names a remote
// page twice. Takes linear time.
[[nodiscard]] std::shared_ptr<const PageList> in_remote_order(std::shared_ptr<const PageList> pages);

} // namespace zerohop
