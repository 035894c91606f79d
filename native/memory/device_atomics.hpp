// Runs atomics on device memory that no fabric reaches: reads, changes and writes back through staging, one after the
// other, so that all staged atomics of a Context are atomic towards each other. The poller drives it.
#pragma once

#include "base/status.hpp"
#include "memory/share.hpp"
#include "memory/staging.hpp"

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>

namespace zerohop {

struct DeviceAtomic {
    bool swap = false;
    uint64_t operand = 0;
    uint64_t compare = 0;
    std::shared_ptr<Share> share; // its device_copies counts this atomic
    Pin<Region> region;
    uint64_t address = 0;
    std::function<void(Outcome, uint64_t old)> done;
};

class DeviceAtomics {
public:
    explicit DeviceAtomics(Accelerators& accelerators) : staging_(accelerators) {}
    void push(DeviceAtomic atomic) { queue_.push_back(std::move(atomic)); }
    // Moves the first atomic on; true if it made progress.
    bool poll();
    [[nodiscard]] bool empty() const { return queue_.empty(); }

private:
    bool begin_copy(bool back);
    void finish(Outcome outcome);

    Staging staging_;
    std::deque<DeviceAtomic> queue_;
    StagingBuffer buffer_;
    std::shared_ptr<accel::Event> event_; // the copy of the first atomic
    bool writing_ = false;
    uint64_t old_ = 0;
};

} // namespace zerohop
