// The operations that this end begins and the NICs carry out: how they become work requests.
#include "provider/verbs/completion.hpp"
#include "provider/verbs/endpoint.hpp"

#include <algorithm>
#include <arpa/inet.h>
#include <array>
#include <bit>
#include <cstring>
#include <mutex>

namespace zerohop::verbs {

namespace {

constexpr size_t kBatch = 32;     // work requests behind one doorbell
constexpr size_t kMaxPieces = 4;  // of local memory in one of them
constexpr uint32_t kReserve = 16; // of each queue, for segments and marks: they must not wait for data

// One work request: a run of remote bytes without a gap, and the local pieces that go there or come from there.
struct Run {
    uint64_t remote = 0;
    uint64_t nbytes = 0;
    size_t pieces = 0;
};

// Takes the next run off both walks.
Run next_run(Extents& here, Extents& there, ibv_sge* pieces, size_t max_pieces, uint64_t limit, uint32_t key) {
    Run run;
    run.remote = there.address();
    while (there.left() != 0 && run.nbytes < limit && there.address() == run.remote + run.nbytes) {
        const uint64_t n = std::min({here.contiguous(), there.contiguous(), limit - run.nbytes});
        ibv_sge* last = run.pieces == 0 ? nullptr : &pieces[run.pieces - 1];
        if (last != nullptr && last->addr + last->length == here.address()) {
            last->length += static_cast<uint32_t>(n);
        } else if (run.pieces < max_pieces) {
            pieces[run.pieces++] = {here.address(), static_cast<uint32_t>(n), key};
        } else {
            break;
        }
        here.advance(n);
        there.advance(n);
        run.nbytes += n;
    }
    return run;
}

} // namespace

Posted VerbsEndpoint::post(const Request& request) {
    switch (request.kind) {
    case Kind::write:
    case Kind::read:
        if (request.route->keys) {
            return post_transfer(request);
        }
        break;
    case Kind::fetch_add:
    case Kind::compare_swap:
        if (request.route->keys && request.route->keys->atomics) {
            return post_transfer(request);
        }
        break;
    case Kind::flush:
        return post_flush(request);
    case Kind::notify:
    case Kind::send:
    case Kind::recv:
        break;
    }
    return FramedEndpoint::post(request);
}

Posted VerbsEndpoint::post_transfer(const Request& request) {
    const Route& route = *request.route;
    const bool atomic = request.kind == Kind::fetch_add || request.kind == Kind::compare_swap;
    const uint8_t right = atomic ? kRightRead | kRightWrite : request.kind == Kind::read ? kRightRead : kRightWrite;
    const Outcome allowed = check_range(request, right);
    if (!allowed.ok()) {
        return {Posted::What::failed, allowed};
    }
    if (atomic && (route.keys->address + request.remote_offset) % sizeof(uint64_t) != 0) {
        return {Posted::What::failed, {Status::unsupported, Reason::misaligned}};
    }
    Pin<Region> local;
    if (!atomic) {
        local = Pin<Region>::of(route.local);
        if (!local) {
            return {Posted::What::failed, {Status::closed, Reason::revoked}};
        }
    }
    Pin<RemoteKeys> remote = Pin<RemoteKeys>::of(route.keys);
    if (!remote) {
        return {Posted::What::failed, {Status::access_denied, Reason::revoked}};
    }
    const std::lock_guard lock(lane());
    if (!state().ok() || !connected_.load(std::memory_order_relaxed)) {
        return {Posted::What::failed, state().ok() ? Outcome{Status::closed, Reason::lane_closed} : state()};
    }
    if (transfers_.in_use() >= framed::kWindow) {
        return {Posted::What::retry, {Status::would_block, Reason::window_full}};
    }
    const uint32_t index = transfers_.add();
    Transfer& transfer = transfers_[index];
    transfer.local = std::move(local);
    transfer.remote = std::move(remote);
    begin(transfer, request);
    if (atomic) {
        transfer.word = take_word(transfer.word_index);
    }
    if (pick_queue(transfer) == nullptr || (atomic && transfer.word == nullptr)) {
        drop_transfer(index);
        return {Posted::What::retry, {Status::would_block, Reason::window_full}};
    }
    if (!take_credit(request)) {
        drop_transfer(index);
        return {Posted::What::retry, {Status::would_block, Reason::no_credit}};
    }
    transfer.op = engine().operations().create(request.deadline_ns);
    transfer.epoch = requests().epochs.begin();
    transfer.used = true;
    OpRef op = transfer.op;
    post_some(index);
    if (!transfer.all_posted || transfer.marks_due) {
        posting_.push_back(index);
        work_due_.store(true, std::memory_order_release);
    }
    bytes_direct_.fetch_add(request.nbytes, std::memory_order_relaxed);
    return {Posted::What::posted, {}, std::move(op)};
}

void VerbsEndpoint::begin(Transfer& transfer, const Request& request) {
    const Route& route = *request.route;
    transfer.kind = request.kind;
    transfer.pages = request.pages;
    transfer.nbytes = request.nbytes;
    transfer.notify = request.notify;
    transfer.operand = request.operand;
    transfer.compare = request.compare;
    std::copy_n(route.local_keys.begin(), std::min(route.local_keys.size(), kMaxRails), transfer.local_keys.begin());
    const uint64_t there = route.keys->address + request.remote_offset;
    transfer.there = request.pages ? Extents(there, request.pages->remote.data(), request.pages->remote.size(),
                                             request.pages->page_bytes)
                                   : Extents(there, request.nbytes);
    if (transfer.local) {
        const uint64_t here = transfer.local->address() + request.local_offset;
        transfer.here = request.pages ? Extents(here, request.pages->local.data(), request.pages->local.size(),
                                                request.pages->page_bytes)
                                      : Extents(here, request.nbytes);
    }
    if (request.kind == Kind::write) {
        wrote_since_flush_ = true;
    }
}

uint64_t* VerbsEndpoint::take_word(uint32_t& index) {
    if (!words_) {
        words_ = rails_.front()->send_buffers().take();
        if (!words_) {
            return nullptr;
        }
        for (uint32_t i = kSegmentBytes / sizeof(uint64_t); i-- > 0;) {
            free_words_.push_back(i);
        }
    }
    if (free_words_.empty()) {
        return nullptr;
    }
    index = free_words_.back();
    free_words_.pop_back();
    return reinterpret_cast<uint64_t*>(words_.data) + index;
}

// The one with most room; null when none has enough. What does not fit at once leaves a part of each queue to others.
VerbsEndpoint::Queue* VerbsEndpoint::pick_queue(const Transfer& transfer) {
    const bool many_rails = transfer.nbytes >= static_cast<uint64_t>(rails_.front()->options().rail_bytes);
    Queue* best = nullptr;
    for (Queue& queue : queues_) {
        if (queue.rail != 0 && !many_rails) {
            break; // they are in order of their rails
        }
        const uint32_t kept = transfer.chains == 0 ? 0 : queue.depth / 4;
        if (queue.free > kReserve + kept && (best == nullptr || queue.free > best->free)) {
            best = &queue;
        }
    }
    return best;
}

void VerbsEndpoint::post_some(uint32_t index) {
    Transfer& transfer = transfers_[index];
    while (!transfer.all_posted) {
        Queue* queue = pick_queue(transfer);
        if (queue == nullptr || !post_chain(index, *queue)) {
            return;
        }
    }
    if (transfer.marks_due) {
        post_marks(index);
    }
}

bool VerbsEndpoint::post_chain(uint32_t index, Queue& queue) {
    Transfer& transfer = transfers_[index];
    VerbsDomain& domain = *rails_[queue.rail];
    const bool atomic = transfer.word != nullptr;
    const auto room = static_cast<uint32_t>(transfer.pages ? std::min<size_t>(kBatch, queue.free - kReserve) : 1);
    if (!domain.take_room(room)) {
        return false;
    }
    const auto whole = static_cast<uint64_t>(domain.options().stripe_bytes);
    // One request if that is allowed; a large transfer in pieces, so that several queues share it.
    const uint64_t limit = std::min(domain.opened()->max_message(), transfer.nbytes <= whole ? UINT64_MAX : whole);
    const auto queue_index = static_cast<size_t>(&queue - queues_.data());
    const uint32_t chain = add_chain(Chain::What::transfer, queue, 0, index);
    const uint64_t id = request_id(numbers_[queue.rail], chains_[chain].generation, chain);
    const uint32_t local_key = transfer.local_keys[queue.rail];
    const uint32_t remote_key = transfer.remote->keys[queue.rail];
    const size_t max_pieces = std::min<size_t>(kMaxPieces, queue.pair->max_sge());
    const bool first = transfer.chains == 0;
    std::array<ibv_send_wr, kBatch> requests;
    std::array<ibv_sge, kBatch * kMaxPieces> pieces;
    uint32_t count = 0;
    uint64_t nbytes = 0;
    do {
        ibv_send_wr& request = requests[count];
        request = {};
        request.wr_id = id;
        request.sg_list = &pieces[size_t{count} * kMaxPieces];
        if (atomic) {
            pieces[0] = {reinterpret_cast<uint64_t>(transfer.word), sizeof(uint64_t), words_.key};
            request.num_sge = 1;
            const bool swap = transfer.kind == Kind::compare_swap;
            request.opcode = swap ? IBV_WR_ATOMIC_CMP_AND_SWP : IBV_WR_ATOMIC_FETCH_AND_ADD;
            request.wr.atomic.remote_addr = transfer.there.address();
            request.wr.atomic.rkey = remote_key;
            request.wr.atomic.compare_add = swap ? transfer.compare : transfer.operand;
            request.wr.atomic.swap = transfer.operand;
            transfer.there.advance(sizeof(uint64_t));
        } else {
            const Run run = next_run(transfer.here, transfer.there, request.sg_list, max_pieces, limit, local_key);
            request.num_sge = static_cast<int>(run.pieces);
            request.opcode = transfer.kind == Kind::read ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
            request.wr.rdma.remote_addr = run.remote;
            request.wr.rdma.rkey = remote_key;
            nbytes += run.nbytes;
        }
        if (count != 0) {
            requests[count - 1].next = &request;
        }
        ++count;
    } while (count < room && transfer.there.left() != 0);
    domain.give_room(room - count);
    ibv_send_wr& last = requests[count - 1];
    last.wr_id |= kLast;
    last.send_flags = IBV_SEND_SIGNALED;
    transfer.all_posted = transfer.there.left() == 0;
    if (transfer.kind == Kind::write && count == 1) {
        if (nbytes <= queue.pair->max_inline() && transfer.local->is_host()) {
            last.send_flags |= IBV_SEND_INLINE;
        }
        if (transfer.notify >= 0 && first && transfer.all_posted) {
            last.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
            last.imm_data = htonl(static_cast<uint32_t>(transfer.notify));
            transfer.notify = -1;
        }
    }
    chains_[chain].requests = static_cast<uint16_t>(count);
    transfer.queues_used |= 1U << queue_index;
    ++transfer.chains;
    transfer.marks_due = transfer.all_posted && transfer.notify >= 0;
    return send_chain(chain, queue, requests.data());
}

uint32_t VerbsEndpoint::add_chain(Chain::What what, const Queue& queue, uint32_t requests, uint32_t owner) {
    const uint32_t index = chains_.add();
    Chain& chain = chains_[index];
    chain.what = what;
    chain.queue = static_cast<uint8_t>(&queue - queues_.data());
    chain.requests = static_cast<uint16_t>(requests);
    chain.owner = owner;
    chain.data = nullptr;
    return index;
}

bool VerbsEndpoint::send_chain(uint32_t chain, Queue& queue, ibv_send_wr* first) {
    const uint32_t count = chains_[chain].requests;
    queue.free -= count;
    work_requests_.fetch_add(count, std::memory_order_relaxed);
    ibv_send_wr* bad = nullptr;
    if (ibv_post_send(queue.pair->handle(), first, &bad) == 0) {
        return true;
    }
    // The queue has room by our own count, so that only a queue pair that has failed refuses. The chain ends with it.
    post_failed_.store(true, std::memory_order_release);
    return false;
}

bool VerbsEndpoint::post_marks(uint32_t index) {
    Transfer& transfer = transfers_[index];
    Mark mark;
    mark.nbytes = transfer.nbytes;
    mark.value = static_cast<uint32_t>(transfer.notify);
    mark.parts = static_cast<uint32_t>(std::popcount(transfer.queues_used));
    if (!transfer.marked) {
        transfer.marked = true;
        transfer.ticket = next_ticket_++;
        transfer.queues_left = transfer.queues_used;
    }
    mark.ticket = transfer.ticket;
    for (size_t i = 0; i < queues_.size(); ++i) {
        if ((transfer.queues_left >> i & 1) == 0) {
            continue;
        }
        if (!post_mark({SegmentKind::notify, Chain::What::transfer, index}, i, mark)) {
            return false;
        }
        transfer.queues_left &= ~(1U << i);
        ++transfer.chains;
    }
    transfer.marks_due = false;
    return true;
}

bool VerbsEndpoint::post_mark(const Outgoing& outgoing, size_t queue, const Mark& mark) {
    return post_segment(outgoing, queue, sizeof mark, [&](std::byte* to) { std::memcpy(to, &mark, sizeof mark); });
}

// With room for it taken, and its header written; no bytes where there is none.
VerbsEndpoint::Prepared VerbsEndpoint::prepare_segment(SegmentKind kind, size_t queue, size_t nbytes) {
    Queue& into = queues_[queue];
    VerbsDomain& domain = *rails_[into.rail];
    if (into.free == 0 || !domain.take_room(1)) {
        return {};
    }
    Prepared prepared;
    prepared.nbytes = sizeof(SegmentHeader) + nbytes;
    if (prepared.nbytes <= small_.size() && prepared.nbytes <= into.pair->max_inline()) {
        prepared.bytes = small_.data();
    } else {
        prepared.buffer = domain.send_buffers().take();
        prepared.bytes = prepared.buffer.data;
        if (prepared.bytes == nullptr) {
            domain.give_room(1);
            return {};
        }
    }
    SegmentHeader header;
    header.kind = kind;
    if (kind == SegmentKind::stream || kind == SegmentKind::taken) {
        header.taken = segments_->taken();
        segments_->told(header.taken);
    }
    std::memcpy(prepared.bytes, &header, sizeof header);
    return prepared;
}

void VerbsEndpoint::send_segment(const Outgoing& outgoing, size_t queue, const Prepared& prepared) {
    Queue& into = queues_[queue];
    const uint32_t chain = add_chain(outgoing.what, into, 1, outgoing.owner);
    chains_[chain].data = prepared.buffer.data;
    chains_[chain].key = prepared.buffer.key;
    ibv_sge piece{reinterpret_cast<uint64_t>(prepared.bytes), static_cast<uint32_t>(prepared.nbytes),
                  prepared.buffer.key};
    ibv_send_wr request{};
    request.wr_id = request_id(numbers_[into.rail], chains_[chain].generation, chain) | kLast;
    request.sg_list = &piece;
    request.num_sge = 1;
    request.opcode = IBV_WR_SEND;
    request.send_flags = IBV_SEND_SIGNALED;
    if (!prepared.buffer) {
        request.send_flags |= IBV_SEND_INLINE;
    }
    send_chain(chain, into, &request);
}

void VerbsEndpoint::pump_transfers() {
    for (size_t turns = posting_.size(); turns != 0; --turns) {
        const uint32_t index = posting_.front();
        posting_.pop_front();
        // Its deadline has passed, or it was cancelled. What is announced on some queues must be on all.
        if (transfers_[index].op->done() && !transfers_[index].marked) {
            give_up_rest(transfers_[index]);
            if (transfers_[index].chains == 0) {
                requests().epochs.end(transfers_[index].epoch);
                drop_transfer(index);
            }
            continue;
        }
        post_some(index);
        if (!transfers_[index].all_posted || transfers_[index].marks_due) {
            posting_.push_back(index);
        }
    }
}

Posted VerbsEndpoint::post_flush(const Request& request) {
    const std::lock_guard lock(lane());
    if (!state().ok() || !connected_.load(std::memory_order_relaxed)) {
        return {Posted::What::failed, state().ok() ? Outcome{Status::closed, Reason::lane_closed} : state()};
    }
    // The first one always crosses: whoever has opened the lane learns by it whether the fabric carries anything.
    if (proved_ && requests().epochs.empty() && !wrote_since_flush_ && flushes_.empty()) {
        return {};
    }
    proved_ = true;
    Flush flush;
    flush.op = engine().operations().create(request.deadline_ns);
    flush.before = engine().operations().create(request.deadline_ns);
    flush.ticket = next_ticket_++;
    requests().epochs.flush(flush.before);
    wrote_since_flush_ = false;
    OpRef op = flush.op;
    flushes_.push_back(std::move(flush));
    work_due_.store(true, std::memory_order_release);
    return {Posted::What::posted, {}, std::move(op)};
}

} // namespace zerohop::verbs
