// Carries out the requests that are posted.
#include "state.hpp"

#include <cerrno>
#include <thread>

namespace zerohop::fake {

namespace {

ibv_wc_opcode completed_as(ibv_wr_opcode opcode) {
    switch (opcode) {
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
        return IBV_WC_RDMA_WRITE;
    case IBV_WR_RDMA_READ:
        return IBV_WC_RDMA_READ;
    case IBV_WR_ATOMIC_CMP_AND_SWP:
        return IBV_WC_COMP_SWAP;
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
        return IBV_WC_FETCH_ADD;
    default:
        return IBV_WC_SEND;
    }
}

void end(QueuePair& pair, const Send& send, ibv_wc_status status) {
    const bool signalled = pair.all_signalled || (send.request.send_flags & IBV_SEND_SIGNALED) != 0;
    if (status == IBV_WC_SUCCESS && !signalled) {
        return;
    }
    Completion completion;
    completion.entry.wr_id = send.request.wr_id;
    completion.entry.status = status;
    completion.entry.opcode = completed_as(send.request.opcode);
    completion.entry.qp_num = pair.qp_num;
    completion.sender = &pair;
    completion.place = send.place;
    complete(pair.sent(), completion);
}

} // namespace

void stop(QueuePair& pair) {
    if (pair.state == IBV_QPS_ERR) {
        return;
    }
    pair.state = IBV_QPS_ERR;
    for (const Send& send : pair.sends) {
        end(pair, send, IBV_WC_WR_FLUSH_ERR);
    }
    pair.sends.clear();
    for (const Receive& receive : pair.receives.posted) {
        Completion completion;
        completion.entry.wr_id = receive.id;
        completion.entry.status = IBV_WC_WR_FLUSH_ERR;
        completion.entry.qp_num = pair.qp_num;
        complete(pair.received(), completion);
    }
    pair.receives.posted.clear();
    if (pair.srq != nullptr) {
        raise_for(pair, IBV_EVENT_QP_LAST_WQE_REACHED);
    }
}

void progress(QueuePair& pair) {
    while (pair.state == IBV_QPS_RTS && !pair.sends.empty() && !world().requests_held && !pair.of().dead) {
        ibv_wc_status status = IBV_WC_SUCCESS;
        if (carry_out(pair, pair.sends.front(), status) == Turn::wait) {
            return;
        }
        const Send send = std::move(pair.sends.front());
        pair.sends.pop_front();
        end(pair, send, status);
        if (status != IBV_WC_SUCCESS) {
            stop(pair);
        }
    }
}

void progress_all() {
    for (const auto& [number, pair] : world().queue_pairs) {
        progress(*pair);
    }
}

int post_send(ibv_qp* qp, ibv_send_wr* first, ibv_send_wr** bad) {
    std::unique_lock lock(world().mutex);
    ++world().posts_waiting;
    world().acknowledged.wait(lock, [&] { return !world().posts_held.contains(qp->qp_num); });
    --world().posts_waiting;
    if (world().posts_slow.contains(qp->qp_num)) {
        const std::chrono::nanoseconds how_long = world().slow_post;
        lock.unlock();
        std::this_thread::sleep_for(how_long); // the knob asks for this delay
        lock.lock();
    }
    auto& pair = *static_cast<QueuePair*>(qp);
    int error = 0;
    for (ibv_send_wr* request = first; request != nullptr && error == 0; request = request->next) {
        const bool inlined = (request->send_flags & IBV_SEND_INLINE) != 0;
        Send send{*request, {request->sg_list, request->sg_list + request->num_sge}, {}, pair.posted + 1};
        if (inlined) {
            for (const ibv_sge& piece : send.pieces) {
                const auto* from = reinterpret_cast<const std::byte*>(piece.addr);
                send.inlined.insert(send.inlined.end(), from, from + piece.length);
            }
        }
        const ibv_wc_opcode what = completed_as(request->opcode);
        if ((pair.state != IBV_QPS_RTS && pair.state != IBV_QPS_ERR) ||
            request->num_sge > static_cast<int>(pair.limits.max_send_sge) ||
            send.inlined.size() > pair.limits.max_inline_data ||
            (inlined && what != IBV_WC_SEND && what != IBV_WC_RDMA_WRITE)) {
            error = EINVAL;
        } else if (pair.posted - pair.freed == pair.limits.max_send_wr) {
            error = ENOMEM;
        }
        if (error != 0) {
            *bad = request;
            ++world().open.misuses;
            break;
        }
        ++pair.posted;
        if (pair.state == IBV_QPS_ERR) {
            end(pair, send, IBV_WC_WR_FLUSH_ERR);
        } else {
            pair.sends.push_back(std::move(send));
        }
    }
    progress(pair);
    return error;
}

} // namespace zerohop::fake
