// What the data plane knows of a peer Context: whether it is on this host, and whether it lives.
#pragma once

#include "engine/presence.hpp"
#include "engine/status.hpp"

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

    Outcome state() const { return {status_.load(std::memory_order_acquire), reason_.load(std::memory_order_relaxed)}; }
    // The first loss counts; false when it was lost before.
    bool lose(Outcome outcome) {
        Status expected = Status::ok;
        reason_.store(outcome.reason, std::memory_order_relaxed);
        return status_.compare_exchange_strong(expected, outcome.status, std::memory_order_acq_rel);
    }
    // Looked at around each transfer that needs no answer, so that success is never reported to a dead peer.
    bool dead() const { return presence_ && presence_->life() != PeerPresence::Life::alive; }

private:
    const int id_;
    std::unique_ptr<PeerPresence> presence_;
    std::atomic<Status> status_{Status::ok};
    std::atomic<Reason> reason_{Reason::none};
};

} // namespace zerohop
