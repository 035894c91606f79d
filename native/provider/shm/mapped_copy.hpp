// A copy between memory of ours and a peer's memory that is mapped here, done in slices by whoever polls.
#pragma once

#include "accel/driver.hpp"
#include "engine/operation.hpp"
#include "memory/extents.hpp"
#include "memory/region.hpp"
#include "provider/provider.hpp"

#include <cstdint>
#include <deque>
#include <memory>

namespace zerohop {
class Accelerators;
} // namespace zerohop

namespace zerohop::shm {

class MappedCopy {
public:
    // `request.route->mapping` is not null; both pins are held until the copy is destroyed.
    MappedCopy(Accelerators& accelerators, const Request& request, Pin<Region> local, Pin<Mapping> remote);

    // Moves at most `budget` bytes; how many.
    uint64_t step(uint64_t budget);
    [[nodiscard]] bool done();
    // Device copies wake nobody.
    [[nodiscard]] bool on_device() const { return on_device_; }
    [[nodiscard]] Outcome outcome() const { return outcome_; }
    // Starts nothing more; done() once the device copies that run have ended.
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
    uint64_t step_on_device(uint64_t budget);

    Accelerators& accelerators_;
    Pin<Region> local_;
    Pin<Mapping> remote_;
    std::shared_ptr<const PageList> pages_;
    Extents dst_;
    Extents src_;
    const uint64_t nbytes_;
    const int64_t notify_;
    const bool on_device_;
    const bool outbound_;
    bool streaming_ = false;
    bool stopped_ = false;
    Outcome outcome_;
    std::deque<std::shared_ptr<accel::Event>> events_;
};

} // namespace zerohop::shm
