// Walks over pieces of host memory, and copies them into a ring or out of it.
#pragma once

#include "base/guarded.hpp"
#include "base/payload.hpp"
#include "memory/copy.hpp"
#include "provider/framed/tuning.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <sys/uio.h>

namespace zerohop::framed {

class PieceWalk {
public:
    explicit PieceWalk(std::span<const iovec> pieces) : pieces_(pieces) {
        uint64_t first = UINT64_MAX;
        uint64_t end = 0;
        for (const iovec& piece : pieces) {
            if (piece.iov_len != 0) {
                const auto address = reinterpret_cast<uint64_t>(piece.iov_base);
                first = std::min(first, address);
                end = std::max(end, address + piece.iov_len);
            }
        }
        around_ = {first, end - first};
        advance(0);
    }

    [[nodiscard]] bool done() const { return index_ == pieces_.size(); }

    // Copies up to `limit` bytes of the pieces into the ring, and moves on behind them. A piece that is gone stops the
    // walk, and none of its bytes count.
    [[nodiscard]] Copied copy_out(std::byte* ring, size_t limit) {
        if (is_one_piece(limit)) {
            const size_t nbytes = contiguous(limit);
            return moved(copy_cached(ring, here(), nbytes), nbytes);
        }
        return copy_several(limit, {reinterpret_cast<uint64_t>(ring), limit}, around_, [&](size_t at, size_t nbytes) {
            const size_t soon = index_ + kPiecesAhead;
            if (within_ == 0 && soon < pieces_.size()) {
                prefetch(pieces_[soon].iov_base, pieces_[soon].iov_len);
            }
            copy_payload(ring + at, here(), nbytes);
        });
    }

    // Copies up to `limit` bytes out of the ring into the pieces, and stops like copy_out(). `streaming`: past the
    // cache; a fence of stores has to follow.
    [[nodiscard]] Copied copy_in(const std::byte* ring, size_t limit, bool streaming) {
        if (is_one_piece(limit)) {
            const size_t nbytes = contiguous(limit);
            return moved(streaming ? copy_streaming(here(), ring, nbytes) : copy_cached(here(), ring, nbytes), nbytes);
        }
        const auto copy = streaming ? stream_payload : copy_payload;
        return copy_several(limit, around_, {reinterpret_cast<uint64_t>(ring), limit},
                            [&](size_t at, size_t nbytes) { copy(here(), ring + at, nbytes); });
    }

private:
    [[nodiscard]] std::byte* here() const { return static_cast<std::byte*>(pieces_[index_].iov_base) + within_; }
    [[nodiscard]] size_t contiguous(size_t limit) const { return std::min(pieces_[index_].iov_len - within_, limit); }
    [[nodiscard]] bool is_one_piece(size_t limit) const {
        return index_ + 1 == pieces_.size() || pieces_[index_].iov_len - within_ >= limit;
    }

    void advance(size_t nbytes) {
        within_ += nbytes;
        while (index_ != pieces_.size() && within_ == pieces_[index_].iov_len) {
            within_ = 0;
            ++index_;
        }
    }

    Copied moved(Gone gone, size_t nbytes) {
        if (gone != Gone::nothing) {
            return {0, gone};
        }
        advance(nbytes);
        return {nbytes, gone};
    }

    // One guard for several pieces: one for each takes as long as to copy some hundred bytes.
    template <class Copy>
    Copied copy_several(size_t limit, const Touched& to, const Touched& from, const Copy& copy) {
        Copied copied;
        copied.gone = guarded(to, from, [&] {
            while (copied.nbytes < limit && !done()) {
                const size_t nbytes = contiguous(limit - copied.nbytes);
                copy(copied.nbytes, nbytes);
                copied.nbytes += nbytes;
                advance(nbytes);
            }
        });
        return copied;
    }

    std::span<const iovec> pieces_;
    Touched around_; // from the first byte of a piece to the last of any
    size_t index_ = 0;
    size_t within_ = 0;
};

} // namespace zerohop::framed
