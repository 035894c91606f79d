// The peer's answers to the operations that this end has begun, and how they end them.
#include "provider/framed/endpoint.hpp"

#include <mutex>
#include <vector>

namespace zerohop::framed {

// The caller holds the lane's lock.
void FramedEndpoint::note_answer(Outstanding& outstanding, const FrameHeader& header) {
    Outcome outcome = outcome_of(header);
    if (outcome.status == Status::cancelled) { // only this end cancels, and then nobody asks for the outcome
        outcome = {Status::protocol, Reason::malformed};
    }
    if (header.has(kLast)) {
        --outstanding.answers_due;
        const bool whole = outstanding.kind != Kind::read || outstanding.pieces.total() == outstanding.nbytes;
        if (outstanding.answers_due == 0 && outcome.ok() && !whole) {
            outcome = {Status::protocol, Reason::malformed};
        }
    }
    if (!outcome.ok() && outstanding.outcome.ok()) {
        outstanding.outcome = outcome;
    }
}

void FramedEndpoint::on_ack(const FrameHeader& header) {
    bool ended = false;
    {
        const std::lock_guard lock(lane_);
        Outstanding* outstanding = requests_.find(header.ticket);
        if (outstanding == nullptr || outstanding->answers_due == 0) {
            return fail({Status::protocol, Reason::malformed});
        }
        outstanding->value = header.arg;
        note_answer(*outstanding, header);
        // A part of a read may be refused while the device still copies another; then poll_reads() ends it.
        ended = outstanding->over();
    }
    if (ended) {
        complete(header.ticket);
    }
}

bool FramedEndpoint::begin_read_data(const FrameHeader& header) {
    const std::lock_guard lock(lane_);
    Outstanding* outstanding = requests_.find(header.ticket);
    if (outstanding == nullptr || outstanding->kind != Kind::read || outstanding->answers_due == 0) {
        in_.verdict = {Status::protocol, Reason::malformed};
        return true;
    }
    if (!within(header, outstanding->nbytes)) {
        return true;
    }
    return begin_piece(header, outstanding->op, outstanding->from(header.offset), *outstanding->sink);
}

// Returns true if a piece lies within an operation of so many bytes.
bool FramedEndpoint::within(const FrameHeader& header, uint64_t nbytes) {
    if (header.offset > nbytes || header.payload > nbytes - header.offset) {
        in_.verdict = {Status::protocol, Reason::malformed};
        return false;
    }
    return true;
}

// Places a piece of a read or of a message where the operation wants it, or nowhere if the operation has ended.
bool FramedEndpoint::begin_piece(const FrameHeader& header, const OpRef& op, const Extents& rest, Sink& sink) {
    in_.op = op;
    if (op->done() || header.payload == 0) {
        return true;
    }
    if (!sink.outcome().ok()) { // the payload is thrown away
        in_.verdict = sink.outcome();
        return true;
    }
    if (!sink.begin_frame(rest.first(header.payload))) {
        return false;
    }
    in_.sink = &sink;
    return true;
}

void FramedEndpoint::end_read_data(const FrameHeader& header) {
    if (in_.verdict.status == Status::protocol) {
        return fail(in_.verdict);
    }
    bool ended = false;
    {
        const std::lock_guard lock(lane_);
        Outstanding* outstanding = requests_.find(header.ticket);
        if (outstanding == nullptr) {
            return; // the lane was closed meanwhile
        }
        if (!outstanding->pieces.take(header.offset, header.payload)) {
            in_.verdict = {Status::protocol, Reason::malformed};
            return fail(in_.verdict);
        }
        if (!in_.verdict.ok() && outstanding->outcome.ok()) {
            outstanding->outcome = in_.verdict;
        }
        note_answer(*outstanding, header);
        ended = outstanding->over();
    }
    if (ended) {
        complete(header.ticket);
    }
}

// Ends reads into device memory whose last copy has ended; true if there was one.
bool FramedEndpoint::poll_reads() {
    std::vector<uint32_t> ended;
    {
        const std::lock_guard lock(lane_);
        requests_.each([&](Outstanding& outstanding) {
            // settled() gives staging buffers back, so that every read is asked.
            if (outstanding.kind == Kind::read && outstanding.sink->settled() && outstanding.answers_due == 0) {
                ended.push_back(outstanding.ticket);
            }
        });
    }
    for (const uint32_t ticket : ended) {
        complete(ticket);
    }
    return !ended.empty();
}

void FramedEndpoint::complete(uint32_t ticket) {
    OpRef op;
    std::shared_ptr<Whole> whole;
    Outcome outcome;
    uint64_t nbytes = 0;
    uint64_t value = 0;
    int64_t announce = -1; // what the peer is to be told now
    Message message;
    bool claimed = false;
    {
        const std::lock_guard lock(lane_);
        Outstanding* outstanding = requests_.find(ticket);
        if (outstanding == nullptr) {
            return;
        }
        op = std::move(outstanding->op);
        whole = std::move(outstanding->whole);
        outcome = outstanding->outcome;
        if (outcome.ok() && outstanding->sink) {
            outcome = outstanding->sink->outcome();
        }
        if (outstanding->local && outstanding->local->moved()) {
            outcome = kLocalMoved; // the bytes may be those of other memory
        }
        nbytes = outcome.ok() ? outstanding->nbytes : 0;
        value = outstanding->value;
        if (outstanding->unmatched) {
            --unmatched_sends_;
        }
        const bool reads = outstanding->kind == Kind::read;
        // The owner is told of no read that ends otherwise, by a deadline or cancel().
        claimed = reads && outstanding->notify >= 0 && outcome.ok() && op->claim();
        if (outstanding->announced_later && outcome.ok() && (claimed || !reads)) {
            announce = outstanding->notify;
            message = std::move(outstanding->message);
        } else if (outstanding->announced_later || !outstanding->outcome.ok()) {
            // The peer's word counts, whatever this side has found since: it has delivered nothing.
            give_credit_back(outstanding->notify);
        }
        if (reads && outstanding->pages) {
            requests_.give_extra(requests_for(*outstanding->pages) - 1);
        }
        requests_.remove(ticket); // unpins, before anybody can see the end
    }
    if (whole) {
        op.reset();
        return whole->part_ended(outcome);
    }
    if (announce >= 0) {
        if (const Outcome told = push_notify(announce, nbytes, message); !told.ok()) {
            outcome = told;
        }
    }
    if (claimed) {
        op->finish_claimed(outcome, outcome.ok() ? nbytes : 0);
    } else {
        host_.finish(op, outcome, nbytes, value);
    }
}

// Tells the peer that this side closes the lane in good order, as far as the stream has room: what follows is its end,
// which a death would show, too. The caller holds the lane's lock.
void FramedEndpoint::say_goodbye(Reason why) {
    if (started()) {
        const FrameHeader header{.kind = FrameKind::leave, .arg = why == Reason::context_closed ? 1U : 0U};
        const iovec piece{const_cast<FrameHeader*>(&header), sizeof header};
        [[maybe_unused]] const size_t sent = stream_->send({&piece, 1});
    }
}

} // namespace zerohop::framed
