// Where outgoing payload comes from: host memory itself, or device memory through staging buffers.
#pragma once

#include "base/extents.hpp"
#include "base/status.hpp"
#include "memory/region.hpp"

#include <cstdint>
#include <memory>
#include <sys/uio.h>

namespace zerohop {
class Staging;
} // namespace zerohop

namespace zerohop::framed {

class Source {
public:
    virtual ~Source() = default;
    // Returns the bytes of the next frame if they are ready now: whole pages, or a part of one; 0: not yet.
    [[nodiscard]] virtual uint32_t unit() = 0;
    // Lists the next bytes of the unit, at most `limit`; returns how many pieces were filled in.
    [[nodiscard]] virtual size_t gather(iovec* pieces, size_t max, uint64_t limit) = 0;
    virtual void consume(uint64_t nbytes) = 0;
    // Returns the bytes that no frame has taken yet.
    [[nodiscard]] virtual uint64_t left() const = 0;
    // Not ok once a device copy has failed, or the memory is found gone (kLocalMemoryGone) or moved (kLocalMoved).
    [[nodiscard]] Outcome outcome() const { return outcome_; }
    // Sends zeros from here on: the memory was revoked in the middle of a frame whose size is already promised.
    virtual void blank() = 0;
    // True if the memory may move or be gone while its bytes are sent.
    [[nodiscard]] virtual bool may_change() const { return false; }
    // Takes note that the memory is gone or has moved, and sends zeros from here on.
    void lose(Outcome why) {
        outcome_ = why;
        blank();
    }
    // True once no device copy is running any more.
    [[nodiscard]] virtual bool settled() = 0;

protected:
    void set_outcome(Outcome outcome) { outcome_ = outcome; }

private:
    Outcome outcome_;
};

// `pages` keeps alive what `extents` points into.
[[nodiscard]] std::unique_ptr<Source> make_source(Staging& staging, Pin<Region> region, Extents extents,
                                                  std::shared_ptr<const void> pages);

} // namespace zerohop::framed
