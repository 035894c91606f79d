// Implements queue pairs and their states, and shared receive queues.
#include "state.hpp"

#include <cerrno>
#include <cstring>

namespace zerohop::fake {

namespace {

int post_to(ReceiveQueue& queue, ibv_recv_wr* first, ibv_recv_wr** bad) {
    for (ibv_recv_wr* request = first; request != nullptr; request = request->next) {
        if (queue.posted.size() == queue.capacity || request->num_sge > queue.max_sge) {
            *bad = request;
            ++world().open.misuses;
            return ENOMEM;
        }
        queue.posted.push_back({request->wr_id, {request->sg_list, request->sg_list + request->num_sge}});
    }
    progress_all(); // a request may have waited for the receive
    return 0;
}

// Copies those attributes that libibverbs copies.
void merge(ibv_qp_attr& now, const ibv_qp_attr& wanted, int mask) {
    const auto take = [&](int bit, auto ibv_qp_attr::* field) {
        if ((mask & bit) != 0) {
            now.*field = wanted.*field;
        }
    };
    take(IBV_QP_STATE, &ibv_qp_attr::qp_state);
    take(IBV_QP_PKEY_INDEX, &ibv_qp_attr::pkey_index);
    take(IBV_QP_PORT, &ibv_qp_attr::port_num);
    take(IBV_QP_ACCESS_FLAGS, &ibv_qp_attr::qp_access_flags);
    take(IBV_QP_AV, &ibv_qp_attr::ah_attr);
    take(IBV_QP_PATH_MTU, &ibv_qp_attr::path_mtu);
    take(IBV_QP_DEST_QPN, &ibv_qp_attr::dest_qp_num);
    take(IBV_QP_RQ_PSN, &ibv_qp_attr::rq_psn);
    take(IBV_QP_SQ_PSN, &ibv_qp_attr::sq_psn);
    take(IBV_QP_MAX_DEST_RD_ATOMIC, &ibv_qp_attr::max_dest_rd_atomic);
    take(IBV_QP_MAX_QP_RD_ATOMIC, &ibv_qp_attr::max_rd_atomic);
    take(IBV_QP_MIN_RNR_TIMER, &ibv_qp_attr::min_rnr_timer);
    take(IBV_QP_TIMEOUT, &ibv_qp_attr::timeout);
    take(IBV_QP_RETRY_CNT, &ibv_qp_attr::retry_cnt);
    take(IBV_QP_RNR_RETRY, &ibv_qp_attr::rnr_retry);
}

// True if a queue pair may go from one state to the other with exactly the attributes that the specification demands.
bool may_become(ibv_qp_state from, ibv_qp_state to, int mask) {
    switch (to) {
    case IBV_QPS_RESET:
    case IBV_QPS_ERR:
        return mask == IBV_QP_STATE;
    case IBV_QPS_INIT:
        return from == IBV_QPS_RESET && mask == (IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    case IBV_QPS_RTR:
        return from == IBV_QPS_INIT && mask == (IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                                IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    case IBV_QPS_RTS:
        return from == IBV_QPS_RTR && mask == (IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                               IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC);
    default:
        return false;
    }
}

// Checks the path as a device does.
bool path_is_possible(const QueuePair& pair, const ibv_qp_attr& wanted) {
    const Device& device = *pair.of().of;
    const bool ethernet = device.port.link_layer == IBV_LINK_LAYER_ETHERNET;
    const ibv_ah_attr& path = wanted.ah_attr;
    return path.port_num == 1 && wanted.path_mtu <= device.port.active_mtu && (path.is_global != 0 || !ethernet) &&
           (path.is_global == 0 || path.grh.sgid_index < device.gids.size()) &&
           wanted.max_dest_rd_atomic <= device.limits.max_qp_rd_atom;
}

} // namespace

void raise_for(QueuePair& pair, ibv_event_type type) {
    Event event;
    event.event.event_type = type;
    event.event.element.qp = &pair;
    event.acknowledged = &pair.async_acknowledged;
    raise(pair.of(), event);
}

int post_recv(ibv_qp* qp, ibv_recv_wr* first, ibv_recv_wr** bad) {
    const std::lock_guard lock(world().mutex);
    return post_to(static_cast<QueuePair*>(qp)->receives, first, bad);
}

int post_srq_recv(ibv_srq* srq, ibv_recv_wr* first, ibv_recv_wr** bad) {
    const std::lock_guard lock(world().mutex);
    return post_to(static_cast<SharedReceiveQueue*>(srq)->queue, first, bad);
}

} // namespace zerohop::fake

using namespace zerohop::fake;

extern "C" {

ibv_srq* ibv_create_srq(ibv_pd* pd, ibv_srq_init_attr* wanted) {
    const std::lock_guard lock(world().mutex);
    if (fails(Call::create_srq, pd->context)) {
        return nullptr;
    }
    auto* shared = new SharedReceiveQueue;
    shared->context = pd->context;
    shared->pd = pd;
    shared->queue.capacity = wanted->attr.max_wr;
    shared->queue.max_sge = static_cast<int>(wanted->attr.max_sge);
    ++static_cast<Domain*>(pd)->users;
    ++world().open.shared_receive_queues;
    world().shared_receive_queues.insert(shared);
    return shared;
}

int ibv_destroy_srq(ibv_srq* srq) {
    const std::lock_guard lock(world().mutex);
    auto* shared = static_cast<SharedReceiveQueue*>(srq);
    if (shared->users != 0) {
        ++world().open.misuses;
        return EBUSY;
    }
    --static_cast<Domain*>(shared->pd)->users;
    --world().open.shared_receive_queues;
    world().shared_receive_queues.erase(shared);
    delete shared;
    return 0;
}

ibv_qp* ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr* wanted) {
    const std::lock_guard lock(world().mutex);
    if (fails(Call::create_qp, pd->context)) {
        return nullptr;
    }
    if (wanted->qp_type != IBV_QPT_RC || wanted->cap.max_inline_data > kMaxInline ||
        wanted->cap.max_send_sge > kMaxSge) {
        errno = EINVAL;
        return nullptr;
    }
    auto* pair = new QueuePair;
    pair->context = pd->context;
    pair->pd = pd;
    pair->send_cq = wanted->send_cq;
    pair->recv_cq = wanted->recv_cq;
    pair->srq = wanted->srq;
    pair->qp_type = wanted->qp_type;
    pair->state = IBV_QPS_RESET;
    pair->qp_num = world().next_number;
    world().next_number += 0x11;
    pair->limits = wanted->cap;
    pair->made_with = *wanted;
    pair->all_signalled = wanted->sq_sig_all != 0;
    pair->receives.capacity = wanted->cap.max_recv_wr;
    pair->receives.max_sge = static_cast<int>(wanted->cap.max_recv_sge);
    world().queue_pairs[pair->qp_num] = pair;
    ++pair->sent().users;
    ++pair->received().users;
    if (pair->srq != nullptr) {
        ++static_cast<SharedReceiveQueue*>(pair->srq)->users;
    }
    ++static_cast<Domain*>(pd)->users;
    ++world().open.queue_pairs;
    return pair;
}

int ibv_modify_qp(ibv_qp* qp, ibv_qp_attr* wanted, int mask) {
    std::unique_lock lock(world().mutex);
    ++world().connects_waiting;
    world().acknowledged.wait(lock, [&] { return !world().connects_held || wanted->qp_state != IBV_QPS_RTR; });
    --world().connects_waiting;
    auto& pair = *static_cast<QueuePair*>(qp);
    if (fails(Call::modify_qp, qp->context)) {
        return errno;
    }
    if ((mask & IBV_QP_STATE) == 0 || !may_become(pair.state, wanted->qp_state, mask) ||
        (wanted->qp_state == IBV_QPS_RTR && !path_is_possible(pair, *wanted))) {
        return EINVAL;
    }
    pair.history[wanted->qp_state] = {*wanted, mask};
    merge(pair.now, *wanted, mask);
    if (wanted->qp_state == IBV_QPS_ERR) {
        stop(pair);
    }
    pair.state = wanted->qp_state;
    progress_all(); // queue pairs that send to it wait until it is ready, and find out when it stops
    return 0;
}

int ibv_query_qp(ibv_qp* qp, ibv_qp_attr* attributes, int /*mask*/, ibv_qp_init_attr* made_with) {
    const std::lock_guard lock(world().mutex);
    const auto& pair = *static_cast<QueuePair*>(qp);
    *attributes = pair.now;
    attributes->qp_state = attributes->cur_qp_state = pair.state;
    attributes->cap = pair.limits;
    *made_with = pair.made_with;
    return static_cast<Context*>(qp->context)->dead ? EIO : 0;
}

int ibv_destroy_qp(ibv_qp* qp) {
    std::unique_lock lock(world().mutex);
    auto* pair = static_cast<QueuePair*>(qp);
    world().queue_pairs.erase(pair->qp_num);
    forget_events(pair->of(), &pair->async_acknowledged);
    world().acknowledged.wait(lock, [&] { return pair->async_told == pair->async_acknowledged; });
    // As the drivers of NICs do, this leaves nothing of the queue pair in its completion queues.
    for (CompletionQueue* queue : {&pair->sent(), &pair->received()}) {
        std::erase_if(queue->entries, [&](const Completion& each) { return each.entry.qp_num == pair->qp_num; });
        --queue->users;
    }
    if (pair->srq != nullptr) {
        --static_cast<SharedReceiveQueue*>(pair->srq)->users;
    }
    --static_cast<Domain*>(pair->pd)->users;
    --world().open.queue_pairs;
    delete pair;
    progress_all(); // queue pairs that sent to it find out
    return 0;
}

} // extern "C"
