// Copies between host memory of this process and a peer's that is mapped here. The poller moves them by slices.
#pragma once

#include "base/extents.hpp"
#include "base/guarded.hpp"
#include "base/status.hpp"
#include "memory/region.hpp"
#include "operation/operation.hpp"
#include "provider/request.hpp"

#include <cstdint>
#include <memory>
#include <utility>

namespace zerohop::shm {

// A peer's memory that is mapped here.
struct MappedAccess final : RemoteAccess {
    explicit MappedAccess(std::shared_ptr<Mapping> remote)
        : RemoteAccess(remote->nbytes(), remote->writable() ? kRightRead | kRightWrite : kRightRead, true),
          mapping(std::move(remote)) {}
    Outcome pin(Place& place) const override {
        Pin<Mapping> pin = Pin<Mapping>::of(mapping);
        if (!pin) {
            return {Status::access_denied, Reason::revoked};
        }
        place = {.pin = std::move(pin),
                 .host = mapping->data(),
                 .nbytes = nbytes,
                 .identity = mapping.get(),
                 .foreign = true};
        return {};
    }
    std::shared_ptr<const void> pinned() const override { return mapping; }
    const std::shared_ptr<Mapping> mapping;
};

class MappedCopy {
public:
    // Both memories stay pinned until release(), or the copy's destruction.
    MappedCopy(const Request& request, Pin<Region> local, Pin<Mapping> remote);

    // Moves at most `budget` bytes, and returns how many.
    uint64_t step(uint64_t budget);
    [[nodiscard]] bool done() const { return stopped_ || src_.left() == 0; }
    // Moves nothing more.
    void stop() { stopped_ = true; }
    // Not ok once the memory of one side is found gone, which stops it, or the local bytes have moved. Ask before
    // release().
    [[nodiscard]] Outcome outcome() const {
        return gone_ == Gone::nothing                ? (local_->moved() ? kLocalMoved : Outcome{})
               : (gone_ == Gone::first) == outbound_ ? kMemoryGone
                                                     : kLocalMemoryGone;
    }
    // Lets go of both memories.
    void release() {
        local_.reset();
        remote_.reset();
    }

    uint64_t nbytes() const { return nbytes_; }
    int64_t notify() const { return notify_; }
    const Message& message() const { return message_; }

    OpRef op;
    uint64_t epoch = 0;

private:
    Pin<Region> local_;
    Pin<Mapping> remote_;
    std::shared_ptr<const PageList> pages_;
    Extents dst_;
    Extents src_;
    const uint64_t nbytes_;
    const int64_t notify_;
    const Message message_;
    const bool outbound_;
    bool streaming_ = false;
    bool stopped_ = false;
    Gone gone_ = Gone::nothing;
};

} // namespace zerohop::shm
