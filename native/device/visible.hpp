// Knows up to which of a peer's entries the bytes can be seen at the peer.
//
// On most lanes that is all that have ended. A NIC's completion says only that the peer's NIC has the bytes, and of two
// queue pairs neither waits for the other. A flush of the lane shows them.
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
    // Before the first entry. Bytes go over this lane, and are seen after a flush.
    void flush_over(std::shared_ptr<Endpoint> endpoint);

    // Returns how many entries can be seen of those that have ended.
    [[nodiscard]] uint64_t of(uint64_t ended) const { return endpoints_.empty() ? ended : shown_; }
    // Takes the end of a flush, and begins the next one if entries have ended that cannot be seen. Returns true if
    // something has moved. `now_ns`, `deadline_ns`: of the flush.
    [[nodiscard]] bool advance(Engine& engine, uint64_t ended, uint64_t now_ns, uint64_t deadline_ns);
    // Returns the first failure of a flush. What it should have shown counts as shown.
    [[nodiscard]] Outcome outcome() const { return outcome_; }

private:
    [[nodiscard]] bool begin(Engine& engine, uint64_t now_ns, uint64_t deadline_ns);
    [[nodiscard]] bool end();

    std::vector<std::shared_ptr<Endpoint>> endpoints_;
    std::vector<OpRef> flushes_; // under way
    size_t begun_ = 0;           // lanes that the flush has begun on
    uint64_t shown_ = 0;
    uint64_t upto_ = 0; // entries that the flush shows
    Outcome outcome_;
};

} // namespace zerohop::device
