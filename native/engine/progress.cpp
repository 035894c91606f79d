// The engine as the poller sees it: what one pass over the lanes does, and how long a sleep may be.
#include "engine/engine.hpp"
#include "engine/tuning.hpp"

#include <algorithm>
#include <cstring>
#include <new>

namespace zerohop {

// Runs f() for a lane, or for none. A lane that has no memory for it ends; the process, and other lanes, go on. What is
// for no lane is done by the next call.
template <class F> void Engine::contained(Endpoint* endpoint, F&& f) {
    try {
        f();
    } catch (const std::bad_alloc&) {
        if (endpoint != nullptr) {
            endpoint->fail(kLaneOutOfMemory);
        }
    }
}

// A device whose completions could not be handed out ends its lanes: which of them some were for is not known.
Found Engine::poll_domain(Domain& domain) {
    try {
        return domain.poll();
    } catch (const std::bad_alloc&) {
        for (const auto& endpoint : endpoints_) {
            if (std::strcmp(endpoint->provider(), domain.provider()) == 0) {
                endpoint->fail(kLaneOutOfMemory);
            }
        }
        return Found::work;
    }
}

Found Engine::poll() {
    Found found = Found::nothing;
    const bool awaited = operations().awaited() != 0;
    for (const auto& domain : domains_) {
        found = std::max(found, poll_domain(*domain));
    }
    bool rests = device_atomics().empty();
    for (const auto& endpoint : endpoints_) {
        Progress progress = Progress::made;
        contained(endpoint.get(), [&] { progress = endpoint->poll(); });
        if (progress == Progress::made || (found == Found::ends && (awaited || endpoint->backlog(0, true).stalled))) {
            found = Found::work;
        }
        rests &= progress == Progress::rests;
    }
    for (const auto& work : works_) {
        bool moved = true;
        contained(nullptr, [&] { moved = work->poll(); });
        const Backlog backlog = work->backlog();
        found = moved ? Found::work : found;
        rests &= !backlog.ready && !backlog.in_device;
    }
    if (marks_pending_.load(std::memory_order_relaxed) != 0) {
        rests = false;
        contained(nullptr, [&] { found = poll_marks() ? Found::work : found; });
    }
    bool keeps_ends = false;
    bool told = operations().awaited() == 0; // devices tell everything that somebody must act upon
    for (const auto& domain : domains_) {
        told &= !domain->unarmed(Domain::Happening::arrivals);
        keeps_ends |= domain->keeps_ends();
    }
    if (keeps_ends != keeps_ends_.load(std::memory_order_relaxed)) {
        keeps_ends_.store(keeps_ends, std::memory_order_seq_cst); // before the look at how long others sleep
    }
    rests &= !keeps_ends;
    may_wait_ns_.store(!rests ? 0 : told ? kUnattended : kStreak, std::memory_order_relaxed);
    if (!device_atomics().empty()) {
        bool moved = true;
        contained(nullptr, [&] { moved = device_atomics().poll(); });
        if (moved) {
            found = Found::work;
            wake_waiters(); // a revocation may wait for it
        }
        device_atomics_pending_.store(!device_atomics().empty(), std::memory_order_relaxed);
    }
    return found;
}

// Returns what devices must tell while nobody polls. The ends of operations that this side began count if somebody
// waits for one, or a lane can go on only then. The caller holds the lock.
Domain::Happening Engine::happening() {
    const bool ends = operations().awaited() != 0 ||
                      std::any_of(endpoints_.begin(), endpoints_.end(),
                                  [](const auto& endpoint) { return endpoint->backlog(0, true).stalled; });
    return ends ? Domain::Happening::arrivals_and_ends : Domain::Happening::arrivals;
}

bool Engine::arm(bool for_caller) {
    const std::lock_guard lock(endpoints_lock_);
    if (domains_.empty()) {
        return false;
    }
    const Domain::Happening what = for_caller ? Domain::Happening::arrivals_and_ends : happening();
    bool again = false;
    for (const auto& domain : domains_) {
        again |= domain->arm(what);
    }
    return again;
}

void Engine::woken() {
    const std::lock_guard lock(endpoints_lock_);
    for (const auto& domain : domains_) {
        domain->woken();
    }
}

bool Engine::unarmed() {
    const std::lock_guard lock(endpoints_lock_);
    return !domains_.empty() && std::any_of(domains_.begin(), domains_.end(),
                                            [what = happening()](const auto& domain) { return domain->unarmed(what); });
}

Left Engine::left(uint64_t now) {
    Left left;
    const bool attended = anybody_waits();
    const bool looks =
        device_atomics_pending_.load(std::memory_order_relaxed) || marks_pending_.load(std::memory_order_acquire) != 0;
    Backlog all{.look_in_ns = looks ? kDeviceInterval : UINT64_MAX};
    bool closing = false;
    {
        const std::lock_guard lock(endpoints_lock_);
        for (const auto& endpoint : endpoints_) {
            const Backlog backlog = endpoint->backlog(now, attended);
            all.ready |= backlog.ready;
            all.stalled |= backlog.stalled;
            all.in_device |= backlog.in_device;
            all.look_in_ns = std::min(all.look_in_ns, backlog.look_in_ns);
            // A tick closes the lanes of a lost peer, which another thread may have found. It gives back the
            // descriptors and mappings of a lane that is closed; its memory goes with a look.
            closing |= !endpoint->state().ok() || !endpoint->peer().state().ok();
        }
        for (const auto& work : works_) {
            const Backlog backlog = work->backlog();
            all.ready |= backlog.ready;
            all.in_device |= backlog.in_device;
            all.look_in_ns = std::min(all.look_in_ns, backlog.look_in_ns);
        }
        all.stalled |= operations().awaited() != 0;
        const auto what = all.stalled ? Domain::Happening::arrivals_and_ends : Domain::Happening::arrivals;
        for (const auto& domain : domains_) {
            left.unarmed |= domain->unarmed(what);
        }
    }
    if (keeps_ends_.load(std::memory_order_seq_cst)) {
        left.caller_sleep_limit_ns = kDeviceInterval;
        if (all.stalled) {
            all.look_in_ns = std::min(all.look_in_ns, kDeviceInterval);
        }
    }
    left.ready = all.ready || poller_.any_descriptor_ready() || all.look_in_ns < kShortSleep;
    left.sleep_limit_ns = all.look_in_ns;
    if (all.look_in_ns <= kDeviceInterval) {
        return left;
    }
    const bool pending = operations().pending() != 0;
    if (pending || closing || all.in_device) {
        left.sleep_limit_ns = std::min(left.sleep_limit_ns, closing || attended ? kPresenceInterval : kUnattendedSleep);
    }
    if (pending) {
        const uint64_t deadline = operations().earliest_deadline(); // UINT64_MAX where there is none
        left.sleep_limit_ns = std::min(left.sleep_limit_ns, deadline > now ? deadline - now : 1);
    }
    if (remote_peers_.load(std::memory_order_relaxed) != 0 && options_.heartbeat_ns != 0) {
        left.sleep_limit_ns = std::min(left.sleep_limit_ns, options_.heartbeat_ns / 3);
    }
    return left;
}

void Engine::tick(uint64_t now) {
    operations().expire(now);
    receives_.drop_ended();
    mailboxes_.drop_ended();
    for (const auto& endpoint : endpoints_) {
        contained(endpoint.get(), [&] {
            look_at_peer(*endpoint);
            endpoint->tick(now);
        });
    }
    contained(nullptr, [&] {
        reap_endpoints();
        reap_works();
    });
    may_wait_ns_.store(0, std::memory_order_relaxed); // a lane may have been closed, or have something to say
}

void Engine::look_at_peer(Endpoint& endpoint) {
    const Outcome outcome = look_at(endpoint.peer());
    if (!outcome.ok() && endpoint.state().ok()) {
        take_arrived(endpoint);
        endpoint.close(outcome);
    }
}

// Delivers what the peer sent before it went, although the goodbye has come by a faster way. The passes are bounded,
// because a peer that lives on might send for ever.
void Engine::take_arrived(Endpoint& endpoint) {
    for (int pass = 0; pass < kLastPasses; ++pass) {
        bool did = false;
        for (const auto& domain : domains_) {
            did |= domain->poll() != Found::nothing;
            if (domain->keeps_ends()) {
                domain->settle();
                did = true;
            }
        }
        if (endpoint.poll() != Progress::made && !did) {
            return;
        }
    }
}

Outcome Engine::lose_dead_peer(Peer& peer) {
    const bool died = peer.presence()->life() == PeerPresence::Life::dead;
    lose_peer(peer, {Status::peer_lost, died ? Reason::process_died : Reason::context_closed});
    return peer.state();
}

void Engine::reap_endpoints() {
    const auto gone = [](const std::shared_ptr<Endpoint>& endpoint) {
        return !endpoint->state().ok() && endpoint->idle();
    };
    if (std::none_of(endpoints_.begin(), endpoints_.end(), gone)) {
        return;
    }
    std::vector<std::shared_ptr<Endpoint>> dead; // destroyed outside the lock
    const std::lock_guard lock(endpoints_lock_);
    for (auto& endpoint : endpoints_) {
        if (gone(endpoint)) {
            endpoint->add_statistics(gone_statistics_);
            dead.push_back(std::move(endpoint));
        }
    }
    std::erase(endpoints_, nullptr);
}

void Engine::reap_works() {
    std::vector<std::shared_ptr<Work>> gone; // destroyed outside the lock
    const std::lock_guard lock(endpoints_lock_);
    for (auto& work : works_) {
        if (work->idle()) {
            if (work->fd() >= 0) {
                unwatch(work->fd());
            }
            gone.push_back(std::move(work));
        }
    }
    std::erase(works_, nullptr);
}

Statistics Engine::statistics() {
    const std::lock_guard lock(endpoints_lock_);
    Statistics sums = gone_statistics_;
    for (const auto& endpoint : endpoints_) {
        endpoint->add_statistics(sums);
    }
    sums["operations_inline"] = inline_.load(std::memory_order_relaxed);
    sums["operations_posted"] = posted_.load(std::memory_order_relaxed);
    sums["operations_pending"] = operations().pending();
    sums["lane_full"] = full_.load(std::memory_order_relaxed);
    sums["sleeps"] = poller_.sleeps();
    sums["wake_ups_sent"] = presence().rings();
    return sums;
}

} // namespace zerohop
