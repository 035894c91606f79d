// How completions end the operations that this end began, and give back what those held.
#include "provider/verbs/completion.hpp"

#include "provider/verbs/endpoint.hpp"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <thread>

namespace zerohop::verbs {

// Watches the port for a while if the device blames its own memory (kPortLooks).
Outcome VerbsEndpoint::failure_of(const ibv_wc& completion) const {
    const Outcome outcome = outcome_of(completion.status);
    if (outcome.reason != Reason::local_access) {
        return outcome;
    }
    for (int look = 0; look < kPortLooks; ++look) {
        if (!std::all_of(rails_.begin(), rails_.end(), [](const auto& rail) { return rail->port_active(); })) {
            return {Status::peer_lost, Reason::port_down};
        }
        std::this_thread::sleep_for(std::chrono::nanoseconds(kPortPause));
    }
    return outcome;
}

// Asked after the answer: a write that succeeds was accepted by a living peer; and a process that dies takes its memory
// back before its queue pairs, which then refuse what they would have taken.
Outcome VerbsEndpoint::as_the_peer_lives(Outcome outcome) const {
    const Outcome living = host().look_at(peer());
    return living.ok() ? outcome : living;
}

bool VerbsEndpoint::on_chain_sent(const ibv_wc& completion) {
    const Outcome failure = completion.status == IBV_WC_SUCCESS ? Outcome{} : failure_of(completion);
    const uint32_t index = index_of(completion.wr_id);
    OpRef op;
    Outcome outcome;
    uint64_t nbytes = 0;
    int64_t read = -1; // what its owner is to be told
    Message message;
    bool broken = false;
    bool over = false;
    {
        if (!lock_for(completion)) {
            return false;
        }
        const std::lock_guard lock(lane(), std::adopt_lock);
        if (index >= chains_.size()) {
            return true;
        }
        Chain& chain = chains_[index];
        if (chain.what == Chain::What::none || chain.generation != generation_of(completion.wr_id)) {
            return true; // of a queue pair that is gone
        }
        const bool of_transfer = chain.what == Chain::What::transfer;
        const uint32_t owner = chain.owner;
        if (completion.status != IBV_WC_SUCCESS) {
            broken = true;
            if (of_transfer && transfers_[owner].outcome.ok()) {
                transfers_[owner].outcome = failure;
            }
        }
        if ((completion.wr_id & kLast) != 0) {
            end_chain(chain, index);
            over = of_transfer && end_transfer_if_over(owner, op, outcome, nbytes, read, message);
        }
    }
    if (broken) {
        break_off(failure);
    }
    if (op) {
        outcome = as_the_peer_lives(outcome);
        // The owner is told of no read that ends otherwise, by a deadline or cancel().
        if (read >= 0 && outcome.ok() && op->claim()) {
            outcome = push_notify(read, nbytes, message);
            op->finish_claimed(outcome, outcome.ok() ? nbytes : 0);
        } else {
            give_credit_back(read);
            host().finish(op, outcome, outcome.ok() ? nbytes : 0);
        }
    } else if (over) {
        host().wake_waiters(); // the lane had been closed
    }
    return true;
}

// Takes back its requests, and what they were sent from.
void VerbsEndpoint::end_chain(Chain& chain, uint32_t index) {
    Queue& queue = queues_[chain.queue];
    queue.free += chain.requests;
    queue.domain->give_room(chain.requests);
    if (chain.what == Chain::What::transfer) {
        --transfers_[chain.owner].chains;
    }
    if (chain.data != nullptr) {
        queue.domain->send_buffers().give({chain.data, chain.key});
        chain.data = nullptr;
    }
    chain.what = Chain::What::none;
    ++chain.generation;
    chains_.remove(index);
}

// Ends a transfer of which nothing is under way or still to be posted. Unpins before anybody can see the end.
bool VerbsEndpoint::end_transfer_if_over(uint32_t index, OpRef& op, Outcome& outcome, uint64_t& nbytes, int64_t& read,
                                         Message& message) {
    Transfer& transfer = transfers_[index];
    if (transfer.chains != 0 || ((!transfer.all_posted || transfer.marks_due) && transfer.outcome.ok() && !closing_)) {
        return false;
    }
    if (!transfer.all_posted || transfer.marks_due) {
        std::erase(posting_, index);
    }
    op = std::move(transfer.op);
    outcome = transfer.outcome.ok() && transfer.local && transfer.local->moved() ? kLocalMoved : transfer.outcome;
    nbytes = transfer.nbytes;
    if (transfer.kind == Kind::read && op && outcome.ok()) {
        read = transfer.notify;
        message = std::move(transfer.message);
    } else if (!transfer.marked) {
        give_credit_back(transfer.notify); // nothing was announced
    }
    if (!closing_) {
        requests().epochs.end(transfer.epoch);
    }
    drop_transfer(transfer, index);
    return true;
}

// Drops what is not posted yet, and the announcement: nobody waits for them.
void VerbsEndpoint::give_up_rest(Transfer& transfer) {
    transfer.there = {};
    transfer.all_posted = true;
    transfer.marks_due = false;
    give_credit_back(transfer.notify);
    transfer.notify = -1;
}

void VerbsEndpoint::drop_transfer(Transfer& transfer, uint32_t index) {
    transfer.clear();
    transfers_.remove(index);
}

} // namespace zerohop::verbs
