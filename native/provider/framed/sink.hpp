// Where incoming payload goes: host memory itself, or device memory through staging buffers.
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

class Sink {
public:
    virtual ~Sink() = default;
    // Has the next frame's payload go to `extents`, which stay valid until end_frame(). False: no staging buffer is
    // free, come back later. If there can be none, outcome() says so, and the payload is not to be placed.
    [[nodiscard]] virtual bool begin_frame(Extents extents) = 0;
    // Finds room for the next bytes of the frame, at most `limit`; returns how many pieces were filled in.
    [[nodiscard]] virtual size_t scatter(iovec* pieces, size_t max, uint64_t limit) = 0;
    virtual void consume(uint64_t nbytes) = 0;
    // Ends the frame; `keep` false throws its payload away (as far as it has not been placed).
    virtual void end_frame(bool keep) = 0;
    // True once no device copy is running any more. outcome() is then final for what has come so far.
    [[nodiscard]] virtual bool settled() = 0;
    [[nodiscard]] virtual Outcome outcome() const = 0;
};

[[nodiscard]] std::unique_ptr<Sink> make_sink(Staging& staging, Pin<Region> region);

} // namespace zerohop::framed
