// send and recv: a message goes to the receiver's oldest recv. Small (eager) ones travel at once and wait there; large
// ones wait at the sender until the receiver has a buffer.
#include "base/guarded.hpp"
#include "base/payload.hpp"
#include "provider/framed/endpoint.hpp"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <new>

namespace zerohop::framed {

Posted FramedEndpoint::post_send(const Request& request) {
    Pin<Region> local; // none for bytes that are copied at once
    if (request.bytes != nullptr && request.nbytes > kEagerBytes) {
        return {Posted::What::failed, {Status::unsupported, Reason::none}};
    }
    if (request.bytes == nullptr) {
        if (const Outcome pinned = pin_local(request.local, local); !pinned.ok()) {
            return {Posted::What::failed, pinned};
        }
    }
    const std::lock_guard lock(lane_);
    if (is_open() && unmatched_sends_ == kMaxUnmatched) {
        return {Posted::What::retry, {Status::would_block, Reason::window_full}};
    }
    unmatched_.store(true, std::memory_order_relaxed); // before anybody can see that there is an operation
    Posted posted;
    Outstanding* const begun = begin(request, 1, posted);
    if (begun == nullptr) {
        return posted;
    }
    Outstanding& outstanding = *begun;
    outstanding.local = std::move(local);
    SmallFrame frame;
    frame.header = {.kind = FrameKind::send, .ticket = outstanding.ticket, .arg = request.nbytes};
    if (request.envelope != nullptr) {
        frame.header.flags |= kTagged;
        frame.header.share_index = static_cast<uint32_t>(request.envelope->scope);
        frame.header.share_generation = static_cast<uint32_t>(request.envelope->scope >> 32);
        frame.header.notify = request.envelope->source;
        frame.header.page_bytes = request.envelope->tag;
        frame.header.offset = request.packed;
    }
    const Message text = message_of(request);
    if (text != nullptr) {
        frame.header.describe(*text);
    }
    const size_t head = size_t{frame.header.table} * 8;
    const bool is_eager = request.bytes != nullptr || (outstanding.local->is_host() && request.nbytes <= kEagerBytes);
    if (is_eager) {
        frame.header.payload = static_cast<uint32_t>(request.nbytes);
        // The larger ones are copied, too, so that all messages stand in one line and none overtakes another.
        auto* copy = frame.bytes.data() + head;
        if (head + request.nbytes > kInlineBytes) {
            queue(outstanding, posted, [&] { frame.table.resize((head + request.nbytes + 7) / 8); });
            copy = reinterpret_cast<std::byte*>(frame.table.data()) + head;
        }
        if (request.bytes != nullptr) {
            copy_payload(copy, request.bytes, request.nbytes);
        } else if (const Outcome copied = copy_out(*outstanding.local, request, copy); !copied.ok()) {
            withdraw(outstanding, posted, copied);
            return posted;
        }
    }
    if (text != nullptr) {
        if (frame.table.empty() && head > kInlineBytes) {
            queue(outstanding, posted, [&] { frame.table.resize(head / 8); });
        }
        void* const start = frame.table.empty() ? static_cast<void*>(frame.bytes.data()) : frame.table.data();
        std::memset(start, 0, head); // the last word may be longer than the text
        std::memcpy(start, text->data(), text->size());
    }
    queue(outstanding, posted, [&] { outbound_.push(std::move(frame)); });
    outstanding.unmatched = true;
    ++unmatched_sends_;
    if (request.envelope != nullptr && is_eager) {
        // The receiver has room for it, so that the sender need not wait until somebody receives it.
        requests_.buffer(outstanding);
        posted.op->finish({}, request.nbytes);
        posted = {};
    }
    pump(kSliceBytes);
    return posted;
}

Posted FramedEndpoint::post_recv(const Request& request) {
    Pin<Region> local;
    if (const Outcome pinned = pin_local(request.local, local); !pinned.ok()) {
        return {Posted::What::failed, pinned};
    }
    const std::lock_guard lock(lane_);
    if (!is_open()) {
        return {Posted::What::failed, state()};
    }
    unmatched_.store(true, std::memory_order_relaxed); // before anybody can see that there is an operation
    OpRef op = host_.operations().create(request.deadline_ns, request.started_ns);
    recvs_.push_back({op, std::move(local), request.local_offset, request.nbytes});
    if (!sends_.empty()) {
        match_wanted_.store(true, std::memory_order_release); // only the poller places bytes
    }
    return {Posted::What::posted, {}, std::move(op)};
}

void FramedEndpoint::on_send(const FrameHeader& header) {
    if (sends_.size() + mailed_.size() >= kMaxUnmatched) {
        return fail({Status::protocol, Reason::malformed});
    }
    ArrivedSend send;
    send.ticket = header.ticket;
    send.nbytes = header.arg;
    send.eager = header.payload == header.arg && header.arg <= kEagerBytes;
    send.bytes.swap(in_.eager);
    if (header.described() != 0) {
        const auto* const text = reinterpret_cast<const char*>(in_.table.data());
        send.header = std::make_shared<const std::string>(text, header.described());
    }
    if (header.has(kTagged)) {
        return mail(header, send);
    }
    {
        const std::lock_guard lock(lane_);
        sends_.push_back(std::move(send));
    }
    match();
}

// Keeps a tagged message in its mailbox, and pairs it with a receive if one waits for it.
void FramedEndpoint::mail(const FrameHeader& header, ArrivedSend& send) {
    const Envelope envelope{header.share_index | uint64_t{header.share_generation} << 32, header.notify,
                            header.page_bytes};
    const std::shared_ptr<Mailbox> mailbox = host_.mailbox(envelope.scope);
    const uint32_t ticket = send.ticket;
    if (header.offset != 0) {
        return mail_pack(envelope, header.offset, mailbox, send);
    }
    if (send.eager && send.header == nullptr && !mailed_.contains(ticket)) {
        if (const std::optional<Outcome> outcome = mailbox->deliver(peer().id(), envelope, send)) {
            in_.eager.swap(send.bytes); // its memory serves for the next one
            host_.wake_waiters();       // somebody may wait for so many messages
            return answer(ticket, as_seen_there(*outcome));
        }
    }
    // A peer may neither use one ticket for two messages nor claim numbers without end.
    if (envelope.source > kMostSource || !mailed_.try_emplace(ticket, mailbox).second ||
        !mailbox->note_member(peer().id(), envelope.source)) {
        return fail({Status::protocol, Reason::malformed});
    }
    if (!mailbox->keep(envelope, shared_from_this(), send)) {
        mailed_.erase(ticket);
        return answer(ticket, kGivenUp);
    }
    pair_up(mailbox);
}

// Keeps each message of a frame in its mailbox. The frame is answered once all of them are received.
void FramedEndpoint::mail_pack(const Envelope& envelope, uint64_t count, const std::shared_ptr<Mailbox>& mailbox,
                               const ArrivedSend& pack) {
    const uint32_t ticket = pack.ticket;
    const auto length_of = [&](uint64_t index) {
        uint16_t length = 0;
        std::memcpy(&length, pack.bytes.data() + index * sizeof(length), sizeof(length));
        return size_t{length};
    };
    size_t at = count * sizeof(uint16_t);
    size_t ends = at;
    for (uint64_t i = 0; i < count; ++i) {
        ends += length_of(i);
    }
    if (ends != pack.bytes.size() || envelope.source > kMostSource || !mailed_.try_emplace(ticket, mailbox).second ||
        !mailbox->note_member(peer().id(), envelope.source)) {
        return fail({Status::protocol, Reason::malformed});
    }
    if (mailbox->tally(count)) {
        mailed_.erase(ticket);
        host_.wake_waiters(); // somebody may wait for so many messages
        return answer(ticket, {});
    }
    const auto most = static_cast<uint32_t>(count);
    packs_[ticket] = {.unanswered = most, .mailed = most};
    for (uint64_t i = 0; i < count; ++i) {
        const auto* const bytes = pack.bytes.data() + at;
        ArrivedSend part{.ticket = ticket, .nbytes = length_of(i), .eager = true, .bytes = {}, .header = {}};
        part.bytes.assign(bytes, bytes + part.nbytes);
        at += part.nbytes;
        if (!mailbox->keep(envelope, shared_from_this(), part)) {
            for (; i < count; ++i) {
                not_mailed(ticket);
                answer(ticket, kGivenUp);
            }
        }
    }
    pair_up(mailbox);
}

// Notes that a message of a ticket is in its mailbox no more.
void FramedEndpoint::not_mailed(uint32_t ticket) {
    const auto pack = packs_.find(ticket);
    if (pack == packs_.end() || --pack->second.mailed == 0) {
        mailed_.erase(ticket);
    }
}

bool FramedEndpoint::grant_or_end(PostedRecv& recv, ArrivedSend& send, uint64_t value) {
    try {
        return grant(recv, send, value);
    } catch (const std::bad_alloc&) { // the lane will not find it any more
        recv.op->finish(kLaneOutOfMemory, 0, value);
        throw;
    }
}

void FramedEndpoint::match_with(const std::shared_ptr<Mailbox>& mailbox, bool soon) {
    {
        const std::lock_guard lock(lane_);
        if (std::ranges::find(matched_, mailbox) == matched_.end()) {
            matched_.push_back(mailbox);
        }
        match_wanted_.store(true, std::memory_order_release);
    }
    if (soon || &watcher_ != &host_) {
        watcher_.kick();
    }
}

void FramedEndpoint::match_mailboxes() {
    std::vector<std::shared_ptr<Mailbox>> matched;
    {
        const std::lock_guard lock(lane_);
        matched.swap(matched_);
    }
    for (const auto& mailbox : matched) {
        pair_up(mailbox);
    }
}

// Ends the receives whose messages are this lane's.
void FramedEndpoint::pair_up(const std::shared_ptr<Mailbox>& mailbox) {
    Mailbox::Lanes others;
    while (std::optional<Mailbox::Pair> pair = mailbox->take(this, others)) {
        Mailbox::Kept& kept = *pair->kept;
        const uint32_t ticket = kept.send.ticket;
        bool taken = true;
        if (pair->recv.op && only_finds(pair->recv, kept.send)) {
            mailbox->found(pair->kept, pair->recv);
            continue;
        }
        if (pair->recv.op) {
            taken = grant_or_end(pair->recv, kept.send, kept.value(pair->recv));
        } else {
            answer(ticket, kGivenUp);
        }
        if (taken) {
            not_mailed(ticket);
        }
        mailbox->decide(pair->kept, taken);
    }
    for (const auto& lane : others) {
        lane->match_with(mailbox);
    }
}

void FramedEndpoint::match() {
    for (;;) {
        PostedRecv recv;
        ArrivedSend send;
        {
            const std::lock_guard lock(lane_);
            while (!recvs_.empty() && recvs_.front().op->done()) {
                recvs_.pop_front(); // its deadline passed, or it was cancelled: no message is spent on it
            }
            if (sends_.empty()) {
                return;
            }
            if (!recvs_.empty()) {
                recv = std::move(recvs_.front());
                recvs_.pop_front();
            } else if (std::optional<PostedRecv> anybodys = host_.take_receive()) {
                recv = std::move(*anybodys);
            } else {
                return;
            }
            send = std::move(sends_.front());
            sends_.pop_front();
        }
        if (!grant_or_end(recv, send, static_cast<uint64_t>(peer().id()))) {
            const std::lock_guard lock(lane_);
            sends_.push_front(std::move(send));
        }
    }
}

bool FramedEndpoint::match_soon() {
    const std::lock_guard lock(lane_);
    if (!sends_.empty()) {
        match_wanted_.store(true, std::memory_order_release);
    }
    return !sends_.empty();
}

// Returns false if the recv has just ended: the message is for the next recv.
bool FramedEndpoint::grant(PostedRecv& recv, ArrivedSend& send, uint64_t value) {
    if (recv.carried) {
        if (!recv.op->finish({}, send.nbytes, value)) {
            return false;
        }
        answer(send.ticket, {});
        return true;
    }
    if (const bool moved = recv.local->moved(); moved || send.nbytes > recv.nbytes) {
        const Outcome refused = moved ? kLocalMoved : Outcome{Status::protocol, Reason::truncated};
        recv.local.reset();
        if (!recv.op->finish(refused, 0, send.nbytes)) {
            return false;
        }
        answer(send.ticket, as_seen_there(refused));
        return true;
    }
    if (send.eager && recv.local->is_host()) {
        const std::optional<Outcome> outcome = finish_eager(recv, send, value);
        if (!outcome) {
            return false;
        }
        answer(send.ticket, as_seen_there(*outcome));
        return true;
    }
    auto arrival = std::make_shared<Arrival>();
    arrival->ticket = send.ticket;
    arrival->recv = recv.op;
    arrival->value = value;
    arrival->nbytes = send.nbytes;
    arrival->extents = Extents(recv.local->address() + recv.offset, send.nbytes);
    arrival->eager = std::move(send.bytes);
    if (!recv.local->is_host()) {
        device_work_.store(true, std::memory_order_relaxed);
    }
    arrival->sink = make_sink(staging_, std::move(recv.local));
    if (send.eager) {
        ending_.reserve(ending_.size() + 1); // nothing but finish_arrival() ends a recv that is claimed
        if (arrival->sink->begin_frame(arrival->extents)) {
            arrival->claimed = recv.op->claim();
            if (!arrival->claimed) {
                send.bytes = std::move(arrival->eager);
                return false;
            }
        }
        ending_.push_back(std::move(arrival)); // poll_arrivals() puts the bytes in place
        return true;
    }
    if (!arrivals_.try_emplace(send.ticket, arrival).second) {
        arrival->sink.reset();
        arrival->recv->finish({Status::protocol, Reason::malformed});
        fail({Status::protocol, Reason::malformed}); // the peer uses this ticket for something else already
        return true;
    }
    const std::lock_guard lock(lane_);
    push_small({.kind = FrameKind::clear_to_send, .ticket = send.ticket});
    return true;
}

// Gives back the memory of sends and recvs that ended before they were matched: a recv's at once, a send's when the
// peer has agreed to forget it.
void FramedEndpoint::drop_ended_messages() {
    if (!unmatched_.load(std::memory_order_relaxed)) {
        return; // a lock that others post under is not taken for nothing
    }
    const std::lock_guard lock(lane_);
    std::erase_if(recvs_, [](const PostedRecv& recv) { return recv.op->done(); });
    unmatched_.store(!recvs_.empty() || unmatched_sends_ != 0, std::memory_order_relaxed);
    if (unmatched_sends_ == 0) {
        return;
    }
    bool any = false;
    requests_.each([&](Outstanding& outstanding) {
        if (outstanding.unmatched && !outstanding.buffered && !outstanding.withdrawn && outstanding.op->done()) {
            outstanding.withdrawn = true;
            push_small({.kind = FrameKind::withdraw, .ticket = outstanding.ticket});
            any = true;
        }
    });
    if (any) {
        pump(kSliceBytes);
    }
}

void FramedEndpoint::on_withdraw(const FrameHeader& header) {
    if (packs_.contains(header.ticket)) { // its messages have ended for their sender
        return fail({Status::protocol, Reason::malformed});
    }
    size_t forgotten = 0;
    {
        const std::lock_guard lock(lane_);
        forgotten = std::erase_if(sends_, [&](const ArrivedSend& send) { return send.ticket == header.ticket; });
    }
    if (const auto mailed = mailed_.find(header.ticket); mailed != mailed_.end()) {
        if (mailed->second->withdraw(this, header.ticket)) {
            mailed_.erase(mailed);
            forgotten = 1;
        }
    }
    // Otherwise a recv has taken it, and an answer or clear_to_send is on the way.
    if (forgotten != 0) {
        answer(header.ticket, {Status::cancelled, Reason::user});
    }
}

void FramedEndpoint::on_clear_to_send(const FrameHeader& header) {
    host_.wake_waiters(); // a sender may wait for room
    const std::lock_guard lock(lane_);
    Outstanding* outstanding = requests_.find(header.ticket);
    if (outstanding == nullptr || outstanding->kind != Kind::send || !outstanding->unmatched || outstanding->buffered) {
        return fail({Status::protocol, Reason::malformed});
    }
    outstanding->unmatched = false;
    --unmatched_sends_;
    FrameHeader data{.kind = FrameKind::send_data, .ticket = header.ticket};
    if (outstanding->nbytes == 0) {
        data.flags = kLast;
        push_small(data);
        return;
    }
    Transfer transfer;
    transfer.header = data;
    transfer.op = outstanding->op;
    transfer.source = make_source(staging_, outstanding->local, outstanding->extents(), nullptr);
    transfer.remote = Extents(0, outstanding->nbytes);
    if (!outstanding->local->is_host()) {
        device_work_.store(true, std::memory_order_relaxed);
    }
    outbound_.push(std::move(transfer));
}

bool FramedEndpoint::begin_send_data(const FrameHeader& header) {
    const auto found = arrivals_.find(header.ticket);
    if (found == arrivals_.end() || !found->second->recv) {
        in_.verdict = {Status::protocol, Reason::malformed};
        return true;
    }
    if (!within(header, found->second->nbytes)) {
        return true;
    }
    Extents rest = found->second->extents;
    rest.advance(header.offset);
    return begin_piece(header, found->second->recv, rest, *found->second->sink);
}

} // namespace zerohop::framed
