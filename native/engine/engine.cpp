#include "engine/engine.hpp"

#include <algorithm>
#include <exception>
#include <optional>

namespace zerohop {

Engine::Engine(const EngineOptions& options, std::vector<std::shared_ptr<accel::Driver>> drivers)
    : options_(options), operations_([this] { wake_waiters(); }), accelerators_(std::move(drivers)),
      events_(std::make_shared<CompletionQueue>()), poller_(*this, presence_, finished_, options.spin_ns) {
    poller_.start();
}

Engine::~Engine() {
    close(now_ns() + 2 * kSecond);
    accelerators_.stop(); // what a device still copies ends before the memory goes
    endpoints_.clear();   // these need the poller, the domains after the lanes
    domains_.clear();
}

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
    std::vector<std::shared_ptr<Endpoint>> endpoints;
    {
        const std::lock_guard lock(endpoints_lock_);
        endpoints = endpoints_;
    }
    poller_.exclusive([&] {
        for (const auto& endpoint : endpoints) {
            if (endpoint->peer().id() == id) {
                take_arrived(*endpoint);
                endpoint->close(gone->state());
            }
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
    }
}

namespace {

const Provider& provider_named(const std::string& name) {
    for (const Provider* provider : providers()) {
        if (name == provider->name()) {
            return *provider;
        }
    }
    throw NativeError(Status::unsupported, Reason::none, "this build has no provider named " + name);
}

} // namespace

std::shared_ptr<Endpoint> Engine::add_endpoint(const std::string& name, int id,
                                               std::span<const std::shared_ptr<Domain>> rails) {
    const std::shared_ptr<Peer> owner = peer(id);
    if (!owner || !owner->state().ok()) {
        throw NativeError(owner ? owner->state() : Outcome{Status::closed, Reason::lane_closed}, "the peer is gone");
    }
    std::shared_ptr<Endpoint> endpoint = provider_named(name).endpoint(*this, owner, rails);
    poller_.exclusive([&] {
        const std::lock_guard lock(endpoints_lock_);
        if (!closed()) { // or nobody would ever close it
            endpoints_.push_back(endpoint);
        }
    });
    if (closed()) {
        throw NativeError(Status::closed, Reason::context_closed, "this Context is closed");
    }
    return endpoint;
}

std::shared_ptr<Domain> Engine::open_domain(const std::string& name, const std::string& device, int port,
                                            const DomainOptions& options) {
    int number = 0;
    poller_.exclusive([&] { number = next_domain_++; });
    std::shared_ptr<Domain> domain = provider_named(name).open(*this, device, port, number, options);
    poller_.exclusive([&] {
        const std::lock_guard lock(endpoints_lock_);
        if (!closed()) {
            domains_.push_back(domain);
        }
    });
    if (closed()) {
        throw NativeError(Status::closed, Reason::context_closed, "this Context is closed");
    }
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

std::shared_ptr<Registration> Engine::register_local(Domain& domain, const std::shared_ptr<Region>& region) {
    Region& whole = region->whole();
    return whole.registration(domain.number(), 0,
                              [&] { return domain.reg(whole, whole.address(), whole.nbytes(), 0); });
}

std::shared_ptr<Registration> Engine::reach(Domain& domain, ShareId id, bool own, uint64_t& address) {
    const std::shared_ptr<Share> share = shares_.find(id);
    if (!share) {
        return nullptr;
    }
    address = share->region->address() + share->offset;
    Region& whole = share->region->whole();
    return share->registration(domain.number(), [&] {
        return own ? domain.reg(whole, address, share->nbytes, share->rights)
                   : whole.registration(domain.number(), share->rights, [&] {
                         return domain.reg(whole, whole.address(), whole.nbytes(), share->rights);
                     });
    });
}

void Engine::close_endpoint(const std::shared_ptr<Endpoint>& endpoint, Outcome outcome) {
    if (abandoned_) {
        return; // it is the parent's
    }
    poller_.exclusive([&] {
        take_arrived(*endpoint); // the other side may have been told that it is there
        endpoint->close(outcome);
    });
}

bool Engine::quiet(const std::shared_ptr<Endpoint>& endpoint) {
    bool quiet = false;
    if (!abandoned_) {
        poller_.exclusive([&] {
            take_arrived(*endpoint); // the end of what it sent last, for example
            quiet = endpoint->quiet();
        });
    }
    return quiet;
}

uint64_t Engine::add_route(Route route) {
    route.endpoint->prepare(route);
    const std::lock_guard lock(routes_lock_);
    uint32_t index = 0;
    if (free_routes_.empty()) {
        index = static_cast<uint32_t>(routes_.size());
        routes_.emplace_back();
    } else {
        index = free_routes_.back();
        free_routes_.pop_back();
    }
    routes_[index].route = std::make_shared<const Route>(std::move(route));
    return static_cast<uint64_t>(index) << 32 | routes_[index].generation;
}

void Engine::drop_route(uint64_t id) {
    std::shared_ptr<const Route> dropped; // destroyed outside the lock
    const std::lock_guard lock(routes_lock_);
    const auto index = static_cast<uint32_t>(id >> 32);
    if (index < routes_.size() && routes_[index].generation == static_cast<uint32_t>(id)) {
        dropped = std::move(routes_[index].route);
        ++routes_[index].generation;
        free_routes_.push_back(index);
    }
}

std::shared_ptr<const Route> Engine::route(uint64_t id) {
    const std::lock_guard lock(routes_lock_);
    const auto index = static_cast<uint32_t>(id >> 32);
    if (index >= routes_.size() || routes_[index].generation != static_cast<uint32_t>(id)) {
        return nullptr;
    }
    return routes_[index].route;
}

Posted Engine::post(uint64_t id, Request& request, bool nowait) {
    const std::shared_ptr<const Route> found = route(id);
    if (!found) {
        return {Posted::What::failed, {Status::closed, Reason::lane_closed}};
    }
    request.route = found.get();
    return post(*found->endpoint, request, nowait);
}

Posted Engine::try_post(Endpoint& endpoint, const Request& request) {
    if (closed()) {
        return {Posted::What::failed, {Status::closed, Reason::context_closed}};
    }
    Posted posted = endpoint.post(request);
    after_post(endpoint, request, posted, request.started_ns); // which was just now
    return posted;
}

Posted Engine::post(Endpoint& endpoint, const Request& request, bool nowait) {
    Posted posted = try_post(endpoint, request);
    if (posted.what != Posted::What::retry) {
        return posted;
    }
    if (nowait) { // what has ended may not have been looked at for a while
        wait([] { return false; }, 0, 0, false);
        return try_post(endpoint, request);
    }
    full_.fetch_add(1, std::memory_order_relaxed);
    std::exception_ptr failure; // carried out of wait(), which holds the poller's lock and is not thrown through
    const auto ended = [&] { return request.group != nullptr && request.group->ended(); };
    const bool got = wait(
        [&] {
            if (posted.what == Posted::What::retry && !failure && !ended()) { // asked again after it held
                try {
                    posted = endpoint.post(request);
                } catch (...) { // whatever it is: it is thrown to the caller, below
                    failure = std::current_exception();
                }
            }
            return failure || posted.what != Posted::What::retry || ended();
        },
        request.deadline_ns, options_.spin_ns);
    if (failure) {
        std::rethrow_exception(failure);
    }
    if (!got) {
        return {Posted::What::failed, {Status::deadline, posted.outcome.reason}};
    }
    if (posted.what == Posted::What::retry) {
        return {Posted::What::failed, request.group->outcome()};
    }
    after_post(endpoint, request, posted, now_ns());
    return posted;
}

void Engine::after_post(Endpoint& endpoint, const Request& request, const Posted& posted, uint64_t now) {
    if (posted.what != Posted::What::posted) {
        if (posted.what == Posted::What::done) {
            inline_.fetch_add(1, std::memory_order_relaxed);
        }
        return;
    }
    if (request.group != nullptr) {
        posted.op->join(*request.group);
    }
    posted_.fetch_add(1, std::memory_order_relaxed);
    poller_.note_time(now);
    const bool ours = !posted.carried_out;
    if (ours && (endpoint.has_local_work() || endpoint.stalled())) {
        poller_.kick();
    } else if (ours && endpoint.needs_polling()) {
        const uint64_t posted_ns = now_ns(); // a post may take long
        const uint64_t look_in = endpoint.look_in_ns(posted_ns, operations_.awaited() != 0);
        note_pending(request.deadline_ns, posted_ns);
        poller_.limit_sleep(posted_ns, std::max(look_in, kShortSleep));
    } else {
        note_pending(request.deadline_ns, now);
    }
}

void Engine::note_pending(uint64_t deadline_ns, uint64_t now) {
    const uint64_t left = deadline_ns == 0 ? UINT64_MAX : deadline_ns - std::min(deadline_ns, now);
    poller_.limit_sleep(now, std::min(left, kUnattended));
}

void Engine::note_awaited() {
    const uint64_t now = now_ns();
    const bool kept = keeps_ends_.load(std::memory_order_relaxed); // this one's, perhaps
    uint64_t limit_ns = kept ? kDeviceInterval : kPresenceInterval;
    {
        const std::lock_guard lock(endpoints_lock_);
        for (const auto& endpoint : endpoints_) {
            if (endpoint->needs_polling()) {
                limit_ns = std::min(limit_ns, std::max(endpoint->look_in_ns(now, true), kShortSleep));
            }
        }
    }
    poller_.limit_sleep(now, limit_ns);
}

bool Engine::wait(const std::function<bool()>& done, uint64_t deadline_ns, uint64_t spin_ns, bool may_sleep) {
    return poller_.wait(done, deadline_ns, spin_ns, may_sleep);
}

void Engine::notify(uint16_t queue, Notification note) {
    const std::shared_ptr<NotificationQueue> into = notifications_.of(queue);
    if (!into || !into->takes_from(note.peer)) { // numbers are easy to guess
        give_back_credit(note);
        return;
    }
    into->push(std::move(note));
    wake_waiters();
}

void Engine::close_queue(uint16_t number) {
    const std::shared_ptr<NotificationQueue> closed = notifications_.close(number);
    if (!closed) {
        return;
    }
    closed->end();
    while (const std::optional<Notification> note = closed->pop()) {
        give_back_credit(*note);
    }
    wake_waiters();
}

void Engine::take_from(uint16_t number, int peer) {
    if (const std::shared_ptr<NotificationQueue> found = number != 0 ? notifications_.of(number) : nullptr) {
        found->take_from(peer);
    }
}

void Engine::end_queue(uint16_t number) {
    if (const std::shared_ptr<NotificationQueue> ended = number != 0 ? notifications_.of(number) : nullptr) {
        ended->end();
        // Nobody may ever take what is there, and others use the same lane.
        for (const std::weak_ptr<Endpoint>& each : ended->take_endpoints()) {
            if (const std::shared_ptr<Endpoint> endpoint = each.lock()) {
                endpoint->return_credits(1);
            }
        }
        wake_waiters();
    }
}

void Engine::catch_up(int peer) {
    if (closed()) {
        return;
    }
    std::vector<std::shared_ptr<Endpoint>> endpoints;
    {
        const std::lock_guard lock(endpoints_lock_);
        endpoints = endpoints_;
    }
    poller_.exclusive([&] {
        for (const auto& endpoint : endpoints) {
            if (endpoint->peer().id() == peer && endpoint->state().ok()) {
                take_arrived(*endpoint);
            }
        }
    });
}

void Engine::give_back_credit(const Notification& note) {
    if (const std::shared_ptr<Endpoint> endpoint = note.endpoint.lock()) {
        endpoint->return_credits(1);
    }
}

std::optional<Notification> Engine::pop_notification(uint16_t queue, uint64_t deadline_ns, uint64_t spin_ns,
                                                     bool may_wait) {
    const std::shared_ptr<NotificationQueue> from = notifications_.of(queue);
    std::optional<Notification> note;
    if (!from) {
        return note;
    }
    const auto take = [&] {
        const bool over = closed() || from->ended(); // before the look: what came before the end is found
        if (!note) {                                 // asked again after it held
            note = from->pop();
        }
        return note.has_value() || over;
    };
    if (may_wait) {
        wait(take, deadline_ns, spin_ns);
    } else {
        take();
    }
    if (note) {
        give_back_credit(*note);
    }
    return note;
}

bool Engine::revoke(ShareId id, uint64_t deadline_ns) {
    if (abandoned_) {
        return true; // the lanes are the parent's, and so are their threads and locks
    }
    std::shared_ptr<Share> share;
    {
        const std::lock_guard lock(revoking_mutex_);
        share = shares_.remove(id);
        std::erase_if(revoking_, [](const auto& each) { return each.second.expired(); });
        if (share) {
            revoking_.emplace(id.packed(), share);
        } else if (const auto found = revoking_.find(id.packed()); found != revoking_.end()) {
            share = found->second.lock(); // asked again, because it took too long
        }
        if (!share) {
            return true;
        }
    }
    // Whoever moves bytes checks the mark before each piece: once nobody polls or posts, no piece of before is left.
    poller_.exclusive([&] {
        for (const auto& endpoint : endpoints_) {
            endpoint->quiesce();
        }
    });
    share->deregister(); // returns when no NIC can touch it under the keys that were given out
    const bool over =
        wait([&] { return share->device_copies.load(std::memory_order_acquire) == 0; }, deadline_ns, options_.spin_ns);
    if (over) {
        const std::lock_guard lock(revoking_mutex_);
        revoking_.erase(id.packed());
    }
    return over;
}

bool Engine::close(uint64_t deadline_ns) {
    if (closed_.exchange(true)) {
        return true;
    }
    const Outcome outcome{Status::closed, Reason::context_closed};
    std::vector<std::shared_ptr<Endpoint>> endpoints;
    poller_.exclusive([&] {
        const std::lock_guard lock(endpoints_lock_);
        endpoints = endpoints_;
    });
    poller_.exclusive([&] {
        for (const auto& endpoint : endpoints) {
            endpoint->close(outcome);
        }
    });
    operations_.finish_all(outcome);
    notifications_.end_all();
    const bool drained = wait(
        [&] {
            return !device_atomics_pending_.load(std::memory_order_relaxed) &&
                   std::all_of(endpoints.begin(), endpoints.end(), [](const auto& e) { return e->idle(); });
        },
        deadline_ns, options_.spin_ns);
    poller_.stop();
    if (drained) {
        poller_.exclusive([&] { // callers may still be polling
            const std::lock_guard lock(endpoints_lock_);
            endpoints_.clear();
            domains_.clear();
        });
        const std::lock_guard lock(routes_lock_);
        routes_.clear();
        free_routes_.clear();
    }
    return drained;
}

void Engine::abandon() {
    abandoned_ = true;
    closed_.store(true);
    poller_.abandon();
}

} // namespace zerohop
