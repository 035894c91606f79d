// Walks over the bytes of an operation on one side: one contiguous range, a list of equal pages, or a list of ranges.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace zerohop {

class Extents {
public:
    Extents() = default;
    Extents(uint64_t base, uint64_t nbytes) : base_(base), left_(nbytes) {}
    // Walks over `count` equal pages; `pages` must outlive the walk.
    Extents(uint64_t base, const uint64_t* pages, size_t count, uint64_t page_bytes)
        : base_(base), left_(count * page_bytes), pages_(pages), page_bytes_(page_bytes) {}
    // Walks over ranges: lengths[i] bytes from base + offsets[i] on, `nbytes` in all; no length is 0. Both lists must
    // outlive the walk.
    Extents(uint64_t base, const uint64_t* offsets, const uint64_t* lengths, uint64_t nbytes)
        : base_(base), left_(nbytes), pages_(offsets), lengths_(lengths), page_bytes_(1) {}

    uint64_t left() const { return left_; }
    bool paged() const { return pages_ != nullptr; }
    // True if the parts are ranges, each with a length of its own.
    bool ranged() const { return lengths_ != nullptr; }
    uint64_t page_bytes() const { return page_bytes_; }
    // Return the current list positions. They are the start of a page or range only if within() is 0.
    const uint64_t* page() const { return pages_; }
    const uint64_t* lengths() const { return lengths_; }
    uint64_t within() const { return within_; }

    // Return the address of the next byte, and the number of bytes that follow without a gap.
    uint64_t address() const { return paged() ? base_ + *pages_ * page_bytes_ + within_ : base_; }
    uint64_t contiguous() const { return paged() ? std::min(left_, part_bytes() - within_) : left_; }

    // Returns the address of the page `count` after this one; 0 if there is none.
    uint64_t page_ahead(size_t count) const {
        return paged() && !ranged() && within_ == 0 && left_ > count * page_bytes_ ? base_ + pages_[count] * page_bytes_
                                                                                   : 0;
    }

    // Moves on by `nbytes`, which may span pages.
    void advance(uint64_t nbytes) {
        left_ -= nbytes;
        if (!paged()) {
            base_ += nbytes;
            return;
        }
        within_ += nbytes;
        if (ranged()) {
            while (left_ != 0 && within_ >= *lengths_) {
                within_ -= *lengths_++;
                ++pages_;
            }
            return;
        }
        if (within_ < page_bytes_) {
            return;
        }
        if (within_ == page_bytes_) { // the usual case, kept free of the two divisions below
            within_ = 0;
            ++pages_;
            return;
        }
        pages_ += within_ / page_bytes_;
        within_ %= page_bytes_;
    }

    // Returns a walk over the first `nbytes` of what is left.
    Extents first(uint64_t nbytes) const {
        Extents part = *this;
        part.left_ = std::min(left_, nbytes);
        return part;
    }

    // Returns the bytes to move as one unit, of at most `limit` bytes and `most` pages or ranges: either whole pages or
    // ranges, or a part of one.
    uint64_t unit(uint64_t limit, size_t most) const {
        if (!paged()) {
            return std::min(left_, limit);
        }
        if (within_ != 0 || part_bytes() >= limit) {
            return std::min(contiguous(), limit);
        }
        if (!ranged()) {
            return std::min(left_, std::min(limit, page_bytes_ * most) / page_bytes_ * page_bytes_);
        }
        uint64_t nbytes = 0;
        for (size_t i = 0; i < most && nbytes < left_ && lengths_[i] <= limit - nbytes; ++i) {
            nbytes += lengths_[i];
        }
        return std::min(nbytes, left_);
    }

private:
    uint64_t part_bytes() const { return ranged() ? *lengths_ : page_bytes_; }

    uint64_t base_ = 0;
    uint64_t left_ = 0;
    const uint64_t* pages_ = nullptr;
    const uint64_t* lengths_ = nullptr;
    uint64_t page_bytes_ = 0;
    uint64_t within_ = 0;
};

} // namespace zerohop
