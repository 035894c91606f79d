// The pages of one operation, on both sides.
#pragma once

#include "base/extents.hpp"

#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <utility>
#include <vector>

namespace zerohop {

// Leaves what it makes as it finds it: lists have thousands of numbers, each of which is written at once.
template <class T> struct Unfilled : std::allocator<T> {
    template <class U> struct rebind { // NOLINT(readability-identifier-naming): the name that allocators have it by
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
    PageNumbers remote; // as many
    uint64_t page_bytes = 0;
    uint64_t remote_end = 0; // one past the largest number of `remote`; 0: nobody has looked
    // Not empty: pages of one byte are where so many begin, and `remote_end` is past the last byte of all.
    PageNumbers lengths;

    [[nodiscard]] bool ranges() const { return !lengths.empty(); }
    // One side of them, which is in memory at `base`; `nbytes` in all.
    [[nodiscard]] Extents walk(uint64_t base, const PageNumbers& side, uint64_t nbytes) const {
        return ranges() ? Extents(base, side.data(), lengths.data(), nbytes)
                        : Extents(base, side.data(), side.size(), page_bytes);
    }
};

// Copies the numbers; false where one is negative. `most` is the largest of the others.
[[nodiscard]] bool copy_numbers(std::span<const int64_t> from, uint64_t* to, uint64_t& most);
// The same into 32 bits; false where one does not fit.
[[nodiscard]] bool narrow_numbers(std::span<const uint64_t> from, uint32_t* to);
// The largest number; 0 of none.
[[nodiscard]] uint64_t largest_number(std::span<const uint64_t> numbers);

// The same pairs of pages in the order of the remote ones, where these lie so closely that most have neighbours: a NIC
// then moves several of them with one request. The list itself where nothing is gained, or a remote page is in it
// twice. Takes linear time.
[[nodiscard]] std::shared_ptr<const PageList> in_remote_order(std::shared_ptr<const PageList> pages);

} // namespace zerohop
