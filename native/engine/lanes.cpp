// Peers, the lanes to them, and the domains that lanes are made over.
#include "engine/engine.hpp"

#include <algorithm>
#include <iterator>

namespace zerohop {

std::shared_ptr<Peer> Engine::add_peer(int presence_fd, int doorbell_fd) {
    std::unique_ptr<PeerPresence> presence;
    if (presence_fd >= 0) {
        presence = std::make_unique<PeerPresence>(presence_fd, doorbell_fd, &presence_);
    }
    const std::lock_guard lock(peers_mutex_);
    auto peer = std::make_shared<Peer>(static_cast<int>(peers_.size()), std::move(presence));
    peers_.push_back(peer);
    if (!peer->same_host()) {
        remote_peers_.fetch_add(1);
    }
    return peer;
}

std::shared_ptr<Peer> Engine::peer(int id) const {
    const std::lock_guard lock(peers_mutex_);
    return id >= 0 && static_cast<size_t>(id) < peers_.size() ? peers_[static_cast<size_t>(id)] : nullptr;
}

void Engine::drop_peer(int id, Outcome outcome) {
    const std::shared_ptr<Peer> gone = abandoned_ ? nullptr : peer(id);
    if (!gone) {
        return;
    }
    if (gone->lose(outcome) && !gone->same_host()) {
        remote_peers_.fetch_sub(1);
    }
    poller_.exclusive([&, lanes = lanes_to(id)] {
        for (const auto& endpoint : lanes) {
            take_arrived(*endpoint);
            endpoint->close(gone->state());
        }
    });
    const std::lock_guard lock(peers_mutex_);
    peers_[static_cast<size_t>(id)].reset(); // its page and doorbell go with the last lane
}

void Engine::lose_peer(Peer& peer, Outcome outcome) {
    if (peer.lose(outcome)) {
        if (!peer.same_host()) {
            remote_peers_.fetch_sub(1);
        }
        events_->push(static_cast<uint64_t>(peer.id()));
        wake_waiters();
        poller_.kick(); // a tick closes its lanes; another thread than the poller's may have found the loss
    }
}

void Engine::lane_failed(const Peer& peer) {
    events_->push(kLaneDown | static_cast<uint64_t>(peer.id()));
    wake_waiters();
}

namespace {

const Provider& provider_named(const std::string& name) {
    for (const Provider& provider : providers()) {
        if (name == provider.name) {
            return provider;
        }
    }
    throw NativeError(Status::unsupported, Reason::none, "this build has no provider named " + name);
}

} // namespace

// Throws NativeError if the engine is closed, which would never close what it keeps.
template <class T> void Engine::keep(const std::shared_ptr<T>& made, std::vector<std::shared_ptr<T>>& all) {
    poller_.exclusive([&] {
        const std::lock_guard lock(endpoints_lock_);
        if (!closed()) {
            all.push_back(made);
        }
    });
    if (closed()) {
        throw NativeError(Status::closed, Reason::context_closed, "this Context is closed");
    }
}

std::shared_ptr<Endpoint> Engine::add_endpoint(const std::string& name, int id,
                                               std::span<const std::shared_ptr<Domain>> rails) {
    const std::shared_ptr<Peer> owner = peer(id);
    if (!owner || !owner->state().ok()) {
        throw NativeError(owner ? owner->state() : Outcome{Status::closed, Reason::lane_closed}, "the peer is gone");
    }
    const Provider& provider = provider_named(name);
    if (provider.endpoint == nullptr) {
        throw NativeError(Status::unsupported, Reason::none, provider.probe().reason);
    }
    std::shared_ptr<Endpoint> endpoint = provider.endpoint(*this, owner, rails);
    keep(endpoint, endpoints_);
    return endpoint;
}

void Engine::add_work(const std::shared_ptr<Work>& work) {
    if (work->fd() >= 0) {
        watch(work->fd());
    }
    keep(work, works_);
}

void Engine::close_work(const std::shared_ptr<Work>& work, Outcome outcome) {
    if (abandoned_) {
        return; // it is the parent's
    }
    poller_.exclusive([&] { work->close(outcome); });
    poller_.kick(); // a tick lets go of it
}

std::vector<OpRef> Engine::works_under_way_at(int peer) const {
    std::vector<std::shared_ptr<Work>> works;
    {
        const std::lock_guard lock(endpoints_lock_);
        works = works_;
    }
    std::vector<OpRef> ops;
    for (const auto& work : works) {
        if (OpRef op = work->under_way_at(peer)) {
            ops.push_back(std::move(op));
        }
    }
    return ops;
}

std::vector<std::shared_ptr<Endpoint>> Engine::lanes_to(int peer) const {
    const std::lock_guard lock(endpoints_lock_);
    std::vector<std::shared_ptr<Endpoint>> lanes;
    std::copy_if(endpoints_.begin(), endpoints_.end(), std::back_inserter(lanes),
                 [&](const auto& endpoint) { return endpoint->peer().id() == peer; });
    return lanes;
}

void Engine::close_endpoint(const std::shared_ptr<Endpoint>& endpoint, Outcome outcome) {
    if (abandoned_) {
        return; // the lane is the parent's
    }
    poller_.exclusive([&] {
        take_arrived(*endpoint); // the peer may have been told that this has arrived
        endpoint->close(outcome);
    });
}

bool Engine::quiet(const std::shared_ptr<Endpoint>& endpoint) {
    bool quiet = false;
    if (!abandoned_) {
        poller_.exclusive([&] {
            take_arrived(*endpoint); // for example the end of its last transfer
            quiet = endpoint->idle();
        });
    }
    return quiet;
}

void Engine::catch_up(int peer) {
    if (closed()) {
        return;
    }
    poller_.exclusive([&, lanes = lanes_to(peer)] {
        for (const auto& endpoint : lanes) {
            if (endpoint->state().ok()) {
                take_arrived(*endpoint);
            }
        }
    });
}

std::shared_ptr<Domain> Engine::open_domain(const std::string& name, const std::string& device, int port,
                                            const DomainOptions& options) {
    const Provider& provider = provider_named(name);
    if (provider.open == nullptr) {
        throw NativeError(Status::unsupported, Reason::none, name + " is not made of devices");
    }
    int number = 0;
    poller_.exclusive([&] { number = next_domain_++; });
    std::shared_ptr<Domain> domain = provider.open(*this, device, port, number, options);
    keep(domain, domains_);
    return domain;
}

void Engine::close_domain(const std::shared_ptr<Domain>& domain) {
    if (abandoned_) {
        return;
    }
    poller_.exclusive([&] {
        const std::lock_guard lock(endpoints_lock_);
        std::erase(domains_, domain); // lanes that are left hold it
    });
}

} // namespace zerohop
