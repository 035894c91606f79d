// The life of an engine, and the registrations of its memory.
#include "engine/engine.hpp"

#include "base/guarded.hpp"

#include <algorithm>

namespace zerohop {

Engine::Engine(const EngineOptions& options, std::vector<std::shared_ptr<accel::Driver>> drivers)
    : Host(options.heartbeat_ns, std::move(drivers), [this] { wake_waiters(); }), options_(options),
      events_(std::make_shared<CompletionQueue>()), poller_(*this, presence_, finished_, options.spin_ns) {
    install_fault_handler();
    poller_.start();
}

Engine::~Engine() {
    close(now_ns() + 2 * kSecond);
    accelerators().stop(); // copies of devices end before the memory goes
    bulk_threads_.stop();
    works_.clear();
    endpoints_.clear(); // lanes need the poller,
    domains_.clear();   // and go before their domains
}

std::shared_ptr<Registration> Engine::register_local(Domain& domain, const std::shared_ptr<Region>& region) {
    Region& whole = region->whole();
    return whole.registration(domain.number(), 0,
                              [&] { return domain.reg(whole, whole.address(), whole.nbytes(), 0); });
}

std::shared_ptr<Registration> Engine::reach(Domain& domain, ShareId id, bool own, uint64_t& address) {
    const std::shared_ptr<Share> share = shares().find(id);
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

bool Engine::revoke(ShareId id, uint64_t deadline_ns) {
    if (abandoned_) {
        return true; // the lanes are the parent's, and so are their threads and locks
    }
    std::shared_ptr<Share> share;
    {
        const std::lock_guard lock(revoking_mutex_);
        share = shares().remove(id);
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
    // Every thread that moves bytes checks the mark before each piece. So once nobody polls or posts, no piece is left
    // that began before.
    poller_.exclusive([&] {
        for (const auto& endpoint : endpoints_) {
            endpoint->quiesce();
        }
    });
    share->deregister(); // returns when no NIC can reach it under the keys that were given out
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
    std::vector<std::shared_ptr<Work>> works;
    poller_.exclusive([&] {
        endpoints = endpoints_;
        works = works_;
        for (const auto& endpoint : endpoints) {
            endpoint->close(outcome);
        }
        for (const auto& work : works) {
            work->close(outcome);
        }
    });
    operations().finish_all(outcome);
    receives_.drop_ended();
    mailboxes_.drop_ended();
    notifications_.end_all();
    const bool drained = wait(
        [&] {
            return !device_atomics_pending_.load(std::memory_order_relaxed) &&
                   std::all_of(endpoints.begin(), endpoints.end(), [](const auto& e) { return e->idle(); }) &&
                   std::all_of(works.begin(), works.end(), [](const auto& work) { return work->idle(); });
        },
        deadline_ns, options_.spin_ns);
    poller_.stop();
    bulk_threads_.stop();
    if (drained) {
        poller_.exclusive([&] { // callers may still be polling
            const std::lock_guard lock(endpoints_lock_);
            works_.clear();
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
    bulk_threads_.abandon();
    for (const auto& work : works_) {
        work->abandon();
    }
}

} // namespace zerohop
