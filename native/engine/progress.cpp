// The engine as the poller sees it: what one pass over the lanes does, and how long a sleep may be.
#include "engine/engine.hpp"

#include <algorithm>

namespace zerohop {

namespace {

constexpr int kLastPasses = 64; // of 256 KiB: more than any lane buffers

} // namespace

bool Engine::poll() {
    bool did = false;
    for (const auto& domain : domains_) {
        did |= domain->poll();
    }
    for (const auto& endpoint : endpoints_) {
        did |= endpoint->poll();
    }
    if (!device_atomics_.empty()) {
        if (device_atomics_.poll()) {
            did = true;
            wake_waiters(); // whoever revokes the share
        }
        device_atomics_pending_.store(!device_atomics_.empty(), std::memory_order_relaxed);
    }
    return did;
}

bool Engine::ready() {
    const std::lock_guard lock(endpoints_lock_);
    return std::any_of(endpoints_.begin(), endpoints_.end(), [](const auto& endpoint) { return endpoint->ready(); }) ||
           poller_.any_descriptor_ready();
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

bool Engine::unarmed() {
    const std::lock_guard lock(endpoints_lock_);
    if (domains_.empty()) {
        return false;
    }
    using Happening = Domain::Happening;
    const Happening what = ends_matter() ? Happening::arrivals_and_ends : Happening::arrivals;
    return std::any_of(domains_.begin(), domains_.end(), [&](const auto& domain) { return domain->unarmed(what); });
}

void Engine::woken() {
    const std::lock_guard lock(endpoints_lock_);
    for (const auto& domain : domains_) {
        domain->woken();
    }
}

uint64_t Engine::sleep_limit_ns(uint64_t now) {
    uint64_t limit = UINT64_MAX;
    if (device_atomics_pending_.load(std::memory_order_relaxed)) {
        return kDeviceInterval;
    }
    {
        const std::lock_guard lock(endpoints_lock_);
        for (const auto& endpoint : endpoints_) {
            if (endpoint->needs_polling()) {
                return kDeviceInterval;
            }
            // A tick takes the descriptors and mappings of one that is closed back; whoever looks, memory and room.
            if (!endpoint->state().ok() || endpoint->in_device()) {
                limit = kPresenceInterval;
            }
        }
    }
    if (operations_.pending() != 0) {
        limit = std::min(limit, kPresenceInterval);
        const uint64_t deadline = operations_.earliest_deadline();
        if (deadline != UINT64_MAX) {
            limit = std::min(limit, deadline > now ? deadline - now : 1);
        }
    }
    if (remote_peers_.load(std::memory_order_relaxed) != 0 && options_.heartbeat_ns != 0) {
        limit = std::min(limit, options_.heartbeat_ns / 3);
    }
    return limit;
}

void Engine::tick(uint64_t now) {
    operations_.expire(now);
    look_at_peers();
    for (const auto& endpoint : endpoints_) {
        endpoint->tick(now);
    }
    reap_endpoints();
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
            did |= domain->poll();
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
