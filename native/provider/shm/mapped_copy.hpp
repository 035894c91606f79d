// A copy between host memory of ours and a peer's that is mapped here, done in slices by whoever polls.
#pragma once

#include "base/extents.hpp"
#include "memory/region.hpp"
#include "operation/operation.hpp"
#include "provider/provider.hpp"

#include <cstdint>
#include <memory>

namespace zerohop::shm {

class MappedCopy {
public:
    // `request.route->mapping` is not null; both pins are held until the copy is destroyed.
    MappedCopy(const Request& request, Pin<Region> local, Pin<Mapping> remote);

    // Moves at most `budget` bytes; how many.
    uint64_t step(uint64_t budget);
    [[nodiscard]] bool done() const { return stopped_ || src_.left() == 0; }
    // Moves nothing more.
    void stop() { stopped_ = true; }
    // Lets go of both memories.
    void release() {
        local_.reset();
        remote_.reset();
    }

    uint64_t nbytes() const { return nbytes_; }
    int64_t notify() const { return notify_; }

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
    bool streaming_ = false;
    bool stopped_ = false;
};

} // namespace zerohop::shm
