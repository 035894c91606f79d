// The engine as the poller sees it: what one pass over the lanes does, and how long a sleep may be.
#include "engine/engine.hpp"

#include <algorithm>

namespace zerohop {

namespace {

constexpr int kLastPasses = 64; // of 256 KiB: more than any lane buffers

} // namespace

Found Engine::poll() {
    Found found = Found::nothing;
    const bool awaited = operations_.awaited() != 0;
    for (const auto& domain : domains_) {
        found = std::max(found, domain->poll());
    }
    bool rests = device_atomics_.empty();
    for (const auto& endpoint : endpoints_) {
        if (endpoint->poll() || (found == Found::ends && (awaited || endpoint->stalled()))) {
            found = Found::work;
        }
        rests &= endpoint->rests();
    }
    if (marks_pending_.load(std::memory_order_relaxed) != 0) {
        rests = false;
        found = poll_marks() ? Found::work : found;
    }
    bool keeps_ends = false;
    bool told = operations_.awaited() == 0; // by the devices, of what somebody must act upon
    for (const auto& domain : domains_) {
        told &= !domain->unarmed(Domain::Happening::arrivals);
        keeps_ends |= domain->keeps_ends();
    }
    if (keeps_ends != keeps_ends_.load(std::memory_order_relaxed)) {
        keeps_ends_.store(keeps_ends, std::memory_order_seq_cst); // before it is asked how long others sleep
    }
    rests &= !keeps_ends;
    may_wait_ns_.store(!rests ? 0 : told ? kUnattended : kStreak, std::memory_order_relaxed);
    if (!device_atomics_.empty()) {
        if (device_atomics_.poll()) {
            found = Found::work;
            wake_waiters(); // whoever revokes the share
        }
        device_atomics_pending_.store(!device_atomics_.empty(), std::memory_order_relaxed);
    }
    return found;
}

// Does anything follow from the end of an operation that this side began, although nobody waits in a call? With the
// lock held.
bool Engine::ends_matter() const {
    return operations_.awaited() != 0 ||
           std::any_of(endpoints_.begin(), endpoints_.end(), [](const auto& endpoint) { return endpoint->stalled(); });
}

bool Engine::arm(bool for_caller) {
    const std::lock_guard lock(endpoints_lock_);
    if (domains_.empty()) {
        return false;
    }
    using Happening = Domain::Happening;
    const Happening what = for_caller || ends_matter() ? Happening::arrivals_and_ends : Happening::arrivals;
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
    if (domains_.empty()) {
        return false;
    }
    using Happening = Domain::Happening;
    const Happening what = ends_matter() ? Happening::arrivals_and_ends : Happening::arrivals;
    return std::any_of(domains_.begin(), domains_.end(), [&](const auto& domain) { return domain->unarmed(what); });
}

Left Engine::left(uint64_t now) {
    Left left;
    bool stalled = false;
    const bool looks =
        device_atomics_pending_.load(std::memory_order_relaxed) || marks_pending_.load(std::memory_order_acquire) != 0;
    uint64_t look_in = looks ? kDeviceInterval : UINT64_MAX;
    const bool attended = anybody_waits();
    bool closing = false;
    bool in_device = false;
    {
        const std::lock_guard lock(endpoints_lock_);
        for (const auto& endpoint : endpoints_) {
            left.ready = left.ready || endpoint->ready();
            stalled = stalled || endpoint->stalled();
            if (endpoint->needs_polling()) {
                look_in = std::min(look_in, endpoint->look_in_ns(now, attended));
            }
            // A tick takes the descriptors and mappings of one that is closed back; whoever looks, memory and room.
            closing = closing || !endpoint->state().ok();
            in_device = in_device || endpoint->in_device();
        }
        using Happening = Domain::Happening;
        const Happening what =
            stalled || operations_.awaited() != 0 ? Happening::arrivals_and_ends : Happening::arrivals;
        for (const auto& domain : domains_) {
            left.unarmed |= domain->unarmed(what);
        }
    }
    if (keeps_ends_.load(std::memory_order_seq_cst)) {
        left.caller_sleep_limit_ns = kDeviceInterval;
        if (stalled || operations_.awaited() != 0) {
            look_in = std::min(look_in, kDeviceInterval);
        }
    }
    left.ready = left.ready || poller_.any_descriptor_ready();
    if (look_in != UINT64_MAX) {
        left.ready = left.ready || look_in < kShortSleep;
        left.sleep_limit_ns = look_in;
    }
    if (look_in <= kDeviceInterval) {
        return left;
    }
    const bool pending = operations_.pending() != 0;
    if (pending || closing || in_device) {
        left.sleep_limit_ns = std::min(left.sleep_limit_ns, closing || attended ? kPresenceInterval : kUnattendedSleep);
    }
    if (pending) {
        const uint64_t deadline = operations_.earliest_deadline(); // UINT64_MAX where there is none
        left.sleep_limit_ns = std::min(left.sleep_limit_ns, deadline > now ? deadline - now : 1);
    }
    if (remote_peers_.load(std::memory_order_relaxed) != 0 && options_.heartbeat_ns != 0) {
        left.sleep_limit_ns = std::min(left.sleep_limit_ns, options_.heartbeat_ns / 3);
    }
    return left;
}

void Engine::tick(uint64_t now) {
    operations_.expire(now);
    look_at_peers();
    for (const auto& endpoint : endpoints_) {
        endpoint->tick(now);
    }
    reap_endpoints();
    may_wait_ns_.store(0, std::memory_order_relaxed); // a lane may have been closed, or have something to say
}

void Engine::look_at_peers() {
    for (const auto& endpoint : endpoints_) {
        Peer& peer = endpoint->peer();
        const Outcome outcome = look_at(peer);
        if (!outcome.ok() && endpoint->state().ok()) {
            take_arrived(*endpoint);
            endpoint->close(outcome);
        }
    }
}

// What a peer sent before it went is still delivered; the goodbye may have come by a faster way. Bounded, because a
// peer that lives on might send for ever.
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
        if (!endpoint.poll() && !did) {
            return;
        }
    }
}

Outcome Engine::lose_dead_peer(Peer& peer) {
    const bool died = peer.presence()->life() == PeerPresence::Life::dead;
    lose_peer(peer, {Status::peer_lost, died ? Reason::process_died : Reason::stream_closed});
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
            endpoint->each_statistic(
                [](void* sums, const char* name, uint64_t value) {
                    (*static_cast<std::map<std::string, uint64_t>*>(sums))[name] += value;
                },
                &gone_statistics_);
            dead.push_back(std::move(endpoint));
        }
    }
    std::erase(endpoints_, nullptr);
}

std::map<std::string, uint64_t> Engine::statistics() {
    const std::lock_guard lock(endpoints_lock_);
    std::map<std::string, uint64_t> sums = gone_statistics_;
    for (const auto& endpoint : endpoints_) {
        endpoint->each_statistic(
            [](void* into, const char* name, uint64_t value) {
                (*static_cast<std::map<std::string, uint64_t>*>(into))[name] += value;
            },
            &sums);
    }
    sums["operations_inline"] = inline_.load(std::memory_order_relaxed);
    sums["operations_posted"] = posted_.load(std::memory_order_relaxed);
    sums["operations_pending"] = operations_.pending();
    sums["lane_full"] = full_.load(std::memory_order_relaxed);
    sums["sleeps"] = poller_.sleeps();
    return sums;
}

} // namespace zerohop
