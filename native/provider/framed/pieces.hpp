// Sees that the pieces of a read or of a message come in order, so that no gap is left: the bytes there would be this
// side's own, and a program that passes them on would give them to the peer.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace zerohop::framed {

class Pieces {
public:
    // Follows the pieces of one request.
    Pieces() = default;
    // Follows those of several requests, which begin at these bytes of the operation, the first at 0. Pieces of
    // different requests may come in any order.
    explicit Pieces(std::vector<uint64_t> begins) : begins_(std::move(begins)), next_(begins_) {}

    // Returns false unless the piece follows the one before it.
    [[nodiscard]] bool take(uint64_t offset, uint64_t nbytes) {
        if (nbytes == 0) {
            return true;
        }
        total_ += nbytes;
        if (begins_.empty()) {
            return offset == total_ - nbytes;
        }
        const auto after = std::upper_bound(begins_.begin(), begins_.end(), offset);
        uint64_t& next = next_[static_cast<size_t>(after - begins_.begin()) - 1];
        const bool follows = offset == next && (after == begins_.end() || nbytes <= *after - offset);
        next += nbytes;
        return follows;
    }
    // Returns how many bytes have come.
    [[nodiscard]] uint64_t total() const { return total_; }

private:
    uint64_t total_ = 0;
    std::vector<uint64_t> begins_; // empty: there is one request
    std::vector<uint64_t> next_;   // where the next piece of each has to begin
};

} // namespace zerohop::framed
