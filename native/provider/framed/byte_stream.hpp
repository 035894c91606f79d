// The stream that the framed protocol runs over: bytes, in order, reliable, never blocking.
#pragma once

#include "base/extents.hpp"
#include "base/status.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <sys/uio.h>

namespace zerohop::framed {

class ByteStream {
public:
    virtual ~ByteStream() = default;
    // Returned if the memory of the first piece was gone, and nothing was moved.
    static constexpr size_t kGone = SIZE_MAX;
    // Takes as many bytes as there is room for; 0: come back later, or the stream has ended (see state()).
    // kGone: see there.
    [[nodiscard]] virtual size_t send(std::span<const iovec> pieces) = 0;
    // Fills as much as there is, or returns kGone. `streaming`: the destination is large, spare the cache.
    [[nodiscard]] virtual size_t receive(std::span<const iovec> pieces, bool streaming) = 0;
    // True if it is certain, without a system call, that receive() would find nothing.
    [[nodiscard]] virtual bool knows_empty() const { return false; }
    // True if receive() or, while `wants_room`, send() would do something.
    [[nodiscard]] virtual bool ready(bool wants_room) const = 0;
    // Tells whether the lane has bytes that it could not send; called when that changes.
    virtual void want_room(bool wanted) = 0;
    // Returns how many of the bytes that send() took have not reached the peer's host, as far as that matters: close()
    // may drop them.
    [[nodiscard]] virtual uint64_t under_way() const { return 0; }
    // Returns ok while both directions work.
    [[nodiscard]] virtual Outcome state() const = 0;
    // `at_once`: the peer has broken the protocol; it may not go on sending, and need not get what is on its way.
    virtual void close(bool at_once) = 0;
};

// Lists the first `max` pieces of a walk over host memory, for a stream; returns how many there are.
inline size_t pieces_of(Extents walk, iovec* pieces, size_t max) {
    size_t count = 0;
    while (count < max && walk.left() != 0) {
        const uint64_t n = walk.contiguous();
        pieces[count++] = {reinterpret_cast<void*>(walk.address()), n};
        walk.advance(n);
    }
    return count;
}

} // namespace zerohop::framed
