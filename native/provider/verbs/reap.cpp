// The completions of a domain: ends of the requests that its lanes have posted, and messages that have come in for
// them.
#include "provider/verbs/completion.hpp"
#include "provider/verbs/domain.hpp"
#include "provider/verbs/endpoint.hpp"

#include <algorithm>
#include <array>
#include <mutex>

namespace zerohop::verbs {

Found VerbsDomain::poll() {
    const Found found = reap();
    if (failures_.load(std::memory_order_acquire)) {
        act_on_failures();
        return Found::work;
    }
    if (++polls_ % kLookForEvents == 0) {
        const std::lock_guard lock(arm_mutex_);
        take_async_events();
    }
    return found;
}

Found VerbsDomain::reap() {
    const bool unseen = unseen_.load(std::memory_order_relaxed);
    if (unseen) {
        unseen_.store(false, std::memory_order_seq_cst); // before the look
    }
    std::array<ibv_wc, kBatch> ended;
    const bool kept = kept_.load(std::memory_order_relaxed);
    const int sent = kept ? take_kept(ended.data()) : ibv_poll_cq(send_queue_.get(), int{kBatch}, ended.data());
    if (sent > 0) {
        host_.accelerators().flush_inbound(); // what was read
    }
    int taken = 0;
    while (taken < sent) {
        const ibv_wc& completion = ended[static_cast<size_t>(taken)];
        VerbsEndpoint* lane = lanes_[lane_of(completion.wr_id)]; // lanes_ never shrinks; null: it has left
        if (lane == nullptr || lane->on_sent(completion)) [[likely]] {
            ++taken;
        } else if (settling_ || (kept && now_ns() >= kept_since_ns_ + kPatience)) {
            lane->wait_for_turn();
        } else {
            keep(ended.data() + taken, ended.data() + sent, kept);
            break;
        }
    }
    // While nothing but ends comes, half of the looks are saved. Where nobody looks again, the queue is armed.
    const bool may_be_more = sent == int{kBatch} || kept;
    skipped_ = !skipped_ && taken > 0 && !may_be_more && !unseen && receive_armed_.load(std::memory_order_relaxed);
    if (skipped_) {
        return Found::ends;
    }
    const int received = ibv_poll_cq(receive_queue_.get(), int{kBatch}, ended.data());
    if (received > 0) {
        host_.accelerators().flush_inbound(); // what was written
        take_receives({ended.data(), static_cast<size_t>(received)});
    }
    if ((may_be_more && taken == sent) || received == int{kBatch}) {
        unseen_.store(true, std::memory_order_relaxed);
    }
    return received > 0 ? Found::work : taken > 0 ? Found::ends : Found::nothing;
}

// Keeps the completions from the first one on whose lane is being posted to, because their order matters. The lane is
// not waited for at first: over some devices that takes long. In the end its lock is waited for (kPatience).
void VerbsDomain::keep(const ibv_wc* first, const ibv_wc* last, bool again) {
    if (!again) {
        kept_since_ns_ = now_ns();
    }
    kept_ends_.assign(first, last);
    kept_.store(true, std::memory_order_relaxed);
}

void VerbsDomain::settle() {
    settling_ = true;
    reap();
    settling_ = false;
}

int VerbsDomain::take_kept(ibv_wc* ended) {
    std::copy(kept_ends_.begin(), kept_ends_.end(), ended);
    kept_.store(false, std::memory_order_relaxed);
    return static_cast<int>(kept_ends_.size());
}

void VerbsDomain::take_receives(std::span<const ibv_wc> ended) {
    for (const ibv_wc& completion : ended) {
        const auto index = static_cast<uint32_t>(completion.wr_id);
        const Segment segment{index, receives_[index].data, completion.byte_len};
        const auto owner = by_queue_pair_.find(completion.qp_num);
        if (completion.status != IBV_WC_SUCCESS || owner == by_queue_pair_.end() ||
            !owner->second->on_received(completion, segment)) {
            repost(segment);
        }
    }
    if (!idle_receives_.empty()) {
        fill_receives();
    }
}

void VerbsDomain::forget(uint32_t queue_pair) {
    by_queue_pair_.erase(queue_pair);
    settling_ = true;
    while (reap() != Found::nothing) { // what is left of it names nobody any more
    }
    settling_ = false;
    const std::lock_guard lock(arm_mutex_);
    std::erase(failed_queue_pairs_, queue_pair); // its number may be another's soon
    std::erase(drained_queue_pairs_, queue_pair);
}

void VerbsDomain::repost(const Segment& segment) {
    if (!post_receive(segment.index)) {
        idle_receives_.push_back(segment.index);
    }
}

bool VerbsDomain::post_receive(uint32_t index) {
    ibv_sge piece{reinterpret_cast<uint64_t>(receives_[index].data), kSegmentBytes, receives_[index].key};
    ibv_recv_wr request{};
    request.wr_id = index;
    request.sg_list = &piece;
    request.num_sge = 1;
    ibv_recv_wr* bad = nullptr;
    return ibv_post_srq_recv(shared_receive_.get(), &request, &bad) == 0;
}

// Posts as many receives as the lanes may need. With very many lanes they are fewer; a sender that finds none tries
// again by itself.
void VerbsDomain::fill_receives() {
    while (!idle_receives_.empty() && post_receive(idle_receives_.back())) {
        idle_receives_.pop_back();
    }
    const auto wanted = static_cast<uint32_t>(lane_count_.load()) * kReceivesPerLane;
    const uint32_t target = std::clamp(wanted, std::min(kMinReceives, most_receives_), most_receives_);
    while (receives_.size() < target) {
        const Buffer buffer = receive_buffers_.take();
        if (!buffer) {
            return;
        }
        receives_.push_back(buffer);
        if (!post_receive(static_cast<uint32_t>(receives_.size() - 1))) {
            idle_receives_.push_back(static_cast<uint32_t>(receives_.size() - 1));
            return;
        }
    }
}

} // namespace zerohop::verbs
