// A walk over the bytes of an operation on one side: one contiguous range, or a list of equal pages.
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

    uint64_t left() const { return left_; }
    bool paged() const { return pages_ != nullptr; }
    uint64_t page_bytes() const { return page_bytes_; }
    // Index list position; only where within() is 0 is it the start of a page.
    const uint64_t* page() const { return pages_; }
    uint64_t within() const { return within_; }

    // Address of the next byte, and how many follow it without a gap.
    uint64_t address() const { return paged() ? base_ + *pages_ * page_bytes_ + within_ : base_; }
    uint64_t contiguous() const { return paged() ? std::min(left_, page_bytes_ - within_) : left_; }

    // Where the page `count` after this one lies; 0 if there is none.
    uint64_t page_ahead(size_t count) const {
        return paged() && within_ == 0 && left_ > count * page_bytes_ ? base_ + pages_[count] * page_bytes_ : 0;
    }

    // Past `nbytes`, which may span pages.
    void advance(uint64_t nbytes) {
        left_ -= nbytes;
        if (!paged()) {
            base_ += nbytes;
            return;
        }
        within_ += nbytes;
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

    // How much to move as one unit of at most `limit` bytes, so that it is either whole pages or a part of one.
    uint64_t unit(uint64_t limit) const {
        if (!paged()) {
            return std::min(left_, limit);
        }
        if (within_ != 0 || page_bytes_ >= limit) {
            return std::min(contiguous(), limit);
        }
        return std::min(left_, limit / page_bytes_ * page_bytes_);
    }

private:
    uint64_t base_ = 0;
    uint64_t left_ = 0;
    const uint64_t* pages_ = nullptr;
    uint64_t page_bytes_ = 0;
    uint64_t within_ = 0;
};

} // namespace zerohop
