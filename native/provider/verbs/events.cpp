// The events of a device: something was completed, has changed, or has failed.
#include "provider/verbs/domain.hpp"
#include "provider/verbs/endpoint.hpp"

#include <mutex>
#include <utility>
#include <vector>

namespace zerohop::verbs {

void VerbsDomain::woken() {
    const std::lock_guard lock(arm_mutex_);
    if (channel_ != nullptr) {
        take_completion_events();
        take_async_events();
    }
}

bool VerbsDomain::unarmed(Happening what) const {
    // Without lanes only the port's state can change, and nobody waits for that.
    return lane_count_.load(std::memory_order_relaxed) != 0 &&
           (unseen_.load(std::memory_order_relaxed) || !receive_armed_.load(std::memory_order_relaxed) ||
            (what == Happening::arrivals_and_ends && !send_armed_.load(std::memory_order_relaxed)));
}

bool VerbsDomain::arm(Happening what) {
    const std::lock_guard lock(arm_mutex_);
    if (channel_ == nullptr) {
        return false;
    }
    take_completion_events();
    take_async_events();
    for (auto [armed, queue] :
         {std::pair{&send_armed_, send_queue_.get()}, std::pair{&receive_armed_, receive_queue_.get()}}) {
        const bool wanted = what == Happening::arrivals_and_ends || queue == receive_queue_.get();
        if (wanted && !armed->load(std::memory_order_relaxed) && ibv_req_notify_cq(queue, 0) == 0) {
            armed->store(true, std::memory_order_relaxed);
            unseen_.store(true, std::memory_order_seq_cst); // what came before this wakes nobody
        }
    }
    return unseen_.load(std::memory_order_seq_cst) || failures_.load(std::memory_order_acquire);
}

// The caller holds arm_mutex_.
void VerbsDomain::take_completion_events() {
    ibv_cq* queue = nullptr;
    void* unused = nullptr;
    while ((send_armed_.load(std::memory_order_relaxed) || receive_armed_.load(std::memory_order_relaxed)) &&
           device_->api().get_cq_event(channel_.get(), &queue, &unused) == 0) {
        device_->api().ack_cq_events(queue, 1);
        (queue == send_queue_.get() ? send_armed_ : receive_armed_).store(false, std::memory_order_relaxed);
    }
}

// The caller holds arm_mutex_.
void VerbsDomain::take_async_events() {
    ibv_async_event event{};
    while (device_->api().get_async_event(device_->context(), &event) == 0) {
        on_async_event(event);
        device_->api().ack_async_event(&event);
    }
}

void VerbsDomain::on_async_event(const ibv_async_event& event) {
    switch (event.event_type) {
    case IBV_EVENT_PORT_ERR:
    case IBV_EVENT_PORT_ACTIVE:
        if (event.element.port_num == device_->port()) {
            port_up_.store(event.event_type == IBV_EVENT_PORT_ACTIVE, std::memory_order_release);
            tell_state();
        }
        return;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_PATH_MIG_ERR:
        failed_queue_pairs_.push_back(event.element.qp->qp_num);
        failures_.store(true, std::memory_order_release);
        return;
    case IBV_EVENT_QP_LAST_WQE_REACHED:
        drained_queue_pairs_.push_back(event.element.qp->qp_num);
        failures_.store(true, std::memory_order_release);
        return;
    case IBV_EVENT_DEVICE_FATAL:
    case IBV_EVENT_CQ_ERR:
    case IBV_EVENT_SRQ_ERR:
        fatal_.store(true, std::memory_order_release);
        failures_.store(true, std::memory_order_release);
        return;
    case IBV_EVENT_GID_CHANGE:
    case IBV_EVENT_LID_CHANGE:
    case IBV_EVENT_PKEY_CHANGE:
        if (event.element.port_num == device_->port()) {
            tell_state(); // its addresses may have to be chosen again
        }
        return;
    default: // the subnet manager's affairs, and paths that were not asked for
        return;
    }
}

void VerbsDomain::act_on_failures() {
    std::vector<uint32_t> failed;
    std::vector<uint32_t> drained;
    {
        const std::lock_guard lock(arm_mutex_);
        failed.swap(failed_queue_pairs_);
        drained.swap(drained_queue_pairs_);
        failures_.store(false, std::memory_order_release);
    }
    for (const uint32_t number : drained) {
        if (const auto owner = by_queue_pair_.find(number); owner != by_queue_pair_.end()) {
            owner->second->on_last_receive(number);
        }
    }
    for (const uint32_t number : failed) {
        if (const auto owner = by_queue_pair_.find(number); owner != by_queue_pair_.end()) {
            owner->second->on_broken({Status::peer_lost, Reason::lane_reset});
        }
    }
    if (!device_alive()) {
        for (VerbsEndpoint* lane : lanes_) {
            if (lane != nullptr) {
                lane->on_broken({Status::peer_lost, Reason::device_lost});
            }
        }
        // The domain may be closed now. Nobody polls it then, while lanes and their users may still hold it, and its
        // descriptors would wake sleepers for nothing.
        unwatch();
        if (!lost_.exchange(true, std::memory_order_acq_rel)) {
            tell_state();
        }
    }
}

} // namespace zerohop::verbs
