// Tracks which of a peer's ended entries are visible in the peer's memory. Numbers are indexes in the FIFO.
//
// On most lanes an entry is visible when it has ended. Over RDMA a completion says only that the peer's NIC has the
// bytes, and queue pairs are not ordered with each other: there an entry is visible after a later flush of each lane
// that it may have used.
#pragma once

#include "engine/engine.hpp"
#include "provider/request.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace zerohop::device {

class Visible {
public:
    // Adds a lane that needs a flush, before the first entry; adding one twice does nothing.
    void add_lane(std::shared_ptr<Endpoint> endpoint);

    // Returns the index before which entries are visible, of those before `ended`.
    [[nodiscard]] uint64_t count(uint64_t ended) const { return endpoints_.empty() ? ended : shown_; }
    // Collects a flush that has ended on all lanes, and begins the next one if some ended entries are not visible.
    // Returns true if anything has changed. The times are the flush's, of now_ns().
    [[nodiscard]] bool advance(Engine& engine, uint64_t ended, uint64_t now_ns, uint64_t deadline_ns);
    // Returns the first failure of a flush. Entries of a flush that failed count as visible, so that waits end; the
    // caller reports the failure.
    [[nodiscard]] Outcome outcome() const { return outcome_; }

private:
    [[nodiscard]] bool begin_flush(Engine& engine, uint64_t now_ns, uint64_t deadline_ns);
    [[nodiscard]] bool collect_flush();

    std::vector<std::shared_ptr<Endpoint>> endpoints_;
    std::vector<OpRef> flushes_; // under way
    size_t begun_ = 0;           // lanes that the flush has begun on
    uint64_t shown_ = 0;
    uint64_t upto_ = 0; // the index before which the flush makes them visible
    Outcome outcome_;
};

} // namespace zerohop::device
