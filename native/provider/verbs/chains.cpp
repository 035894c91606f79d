// The work requests that operations become: chains for the NICs' data, and segments for this lane's other side.
#include "provider/verbs/completion.hpp"
#include "provider/verbs/endpoint.hpp"

#include <algorithm>
#include <arpa/inet.h>
#include <array>
#include <bit>
#include <cstring>
#include <string_view>

namespace zerohop::verbs {

namespace {

// One work request: a run of remote bytes without a gap, and the local pieces that go there or come from there.
struct Run {
    uint64_t remote = 0;
    uint64_t nbytes = 0;
    size_t pieces = 0;
};

// Takes the next run, of `limit` bytes at most, off both walks.
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

void VerbsEndpoint::post_some(uint32_t index) {
    Transfer& transfer = transfers_[index];
    while (!transfer.all_posted) {
        Queue* queue = pick_queue(transfer.nbytes, transfer.chains);
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
    VerbsDomain& domain = *queue.domain;
    const auto room = static_cast<uint32_t>(transfer.pages ? std::min<size_t>(kBatch, queue.free - kReserve) : 1);
    if (!domain.take_room(room)) {
        return false;
    }
    const uint32_t chain = add_chain(Chain::What::transfer, queue, 0, index);
    const uint64_t id = request_id(queue.lane, chains_[chain].generation, chain);
    const uint32_t local_key = transfer.local_keys[queue.rail];
    const uint32_t remote_key = transfer.remote->keys[queue.rail];
    const size_t max_pieces = std::min<size_t>(kMaxSge, queue.pair->max_sge());
    const bool first = transfer.queues_used == 0; // of all its chains, not of those in flight
    std::array<ibv_send_wr, kBatch> requests;
    std::array<ibv_sge, kBatch * kMaxSge> pieces;
    uint32_t count = 0;
    uint64_t nbytes = 0;
    do {
        ibv_send_wr& request = requests[count];
        request = {};
        request.wr_id = id;
        request.sg_list = &pieces[size_t{count} * kMaxSge];
        // A large transfer goes in pieces, so that several queues share it.
        const Run run =
            next_run(transfer.here, transfer.there, request.sg_list, max_pieces, domain.max_piece(), local_key);
        request.num_sge = static_cast<int>(run.pieces);
        request.opcode = transfer.kind == Kind::read ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
        request.wr.rdma.remote_addr = run.remote;
        request.wr.rdma.rkey = remote_key;
        nbytes += run.nbytes;
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
        const auto of_last = static_cast<size_t>(last.num_sge);
        if (of_last != 0 && nbytes <= queue.pair->max_inline() && transfer.local->is_host() &&
            copy_inline({last.sg_list, of_last}, *transfer.local)) {
            last.num_sge = 1;
            last.send_flags |= IBV_SEND_INLINE;
        }
        if (goes_as_immediate(transfer.notify) && transfer.message == nullptr && first && transfer.all_posted) {
            last.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
            last.imm_data = htonl(value_of(transfer.notify));
            transfer.notify = -1;
        }
    }
    chains_[chain].requests = static_cast<uint16_t>(count);
    transfer.queues_used |= 1U << queue.index;
    ++transfer.chains;
    transfer.marks_due = transfer.all_posted && transfer.notify >= 0 && transfer.kind == Kind::write;
    return send(queue, requests.data(), count);
}

uint32_t VerbsEndpoint::add_chain(Chain::What what, const Queue& queue, uint32_t requests, uint32_t owner) {
    const uint32_t index = chains_.add();
    Chain& chain = chains_[index];
    chain.what = what;
    chain.queue = queue.index;
    chain.requests = static_cast<uint16_t>(requests);
    chain.owner = owner;
    chain.data = nullptr;
    return index;
}

// The queue has room by our own count, so only a queue pair that has failed refuses, which ends what was posted.
bool VerbsEndpoint::on_refused() {
    post_failed_.store(true, std::memory_order_release);
    work_due_.store(true, std::memory_order_release);
    host().kick();
    return false;
}

bool VerbsEndpoint::post_marks(uint32_t index) {
    Transfer& transfer = transfers_[index];
    Mark mark;
    mark.nbytes = transfer.nbytes;
    mark.value = value_of(transfer.notify);
    mark.queue = queue_of(transfer.notify);
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
        if (!post_mark({SegmentKind::notify, Chain::What::transfer, index}, i, mark, transfer.message)) {
            return false;
        }
        transfer.queues_left &= ~(1U << i);
        ++transfer.chains;
    }
    transfer.marks_due = false;
    return true;
}

bool VerbsEndpoint::post_mark(const Outgoing& outgoing, size_t queue, const Mark& mark, const Message& message) {
    const std::string_view text = message ? std::string_view(*message) : std::string_view();
    return post_segment(outgoing, queue, sizeof mark + text.size(), [&](std::byte* to) {
        std::memcpy(to, &mark, sizeof mark);
        text.copy(reinterpret_cast<char*>(to + sizeof mark), text.size());
        return sizeof mark + text.size();
    });
}

// Takes room for a segment, and writes its header. Null `bytes`: there is no room.
VerbsEndpoint::Prepared VerbsEndpoint::prepare_segment(SegmentKind kind, size_t queue, size_t nbytes) {
    Queue& into = queues_[queue];
    VerbsDomain& domain = *into.domain;
    if (into.free == 0 || !domain.take_room(1)) {
        return {};
    }
    Prepared prepared;
    prepared.nbytes = sizeof(SegmentHeader) + nbytes;
    if (prepared.nbytes <= into.pair->max_inline()) {
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

void VerbsEndpoint::drop_segment(size_t queue, const Prepared& prepared) {
    VerbsDomain& domain = *queues_[queue].domain;
    if (prepared.buffer) {
        domain.send_buffers().give(prepared.buffer);
    }
    domain.give_room(1);
    segments_->told(segments_->taken() - kStreamWindow / 2); // its header told nobody
}

void VerbsEndpoint::send_segment(const Outgoing& outgoing, size_t queue, const Prepared& prepared) {
    Queue& into = queues_[queue];
    const uint32_t chain = add_chain(outgoing.what, into, 1, outgoing.owner);
    chains_[chain].data = prepared.buffer.data;
    chains_[chain].key = prepared.buffer.key;
    ibv_sge piece{reinterpret_cast<uint64_t>(prepared.bytes), static_cast<uint32_t>(prepared.nbytes),
                  prepared.buffer.key};
    ibv_send_wr request{};
    request.wr_id = request_id(into.lane, chains_[chain].generation, chain) | kLast;
    request.sg_list = &piece;
    request.num_sge = 1;
    request.opcode = IBV_WR_SEND;
    request.send_flags = IBV_SEND_SIGNALED;
    if (!prepared.buffer) {
        request.send_flags |= IBV_SEND_INLINE;
    }
    send(into, &request, 1);
}

} // namespace zerohop::verbs
