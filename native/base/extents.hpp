// A walk over the bytes of an operation on one side: one contiguous range, a list of equal pages, or one of ranges.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace zerohop {

class Extents {
public:
    Extents() = default;
    Extents(uint64_t base, uint64_t nbytes) : base_(base), left_(nbytes) {}
    // `pages` must outlive the walk.
    Extents(uint64_t base, const uint64_t* pages, size_t count, uint64_t page_bytes)
        : base_(base), left_(count * page_bytes), pages_(pages), page_bytes_(page_bytes) {}
    // `nbytes` in all, lengths[i] of them from base + offsets[i] on; none is 0. Both lists must outlive the walk.
    Extents(uint64_t base, const uint64_t* offsets, const uint64_t* lengths, uint64_t nbytes)
        : base_(base), left_(nbytes), pages_(offsets), lengths_(lengths), page_bytes_(1) {}

    uint64_t left() const { return left_; }
    bool paged() const { return pages_ != nullptr; }
    // Of its parts, each has a length of its own.
    bool ranged() const { return lengths_ != nullptr; }
    uint64_t page_bytes() const { return page_bytes_; }
    // List positions; only where within() is 0 is it the start of a page, or of a range.
    const uint64_t* page() const { return pages_; }
    const uint64_t* lengths() const { return lengths_; }
    uint64_t within() const { return within_; }

    // Address of the next byte, and how many follow it without a gap.
    uint64_t address() const { return paged() ? base_ + *pages_ * page_bytes_ + within_ : base_; }
    uint64_t contiguous() const { return paged() ? std::min(left_, part_bytes() - within_) : left_; }

    // Where the page `count` after this one lies; 0 if there is none.
    uint64_t page_ahead(size_t count) const {
        return paged() && !ranged() && within_ == 0 && left_ > count * page_bytes_ ? base_ + pages_[count] * page_bytes_
                                                                                   : 0;
    }

    // Past `nbytes`, which may span pages.
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
        if (within_ == page_bytes_) { // the usual step, without two divisions
            within_ = 0;
            ++pages_;
            return;
        }
        pages_ += within_ / page_bytes_;
        within_ %= page_bytes_;
    }

    // The first `nbytes` of what is left, as a walk of its own.
    Extents first(uint64_t nbytes) const {
        Extents part = *this;
        part.left_ = std::min(left_, nbytes);
        return part;
    }

    // How much to move as one unit of at most `limit` bytes and `most` pages or ranges, so that it is either whole ones
    // or a part of one.
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
