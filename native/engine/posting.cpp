// How operations are posted: routes, back-pressure of a full lane, and which sleepers must wake up for a post.
#include "engine/engine.hpp"
#include "engine/tuning.hpp"

#include <algorithm>
#include <exception>

namespace zerohop {

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
    // Joining the group would end an operation that has not ended by then, and its bytes might have moved.
    if (request.group != nullptr && request.group->ended()) {
        return {Posted::What::failed, request.group->outcome()};
    }
    Posted posted = endpoint.post(request);
    after_post(endpoint, request, posted, request.started_ns); // still good as the time now
    return posted;
}

Posted Engine::post(Endpoint& endpoint, const Request& request, bool nowait) {
    Posted posted = try_post(endpoint, request);
    if (posted.what != Posted::What::retry) {
        return posted;
    }
    if (nowait) { // look once: an operation may have ended since
        wait([] { return false; }, 0, 0, false);
        return try_post(endpoint, request);
    }
    full_.fetch_add(1, std::memory_order_relaxed);
    std::exception_ptr failure; // thrown after wait(), which holds the poller's lock
    const auto ended = [&] { return request.group != nullptr && request.group->ended(); };
    const bool got = wait(
        [&] {
            if (posted.what == Posted::What::retry && !failure &&
                !ended()) { // the condition is asked again after it held
                try {
                    posted = endpoint.post(request);
                } catch (...) {
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

Posted Engine::post_receive(const Request& request) {
    if (closed()) {
        return {Posted::What::failed, {Status::closed, Reason::context_closed}};
    }
    Pin<Region> local;
    if (const Outcome pinned = pin_local(request.local, local); !pinned.ok()) {
        return {Posted::What::failed, pinned};
    }
    OpRef op = operations().create(request.deadline_ns, request.started_ns);
    receives_.add({op, std::move(local), request.local_offset, request.nbytes});
    if (closed()) { // since the look above; nobody else would end it
        op->finish({Status::closed, Reason::context_closed});
        receives_.drop_ended();
    }
    posted_.fetch_add(1, std::memory_order_relaxed);
    std::vector<std::shared_ptr<Endpoint>> lanes;
    {
        const std::lock_guard lock(endpoints_lock_);
        lanes = endpoints_;
    }
    bool matches = false;
    for (const auto& lane : lanes) { // after the receive was added, or a message that comes just now would miss it
        matches |= lane->match_soon();
    }
    if (matches) {
        poller_.kick();
    } else {
        note_pending(request.deadline_ns, request.started_ns);
    }
    return {Posted::What::posted, {}, std::move(op)};
}

Posted Engine::post_tagged_receive(uint64_t scope, const Wanted& wanted, const Request& request, uint64_t finder,
                                   bool finds_described) {
    return post_to_mailbox(scope, request, finder, [&](Mailbox& mailbox, PostedRecv recv) {
        recv.finds_described = finds_described;
        return mailbox.post(wanted, std::move(recv));
    });
}

Posted Engine::post_claim(uint64_t scope, uint64_t finder, const Request& request) {
    return post_to_mailbox(scope, request, 0, [&](Mailbox& mailbox, PostedRecv recv) {
        recv.carried = request.local == nullptr;
        return mailbox.claim(finder, std::move(recv));
    });
}

void Engine::release_found(uint64_t scope, uint64_t finder) {
    const std::shared_ptr<Mailbox> mailbox = mailboxes_.at(scope);
    const Mailbox::Posting posting = mailbox->claim(finder, {});
    match(mailbox, posting);
    if (!posting.lanes.empty()) {
        look_or_kick();
    }
}

void Engine::match(const std::shared_ptr<Mailbox>& mailbox, const Mailbox::Posting& posting) {
    if (posting.here) {
        mailbox->place();
    }
    for (const auto& lane : posting.lanes) {
        lane->match_with(mailbox, false);
    }
}

void Engine::look_or_kick() {
    poller_.look_or_kick();
}

template <typename Post>
Posted Engine::post_to_mailbox(uint64_t scope, const Request& request, uint64_t finder, const Post& post) {
    if (closed()) {
        return {Posted::What::failed, {Status::closed, Reason::context_closed}};
    }
    Pin<Region> local; // none for a receive that only finds its message
    if (request.local) {
        if (const Outcome pinned = pin_local(request.local, local); !pinned.ok()) {
            return {Posted::What::failed, pinned};
        }
    }
    OpRef op = operations().create(request.deadline_ns, request.started_ns);
    const std::shared_ptr<Mailbox> mailbox = mailboxes_.at(scope);
    const Mailbox::Posting posting =
        post(*mailbox, {op, std::move(local), request.local_offset, request.nbytes, finder});
    if (!posting.failed.ok()) {
        op->finish(posting.failed, 0, value_of(Envelope{scope, posting.source, 0}));
    }
    match(mailbox, posting);
    note_pending(request.deadline_ns, request.started_ns);
    if (closed()) { // since the look above; nobody else would end it
        op->finish({Status::closed, Reason::context_closed});
        mailboxes_.drop_ended();
    }
    posted_.fetch_add(1, std::memory_order_relaxed);
    Posted posted{Posted::What::posted, {}, std::move(op)};
    posted.look = !posting.lanes.empty();
    return posted;
}

void Engine::close_mailbox(uint64_t scope, Outcome outcome) {
    const std::shared_ptr<Mailbox> mailbox = mailboxes_.at(scope);
    for (const auto& lane : mailbox->close(outcome)) {
        lane->match_with(mailbox);
    }
}

void Engine::lose_member(uint64_t scope, uint32_t source, Outcome outcome) {
    mailboxes_.at(scope)->lose(source, outcome);
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
    if (posted.carried_out) {
        return note_pending(request.deadline_ns, now);
    }
    const bool awaited = operations().awaited() != 0;
    Backlog backlog = endpoint.backlog(now, awaited);
    if (backlog.sendable || backlog.stalled) {
        return poller_.kick();
    }
    if (backlog.look_in_ns != UINT64_MAX) {
        now = now_ns(); // a post to a device may take long
        backlog = endpoint.backlog(now, awaited);
        poller_.limit_sleep(now, std::max(backlog.look_in_ns, kShortSleep));
    }
    note_pending(request.deadline_ns, now);
}

void Engine::note_pending(uint64_t deadline_ns, uint64_t now) {
    const uint64_t left = deadline_ns == 0 ? UINT64_MAX : deadline_ns - std::min(deadline_ns, now);
    poller_.limit_sleep(now, std::min(left, kUnattended));
}

void Engine::note_awaited() {
    const uint64_t now = now_ns();
    // A domain may have put the awaited completion aside.
    uint64_t limit_ns = keeps_ends_.load(std::memory_order_relaxed) ? kDeviceInterval : kPresenceInterval;
    {
        const std::lock_guard lock(endpoints_lock_);
        for (const auto& endpoint : endpoints_) {
            limit_ns = std::min(limit_ns, std::max(endpoint->backlog(now, true).look_in_ns, kShortSleep));
        }
    }
    poller_.limit_sleep(now, limit_ns);
}

} // namespace zerohop
