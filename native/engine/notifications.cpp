#include "engine/notifications.hpp"

namespace zerohop {

uint16_t NotificationQueues::open() {
    auto made = std::make_shared<NotificationQueue>(NotificationQueue::kNobody);
    const std::lock_guard lock(lock_);
    if (others_.size() == UINT16_MAX) {
        throw NativeError(Status::no_memory, Reason::window_full, "65535 queues of notifications are open");
    }
    do { // the one that was given back last comes last
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

} // namespace zerohop
