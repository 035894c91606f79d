// The shortest way, which nearly all operations go: one work request, whose completion ends the operation. Longer ones
// are chains (chains.cpp).
#include "provider/verbs/completion.hpp"
#include "provider/verbs/endpoint.hpp"

#include <arpa/inet.h>
#include <mutex>

namespace zerohop::verbs {

bool VerbsEndpoint::fits_one_request(const Request& request, const Queue& queue) {
    return !request.pages && request.nbytes <= queue.domain->max_piece() &&
           (request.notify < 0 ||
            (request.kind == Kind::write && goes_as_immediate(request.notify) && request.message == nullptr));
}

// Posts it; room for its completion has been taken.
void VerbsEndpoint::post_one(Transfer& transfer, uint32_t index, const Request& operation, Queue& queue) {
    const auto& access = static_cast<const KeyedAccess&>(*operation.route->access);
    const uint64_t there = access.keys->address + operation.remote_offset;
    const uint32_t remote_key = access.keys->keys[queue.rail];
    transfer.is_one = true;
    transfer.queue = queue.index;
    ibv_sge piece;
    ibv_send_wr request; // what its opcode has no use for is left alone: to clear all of it costs as much as the rest
    request.next = nullptr;
    request.wr_id = request_id(queue.lane, transfer.generation, index) | kOne | kLast;
    request.sg_list = &piece;
    request.send_flags = IBV_SEND_SIGNALED;
    if (operation.kind == Kind::write || operation.kind == Kind::read) {
        const auto nbytes = static_cast<uint32_t>(operation.nbytes);
        piece = {transfer.local->address() + operation.local_offset, nbytes, access.local_keys[queue.rail]};
        request.num_sge = static_cast<int>(nbytes != 0); // to devices a piece of no bytes may be one of 2^31
        request.wr.rdma.remote_addr = there;
        request.wr.rdma.rkey = remote_key;
        request.opcode = operation.kind == Kind::read ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
        if (operation.kind == Kind::write && nbytes <= queue.pair->max_inline() && transfer.local->is_host() &&
            copy_inline({&piece, 1}, *transfer.local)) {
            request.send_flags |= IBV_SEND_INLINE;
        }
        if (operation.notify >= 0) {
            request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
            request.imm_data = htonl(value_of(operation.notify));
        }
    } else {
        const bool swap = operation.kind == Kind::compare_swap;
        transfer.word_index = free_words_.back();
        free_words_.pop_back();
        transfer.word = reinterpret_cast<uint64_t*>(words_.data) + transfer.word_index;
        piece = {reinterpret_cast<uint64_t>(transfer.word), sizeof(uint64_t), words_.key};
        request.num_sge = 1;
        request.opcode = swap ? IBV_WR_ATOMIC_CMP_AND_SWP : IBV_WR_ATOMIC_FETCH_AND_ADD;
        request.wr.atomic.remote_addr = there;
        request.wr.atomic.rkey = remote_key;
        request.wr.atomic.compare_add = swap ? operation.compare : operation.operand;
        request.wr.atomic.swap = operation.operand;
    }
    ++ones_;
    send(queue, &request, 1);
}

// Takes its request back.
[[gnu::always_inline]] inline void VerbsEndpoint::end_one(Transfer& transfer, uint32_t index) {
    Queue& queue = queues_[transfer.queue];
    ++queue.free;
    queue.domain->give_room(1);
    --ones_;
    ++transfer.generation;
    transfer.used = transfer.is_one = false;
    transfer.local.reset();
    transfer.remote.reset();
    if (transfer.word != nullptr) {
        transfer.word = nullptr;
        free_words_.push_back(transfer.word_index);
    }
    transfers_.remove(index);
}

bool VerbsEndpoint::on_one_sent(const ibv_wc& completion) {
    const bool succeeded = completion.status == IBV_WC_SUCCESS;
    Outcome outcome = succeeded ? Outcome{} : failure_of(completion);
    OpRef op;
    uint64_t nbytes = 0;
    uint64_t value = 0;
    {
        if (!lock_for(completion)) {
            return false;
        }
        const std::lock_guard lock(lane(), std::adopt_lock);
        const uint32_t index = index_of(completion.wr_id);
        if (index >= transfers_.size()) {
            return true;
        }
        Transfer& transfer = transfers_[index];
        if (!transfer.is_one || transfer.generation != generation_of(completion.wr_id)) {
            return true; // of a queue pair that is gone
        }
        op.swap(transfer.op);
        nbytes = transfer.nbytes;
        if (succeeded && transfer.local && transfer.local->moved()) {
            outcome = kLocalMoved; // the NIC has kept the pages of before
        }
        value = transfer.word == nullptr ? 0 : *transfer.word;
        if (!closing_) {
            requests().epochs.end(transfer.epoch);
        }
        end_one(transfer, index); // unpins, before anybody can see the end
    }
    if (!succeeded) {
        break_off(outcome);
    }
    if (!op) { // the lane had been closed
        host().wake_waiters();
        return true;
    }
    outcome = as_the_peer_lives(outcome);
    host().finish(op, outcome, outcome.ok() ? nbytes : 0, value);
    return true;
}

void VerbsEndpoint::end_ones() {
    for (uint32_t i = 0; ones_ != 0 && i < transfers_.size(); ++i) {
        if (transfers_[i].is_one) {
            end_one(transfers_[i], i);
        }
    }
}

} // namespace zerohop::verbs
