// The operations that this end begins: how they are sent, and how their answers end them.
#include "provider/framed/endpoint.hpp"

#include <algorithm>
#include <cstring>
#include <mutex>

namespace zerohop::framed {

namespace {

FrameHeader header_of(FrameKind kind, const Request& request, uint32_t ticket) {
    FrameHeader header;
    header.kind = kind;
    header.ticket = ticket;
    header.share_index = request.route->share.index;
    header.share_generation = request.route->share.generation;
    header.capability = request.route->capability;
    header.offset = request.remote_offset;
    header.arg = request.nbytes;
    if (request.notify >= 0) {
        header.announce(request.notify);
    }
    return header;
}

} // namespace

// Past the last byte of the pages; UINT64_MAX where that is more than can be counted.
uint64_t FramedEndpoint::end_of(const PageList& pages) {
    if (pages.remote.empty()) {
        return 0;
    }
    if (pages.ranges()) {
        return pages.remote_end;
    }
    const uint64_t most = pages.remote_end != 0 ? pages.remote_end - 1 : largest_number(pages.remote);
    const uint64_t page = pages.page_bytes;
    return page != 0 && most >= (UINT64_MAX - page) / page ? UINT64_MAX : (most + 1) * page;
}

Posted FramedEndpoint::post(const Request& request) {
    if (!started_.load(std::memory_order_acquire)) {
        return {Posted::What::failed, {Status::closed, Reason::lane_closed}};
    }
    switch (request.kind) {
    case Kind::write:
    case Kind::read:
        return post_one_sided(request);
    case Kind::fetch_add:
    case Kind::compare_swap:
        return post_atomic(request);
    case Kind::notify:
        return post_notify(request);
    case Kind::send:
        return post_send(request);
    case Kind::recv:
        return post_recv(request);
    case Kind::flush:
        return post_flush(request);
    }
    return {Posted::What::failed, {Status::unsupported, Reason::none}};
}

Posted FramedEndpoint::post_one_sided(const Request& request) {
    const bool reads = request.kind == Kind::read;
    const Outcome allowed = check_range(request, reads ? kRightRead : kRightWrite);
    if (!allowed.ok()) {
        return {Posted::What::failed, allowed};
    }
    Pin<Region> local = Pin<Region>::of(request.route->local);
    if (!local) {
        return {Posted::What::failed, {Status::closed, Reason::revoked}};
    }
    uint32_t parts = 1;
    if (reads && request.pages) {
        parts =
            std::max<uint32_t>(1, static_cast<uint32_t>((request.pages->remote.size() + kMaxTable - 1) / kMaxTable));
    }
    if (parts > kWindow) {
        return {Posted::What::failed, {Status::unsupported, Reason::too_many_pages}};
    }
    const std::lock_guard lock(lane_);
    if (!is_open()) {
        return {Posted::What::failed, state()};
    }
    if (requests_.full(parts)) {
        return {Posted::What::retry, {Status::would_block, Reason::window_full}};
    }
    if (!take_credit(request)) {
        return {Posted::What::retry, {Status::would_block, Reason::no_credit}};
    }
    OpRef op = engine_.operations().create(request.deadline_ns, request.started_ns);
    uint32_t ticket = 0;
    Outstanding& outstanding = requests_.add(ticket);
    outstanding.kind = request.kind;
    outstanding.op = op;
    outstanding.local = std::move(local);
    outstanding.pages = request.pages;
    outstanding.nbytes = request.nbytes;
    outstanding.local_offset = request.local_offset;
    outstanding.answers_due = parts;
    outstanding.credit = request.notify >= 0;
    requests_.take_extra(parts - 1);
    if (reads) {
        push_read(request, outstanding, ticket);
    } else {
        push_write(request, outstanding, ticket);
    }
    pump(kSliceBytes);
    return {Posted::What::posted, {}, std::move(op)};
}

void FramedEndpoint::push_read(const Request& request, Outstanding& outstanding, uint32_t ticket) {
    outstanding.sink = make_sink(staging_, outstanding.local);
    if (!outstanding.local->is_host()) {
        device_work_.store(true, std::memory_order_relaxed);
    }
    FrameHeader header = header_of(FrameKind::read, request, ticket);
    if (!request.pages) {
        push_small(header);
        return;
    }
    header.kind = FrameKind::read_pages;
    header.arg = request.pages->page_bytes;
    const PageNumbers& pages = request.pages->remote;
    size_t at = 0;
    do {
        const size_t count = std::min<size_t>(kMaxTable, pages.size() - at);
        SmallFrame frame;
        frame.header = header;
        frame.header.table = static_cast<uint32_t>(count);
        // Where these pages begin in the operation, so that pieces of several requests may come in any order.
        frame.header.notify = static_cast<uint32_t>(at / kMaxTable);
        frame.table.assign(pages.begin() + static_cast<ptrdiff_t>(at),
                           pages.begin() + static_cast<ptrdiff_t>(at + count));
        outbound_.push(std::move(frame));
        at += count;
    } while (at < pages.size());
}

void FramedEndpoint::push_write(const Request& request, Outstanding& outstanding, uint32_t ticket) {
    FrameHeader header = header_of(FrameKind::write, request, ticket);
    const bool host = outstanding.local->is_host();
    if (request.nbytes == 0 || (host && !request.pages && request.nbytes <= SmallFrame::kInline)) {
        header.flags |= kLast;
        header.payload = static_cast<uint32_t>(request.nbytes);
        push_small(header, outstanding.local->host() + request.local_offset, request.nbytes);
        return;
    }
    Transfer transfer;
    transfer.header = header;
    transfer.op = outstanding.op;
    transfer.pages = request.pages;
    transfer.remote = request.pages ? request.pages->walk(request.remote_offset, request.pages->remote, request.nbytes)
                                    : Extents(request.remote_offset, request.nbytes);
    transfer.source = make_source(staging_, outstanding.local, outstanding.extents(), request.pages);
    if (!host) {
        device_work_.store(true, std::memory_order_relaxed);
    }
    outbound_.push(std::move(transfer));
}

Posted FramedEndpoint::post_atomic(const Request& request) {
    const Outcome allowed = check_range(request, kRightRead | kRightWrite);
    if (!allowed.ok()) {
        return {Posted::What::failed, allowed};
    }
    const std::lock_guard lock(lane_);
    if (!is_open()) {
        return {Posted::What::failed, state()};
    }
    if (requests_.full()) {
        return {Posted::What::retry, {Status::would_block, Reason::window_full}};
    }
    OpRef op = engine_.operations().create(request.deadline_ns, request.started_ns);
    uint32_t ticket = 0;
    Outstanding& outstanding = requests_.add(ticket);
    outstanding.kind = request.kind;
    outstanding.op = op;
    outstanding.nbytes = request.nbytes;
    const bool swap = request.kind == Kind::compare_swap;
    FrameHeader header = header_of(swap ? FrameKind::compare_swap : FrameKind::fetch_add, request, ticket);
    header.table = swap ? 2 : 1;
    const uint64_t operands[2] = {swap ? request.compare : request.operand, request.operand};
    push_small(header, operands, size_t{header.table} * 8);
    pump(kSliceBytes);
    return {Posted::What::posted, {}, std::move(op)};
}

Posted FramedEndpoint::post_notify(const Request& request) {
    const std::lock_guard lock(lane_);
    if (!is_open()) {
        return {Posted::What::failed, state()};
    }
    if (requests_.full()) {
        return {Posted::What::retry, {Status::would_block, Reason::window_full}};
    }
    if (!take_credit(request)) {
        return {Posted::What::retry, {Status::would_block, Reason::no_credit}};
    }
    OpRef op = engine_.operations().create(request.deadline_ns, request.started_ns);
    uint32_t ticket = 0;
    Outstanding& outstanding = requests_.add(ticket);
    outstanding.kind = request.kind;
    outstanding.op = op;
    outstanding.credit = true;
    FrameHeader header;
    header.kind = FrameKind::notify;
    header.flags = kLast;
    header.ticket = ticket;
    header.arg = request.nbytes; // that went before, in other operations
    header.announce(request.notify);
    push_small(header);
    pump(kSliceBytes);
    return {Posted::What::posted, {}, std::move(op)};
}

// For bytes that went another way (shared memory): no answer is needed, the frame itself is the announcement.
Outcome FramedEndpoint::push_notify(int64_t notify, uint64_t nbytes) {
    const std::lock_guard lock(lane_);
    if (!is_open()) {
        return state();
    }
    FrameHeader header;
    header.kind = FrameKind::notify;
    header.announce(notify);
    header.arg = nbytes;
    push_small(header);
    pump(kSliceBytes);
    return {};
}

Posted FramedEndpoint::post_flush(const Request& request) {
    const std::lock_guard lock(lane_);
    if (!is_open()) {
        return {Posted::What::failed, state()};
    }
    if (requests_.epochs.empty()) {
        return {};
    }
    OpRef op = engine_.operations().create(request.deadline_ns, request.started_ns);
    requests_.epochs.flush(op);
    return {Posted::What::posted, {}, std::move(op)};
}

void FramedEndpoint::on_ack(const FrameHeader& header) {
    const Outcome outcome = outcome_of(header);
    bool ended = false;
    {
        const std::lock_guard lock(lane_);
        Outstanding* outstanding = requests_.find(header.ticket);
        if (outstanding == nullptr || outstanding->answers_due == 0) {
            return fail({Status::protocol, Reason::malformed});
        }
        if (!outcome.ok() && outstanding->outcome.ok()) {
            outstanding->outcome = outcome;
        }
        outstanding->value = header.arg;
        if (header.has(kLast)) {
            --outstanding->answers_due;
        }
        // A part of a read may be refused while the device still copies another; then poll_reads() ends it.
        ended = outstanding->answers_due == 0 && (!outstanding->sink || outstanding->sink->settled());
    }
    if (ended) {
        complete(header.ticket);
    }
}

// A piece of a read: it goes where the operation wants it, or nowhere if the operation has ended meanwhile.
bool FramedEndpoint::begin_read_data(const FrameHeader& header) {
    const std::lock_guard lock(lane_);
    Outstanding* outstanding = requests_.find(header.ticket);
    if (outstanding == nullptr || outstanding->kind != Kind::read || outstanding->answers_due == 0 ||
        header.offset > outstanding->nbytes || header.payload > outstanding->nbytes - header.offset) {
        in_.verdict = {Status::protocol, Reason::malformed};
        return true;
    }
    in_.op = outstanding->op;
    if (outstanding->op->done() || header.payload == 0) {
        return true;
    }
    Extents extents = outstanding->extents();
    extents.advance(header.offset);
    if (!outstanding->sink->begin_frame(extents.first(header.payload))) {
        return false;
    }
    in_.sink = outstanding->sink.get();
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
        const Outcome outcome = outcome_of(header);
        if (!outcome.ok() && outstanding->outcome.ok()) {
            outstanding->outcome = outcome;
        }
        if (header.has(kLast)) {
            --outstanding->answers_due;
        }
        ended = outstanding->answers_due == 0 && outstanding->sink->settled();
    }
    if (ended) {
        complete(header.ticket);
    }
}

// Reads into device memory end when the last copy has; true if one did.
bool FramedEndpoint::poll_reads() {
    std::vector<uint32_t> ended;
    {
        const std::lock_guard lock(lane_);
        requests_.each([&](uint32_t ticket, Outstanding& outstanding) {
            // Asked of every read: it gives staging buffers back.
            if (outstanding.kind == Kind::read && outstanding.sink->settled() && outstanding.answers_due == 0) {
                ended.push_back(ticket);
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
    Outcome outcome;
    uint64_t nbytes = 0;
    uint64_t value = 0;
    {
        const std::lock_guard lock(lane_);
        Outstanding* outstanding = requests_.find(ticket);
        if (outstanding == nullptr) {
            return;
        }
        op = std::move(outstanding->op);
        outcome = outstanding->outcome;
        if (outcome.ok() && outstanding->sink) {
            outcome = outstanding->sink->outcome();
        }
        nbytes = outcome.ok() ? outstanding->nbytes : 0;
        value = outstanding->value;
        if (outstanding->unmatched) {
            --unmatched_sends_;
        }
        if (outstanding->credit && !outcome.ok()) {
            give_credit_back(); // nothing was announced, so the peer has nothing to return
        }
        if (outstanding->kind == Kind::read && outstanding->pages) {
            const size_t parts = (outstanding->pages->remote.size() + kMaxTable - 1) / kMaxTable;
            requests_.give_extra(parts > 1 ? static_cast<uint32_t>(parts - 1) : 0);
        }
        requests_.remove(ticket); // unpins, before anybody can see the end
    }
    if (!op->finish(outcome, nbytes, value)) {
        engine_.wake_waiters(); // it had ended before, but only now there is room for another
    }
}

} // namespace zerohop::framed
