// The queues of notifications of a Context, and how its engine fills and empties them.
#include "engine/notifications.hpp"

#include "engine/engine.hpp"

namespace zerohop {

uint16_t NotificationQueues::open() {
    auto made = std::make_shared<NotificationQueue>(NotificationQueue::kNobody);
    const std::lock_guard lock(lock_);
    if (others_.size() == UINT16_MAX) {
        throw NativeError(Status::no_memory, Reason::window_full, "65535 queues of notifications are open");
    }
    do { // a number that was given back is not given out again soon
        ++last_;
    } while (last_ == 0 || others_.contains(last_));
    others_.emplace(last_, std::move(made));
    return last_;
}

std::shared_ptr<NotificationQueue> NotificationQueues::close(uint16_t number) {
    const std::lock_guard lock(lock_);
    const auto found = others_.find(number);
    if (found == others_.end()) {
        return nullptr;
    }
    std::shared_ptr<NotificationQueue> closed = std::move(found->second);
    others_.erase(found);
    return closed;
}

void NotificationQueues::end_all() {
    std::vector<std::shared_ptr<NotificationQueue>> all{own_};
    {
        const std::lock_guard lock(lock_);
        for (const auto& [number, queue] : others_) {
            all.push_back(queue);
        }
    }
    for (const auto& queue : all) {
        queue->end();
    }
}

void Engine::notify(uint16_t queue, Notification note) {
    const std::shared_ptr<NotificationQueue> into = notifications_.of(queue);
    if (!into || !into->takes_from(note.peer)) { // numbers are easy to guess
        give_back_credit(note.endpoint, queue);
        return;
    }
    if (const std::weak_ptr<Endpoint> lane = note.endpoint; !into->push(std::move(note))) {
        if (const std::shared_ptr<Endpoint> endpoint = lane.lock()) {
            endpoint->fail(kLaneOutOfMemory);
        }
    }
    wake_waiters();
}

void Engine::give_back_credit(const std::weak_ptr<Endpoint>& lane, uint16_t queue) {
    if (const std::shared_ptr<Endpoint> endpoint = lane.lock()) {
        endpoint->return_credit(queue);
    }
}

void Engine::close_queue(uint16_t number) {
    const std::shared_ptr<NotificationQueue> closed = notifications_.close(number);
    if (!closed) {
        return;
    }
    closed->end();
    while (const std::optional<Notification> note = closed->pop()) {
        give_back_credit(note->endpoint, number);
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
        // The peer keeps no account of a queue whose credits have all come back.
        for (const std::weak_ptr<Endpoint>& endpoint : ended->take_endpoints()) {
            give_back_credit(endpoint, number);
        }
        wake_waiters();
    }
}

void Engine::add_arrival(uint16_t queue, int peer) {
    if (const std::shared_ptr<NotificationQueue> to = notifications_.of(queue)) {
        Notification arrival;
        arrival.peer = peer;
        static_cast<void>(to->push(std::move(arrival))); // there are fewer peers than it has room for
        wake_waiters();
    }
}

void Engine::forget_arrival(uint16_t queue, int peer) {
    if (const std::shared_ptr<NotificationQueue> from = notifications_.of(queue)) {
        from->forget(peer);
    }
}

std::optional<Notification> Engine::pop_notification(uint16_t queue, uint64_t deadline_ns, uint64_t spin_ns,
                                                     bool may_wait, WaitOutcome* outcome) {
    const std::shared_ptr<NotificationQueue> from = notifications_.of(queue);
    std::optional<Notification> note;
    if (!from) {
        return note;
    }
    const auto take = [&] {
        const bool over =
            closed() || from->ended(); // asked before the look, which so finds everything that came before the end
        if (outcome != nullptr && outcome->cancelled()) {
            return true;
        }
        if (!note) { // the condition is asked again after it held
            note = from->pop();
            if (note && outcome != nullptr && !outcome->take()) {
                put_back(queue, std::move(*note));
                note.reset();
                return true;
            }
        }
        return note.has_value() || over;
    };
    if (may_wait) {
        wait(take, deadline_ns, spin_ns);
    } else {
        take();
    }
    if (note) {
        give_back_credit(note->endpoint, queue);
    }
    return note;
}

void Engine::put_back(uint16_t queue, Notification note) {
    if (const std::shared_ptr<NotificationQueue> to = notifications_.of(queue)) {
        to->put_back(std::move(note));
        wake_waiters(); // another one may have looked meanwhile
    }
}

} // namespace zerohop
