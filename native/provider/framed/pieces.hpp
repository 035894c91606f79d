// Sees that the pieces of a read or of a message come in order, so that no gap is left: the bytes there would be this
// side's own, and a program that passes them on would give them to the peer.
#pragma once

#include <cstdint>
#include <vector>

namespace zerohop::framed {

class Pieces {
public:
    Pieces() = default;
    // Of several requests, whose pieces may come in any order among each other; each asks for so many bytes, the last
    // one perhaps for fewer.
    Pieces(uint32_t requests, uint64_t request_bytes)
        : more_(requests > 1 ? requests : 0), request_bytes_(request_bytes) {}

    // Returns false unless the piece follows the one before it.
    [[nodiscard]] bool take(uint64_t offset, uint64_t nbytes) {
        if (nbytes == 0) {
            return true;
        }
        total_ += nbytes;
        if (more_.empty()) {
            return offset == total_ - nbytes;
        }
        const uint64_t request = offset / request_bytes_;
        if (request >= more_.size()) {
            return false;
        }
        uint64_t& got = more_[request];
        const bool follows = offset - request * request_bytes_ == got && nbytes <= request_bytes_ - got;
        got += nbytes;
        return follows;
    }
    // Returns how many bytes have come.
    [[nodiscard]] uint64_t total() const { return total_; }

private:
    uint64_t total_ = 0;
    std::vector<uint64_t> more_; // bytes of each request, if there are several
    uint64_t request_bytes_ = 0;
};

} // namespace zerohop::framed
