// The contract of work that an engine's poller drives beside its lanes, such as the reads and writes of files.
#pragma once

#include "base/status.hpp"
#include "operation/operation.hpp"
#include "provider/lane.hpp"

#include <cstdint>

namespace zerohop {

class Work {
public:
    virtual ~Work() = default;
    // Poller. Moves what can be moved now; true if it moved something.
    [[nodiscard]] virtual bool poll() = 0;
    // Returns a descriptor that is readable while poll() would move something that the system has ended; -1: none,
    // since the system has no part in it.
    [[nodiscard]] virtual int fd() const = 0;
    // Any thread. Says what is left to do, and when.
    [[nodiscard]] virtual Backlog backlog() const = 0;
    // Poller. Takes no more, and ends with `outcome` what has not begun.
    virtual void close(Outcome outcome) = 0;
    // Any thread: true once it is closed and nothing touches memory on its behalf any more.
    [[nodiscard]] virtual bool idle() const = 0;
    // Any thread. Returns an operation that ends with all that this work has under way now at a peer (-1: at any); null
    // if there is nothing.
    [[nodiscard]] virtual OpRef under_way_at(int /*peer*/) { return {}; }
    // Gives it up in a forked child, where its threads do not exist.
    virtual void abandon() = 0;
};

} // namespace zerohop
