// Threads beside the poller, for links that carry large transfers alone. One thread copies no faster than one core can,
// which is less than most networks carry.
#pragma once

#include "provider/watcher.hpp"

#include <memory>

namespace zerohop {

// A link that one bulk thread polls.
class BulkLink {
public:
    virtual ~BulkLink() = default;
    // Moves what can be moved now; true if it moved something. Only the link's thread calls this.
    [[nodiscard]] virtual bool move() = 0;
    // Returns true while it has to be asked again and again, because a device, which wakes nobody, works for it.
    [[nodiscard]] virtual bool waits_for_device() const = 0;
};

// One thread, which sleeps while none of its links has anything to do.
class BulkThread : public Watcher {
public:
    virtual void add(std::shared_ptr<BulkLink> link) = 0;
    // The thread may call move() once more after this has returned.
    virtual void remove(const BulkLink& link) = 0;
};

} // namespace zerohop
