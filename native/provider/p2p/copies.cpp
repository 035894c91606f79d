// The copies that devices of this process make for a p2p lane: how they are queued, and how they end.
#include "provider/p2p/endpoint.hpp"

#include <mutex>
#include <vector>

namespace zerohop::p2p {

namespace {

// prepare() has checked the kind of the route's access.
const DeviceAccess& access_of(const Request& request) {
    return static_cast<const DeviceAccess&>(*request.route->access);
}

// Returns the whole copy, or where its pages begin.
accel::CopySegment segment_of(const Request& request) {
    const bool reads = request.kind == Kind::read;
    const uint64_t here = request.route->local->address() + request.local_offset;
    const uint64_t there = access_of(request).reach.address + request.remote_offset;
    return {reads ? here : there, reads ? there : here, request.nbytes};
}

std::shared_ptr<accel::Event> start_copy(accel::Stream& stream, const Request& request,
                                         std::span<const accel::Word> then) {
    const bool reads = request.kind == Kind::read;
    const accel::CopySegment segment = segment_of(request);
    if (request.pages && request.pages->ranges()) {
        const PageList& ranges = *request.pages;
        return stream.copy_ranges({.dst_base = segment.dst,
                                   .src_base = segment.src,
                                   .dst = reads ? ranges.local : ranges.remote,
                                   .src = reads ? ranges.remote : ranges.local,
                                   .lengths = ranges.lengths,
                                   .nbytes = request.nbytes},
                                  then);
    }
    if (request.pages) {
        const PageList& pages = *request.pages;
        return stream.copy_pages({.dst_base = segment.dst,
                                  .src_base = segment.src,
                                  .dst_pages = reads ? pages.local : pages.remote,
                                  .src_pages = reads ? pages.remote : pages.local,
                                  .page_bytes = pages.page_bytes},
                                 then);
    }
    return stream.copy({&segment, 1}, then);
}

} // namespace

Posted P2pEndpoint::post_copy(const Request& request) {
    Pin<Region> local;
    Pin<PeerMemory> remote;
    if (const Outcome begun = begin_copy(request, access_of(request).memory, local, remote); !begun.ok()) {
        return {Posted::What::failed, begun};
    }
    if (const Outcome living = host().look_at(peer()); !living.ok()) {
        return {Posted::What::failed, living};
    }
    Outcome outcome;
    CopyQueue* const queue = queues_.of(access_of(request).reach.device, queues_.kind_of(request), outcome);
    if (queue == nullptr) {
        return {Posted::What::failed, outcome};
    }
    if (!take_credit(request.notify)) {
        return {Posted::What::retry, {Status::would_block, Reason::no_credit}};
    }
    Posted posted = queue_copy(*queue, request, std::move(local), std::move(remote));
    if (posted.what != Posted::What::posted) {
        give_credit_back(request.notify);
    }
    return posted;
}

// Begins a copy with the queue's lock held: either close() finds the copy there, or this finds the lane closed.
Outcome P2pEndpoint::begin(CopyQueue& queue, const Request& request, PeerCopy& copy, Pin<Region> local,
                           Pin<PeerMemory> remote) {
    // A device announces writes by itself, but a read only if it has ended well, which the device does not know.
    const bool notifies = request.notify >= 0 && request.message == nullptr && request.kind == Kind::write;
    if (!is_open()) {
        return state();
    }
    if (queue.size() >= kMaxCopies) {
        return {Status::would_block, Reason::window_full};
    }
    if (notifies) {
        copy.ticket = outbox_->take(queue.ring(), request.notify, request.nbytes);
        if (copy.ticket.slot == nullptr) {
            return {Status::would_block, Reason::no_credit};
        }
    }
    copy.nbytes = request.nbytes;
    copy.notify = request.notify;
    copy.reads = request.kind == Kind::read;
    copy.message = message_of(request);
    copy.form = CopyRates::form_of(request.pages.get());
    copy.local = std::move(local);
    copy.remote = std::move(remote);
    const uint64_t now = now_ns();
    if (!notifies && !request.after_stream && !request.pages && queue.gathers(request.nbytes, now)) {
        queue.hold(std::move(copy), segment_of(request), now);
        return {};
    }
    queue.issue(); // held copies wait for no stream of the user's
    if (request.after_stream) {
        if (const Outcome refused = queue.stream().follow(*request.after_stream); !refused.ok()) {
            copy.ticket.skip();
            return refused;
        }
    }
    const accel::Word word = notifies ? copy.ticket.word() : accel::Word{};
    copy.event = start_copy(queue.stream(), request, {&word, notifies ? size_t{1} : 0});
    queue.push(std::move(copy), now_ns());
    return {};
}

Posted P2pEndpoint::queue_copy(CopyQueue& queue, const Request& request, Pin<Region> local, Pin<PeerMemory> remote) {
    PeerCopy copy;
    copy.op = host().operations().create(request.deadline_ns, request.started_ns); // throws before anything is taken
    const OpRef op = copy.op;
    const uint64_t epoch = copy.epoch = begin_epoch();
    Outcome refused;
    try {
        const std::lock_guard lock(queue.lock());
        refused = begin(queue, request, copy, std::move(local), std::move(remote));
    } catch (...) { // out of memory: the caller is told
        end_epoch(epoch);
        throw;
    }
    if (!refused.ok()) {
        end_epoch(epoch);
        op->finish(refused); // nobody has seen it
        const bool full = refused.status == Status::would_block;
        return {full ? Posted::What::retry : Posted::What::failed, refused};
    }
    bytes_copied_.fetch_add(request.nbytes, std::memory_order_relaxed);
    return {Posted::What::posted, {}, op};
}

bool P2pEndpoint::poll_copies() {
    std::vector<PeerCopy> ended;
    const bool attended = host().anybody_waits();
    queues_.each([&](CopyQueue& queue) {
        if (queue.busy()) {
            const std::lock_guard lock(queue.lock());
            queue.reap(ended, attended);
            if (queue.due_ns() != UINT64_MAX && is_open()) {
                queue.issue_when_due(now_ns(), attended);
            }
        }
    });
    for (PeerCopy& copy : ended) {
        finish(copy);
    }
    return !ended.empty();
}

void P2pEndpoint::finish(PeerCopy& copy) {
    Outcome outcome = copy.event->query() == accel::EventState::failed ? copy.event->outcome() : Outcome{};
    if (outcome == kMemoryGone && copy.local->is_host()) {
        outcome = kLocalMemoryGone; // the other end is a device's, whose memory does not go
    }
    const bool announced = copy.ticket.slot != nullptr;
    if (announced && !outcome.ok()) {
        copy.ticket.skip();
        give_credit_back(copy.notify);
    }
    if (outcome.ok()) {
        outcome = is_open() ? host().look_at(peer()) : state();
    }
    if (announced && outcome.ok()) {
        peer().presence()->wake(); // a device wakes nobody
    }
    if (outcome.ok() && copy.local->moved()) {
        outcome = kLocalMoved;
    }
    const bool by_frame = copy.notify >= 0 && !announced;
    const bool claimed = by_frame && outcome.ok() && copy.op && copy.op->claim();
    if (claimed || (by_frame && outcome.ok() && !copy.reads)) {
        outcome = push_notify(copy.notify, copy.nbytes, copy.message);
    } else if (by_frame) {
        give_credit_back(copy.notify);
    }
    if (!copy.op) { // the lane was closed, and has ended it
        return;
    }
    end_epoch(copy.epoch);
    const OpRef op = std::move(copy.op);
    copy.local.reset(); // before anybody can see the end
    copy.remote.reset();
    if (claimed) {
        op->finish_claimed(outcome, outcome.ok() ? copy.nbytes : 0);
    } else {
        host().finish(op, outcome, outcome.ok() ? copy.nbytes : 0);
    }
}

} // namespace zerohop::p2p
