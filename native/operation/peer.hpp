// What the data plane knows of a peer Context: whether it is on this host, and whether it lives.
#pragma once

#include "base/status.hpp"
#include "operation/presence.hpp"

#include <atomic>
#include <memory>

namespace zerohop {

class Peer {
public:
    Peer(int id, std::unique_ptr<PeerPresence> presence) : id_(id), presence_(std::move(presence)) {}

    int id() const { return id_; }
    bool same_host() const { return presence_ != nullptr; }
    // Null for a peer on another host.
    const PeerPresence* presence() const { return presence_.get(); }

    Outcome state() const { return state_.load(std::memory_order_acquire); }
    // The first loss counts; false when it was lost before.
    bool lose(Outcome outcome) {
        Outcome expected;
        return state_.compare_exchange_strong(expected, outcome, std::memory_order_acq_rel);
    }
    // Looked at around each transfer that needs no answer, so that success is never reported to a dead peer.
    bool dead() const { return presence_ && presence_->life() != PeerPresence::Life::alive; }

private:
    const int id_;
    std::unique_ptr<PeerPresence> presence_;
    std::atomic<Outcome> state_{};
};

} // namespace zerohop
