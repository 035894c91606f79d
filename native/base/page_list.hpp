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

// Leaves new elements uninitialized: lists have thousands of numbers, and each is written at once anyway.
template <class T> struct Unfilled : std::allocator<T> {
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
    // size of each range, and `remote_end` is one past the last byte of all.
    PageNumbers lengths;

    [[nodiscard]] bool ranges() const { return !lengths.empty(); }
    // Walks over one side, `local` or `remote`, of memory at `base`; `nbytes` in all.
    [[nodiscard]] Extents walk(uint64_t base, const PageNumbers& side, uint64_t nbytes) const {
        return ranges() ? Extents(base, side.data(), lengths.data(), nbytes)
                        : Extents(base, side.data(), side.size(), page_bytes);
    }
};

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
