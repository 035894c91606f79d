// Holds what the data plane knows of a peer Context: whether it runs on this host, and whether it is alive.
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
    // Returns null for a peer on another host.
    const PeerPresence* presence() const { return presence_.get(); }

    Outcome state() const { return state_.load(std::memory_order_acquire); }
    // Marks the peer as lost. The first loss counts; false if the peer was lost before.
    bool lose(Outcome outcome) {
        Outcome expected;
        return state_.compare_exchange_strong(expected, outcome, std::memory_order_acq_rel);
    }
    // True if the peer on this host has died or closed. Checked around each transfer that needs no answer, so that a
    // transfer to a dead peer never counts as a success.
    bool dead() const { return presence_ && presence_->life() != PeerPresence::Life::alive; }

private:
    const int id_;
    std::unique_ptr<PeerPresence> presence_;
    std::atomic<Outcome> state_{};
};

} // namespace zerohop
