// The operations that this end begins, and how they are sent.
#include "base/guarded.hpp"
#include "provider/framed/endpoint.hpp"

#include <algorithm>
#include <mutex>
#include <new>
#include <numeric>
#include <span>

namespace zerohop::framed {

namespace {

// True if the request's end has to come before its notification goes out, in a frame of its own.
bool announced_later(const Request& request) {
    return request.kind == Kind::read || (request.kind == Kind::write && request.message != nullptr);
}

FrameHeader header_of(FrameKind kind, const Request& request, uint32_t ticket) {
    FrameHeader header{.kind = kind,
                       .ticket = ticket,
                       .share_index = request.route->share.index,
                       .share_generation = request.route->share.generation,
                       .capability = request.route->capability,
                       .offset = request.remote_offset,
                       .arg = request.nbytes};
    if (request.notify >= 0 && !announced_later(request)) {
        header.announce(request.notify);
    }
    return header;
}

} // namespace

// Copies the bytes of a request, of host memory, to where they wait for their frame. What has moved while this thread
// waited for the lane is not sent: there may be other memory now.
Outcome FramedEndpoint::copy_out(const Region& local, const Request& request, void* to) {
    if (copy_guarded(to, local.host() + request.local_offset, request.nbytes) != Gone::nothing) {
        return kLocalMemoryGone;
    }
    return local.moved() ? kLocalMoved : Outcome{};
}

// Returns how many pages, or ranges, one request may ask for.
size_t FramedEndpoint::most_of(const PageList& pages) {
    return pages.ranges() ? kMaxTable / 2 : kMaxTable;
}

uint32_t FramedEndpoint::requests_for(const PageList& pages) {
    const size_t most = most_of(pages);
    return std::max<uint32_t>(1, static_cast<uint32_t>((pages.remote.size() + most - 1) / most));
}

// Returns the offset past the last byte of the pages; UINT64_MAX if 64 bits do not hold it.
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
    if (!started()) {
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

// The caller holds the lane's lock. Takes what a request needs: a slot, and a credit if it announces something. Null if
// there is none; `posted` says why.
Outstanding* FramedEndpoint::begin(const Request& request, uint32_t parts, Posted& posted,
                                   const std::shared_ptr<Whole>& whole) {
    if (!is_open()) {
        posted = {Posted::What::failed, state()};
        return nullptr;
    }
    if (requests_.full(parts)) {
        posted = {Posted::What::retry, {Status::would_block, Reason::window_full}};
        return nullptr;
    }
    if (!take_credit(request.notify)) {
        posted = {Posted::What::retry, {Status::would_block, Reason::no_credit}};
        return nullptr;
    }
    posted = {Posted::What::posted,
              {},
              whole ? whole->op() : host_.operations().create(request.deadline_ns, request.started_ns)};
    Outstanding& outstanding = requests_.add();
    outstanding.whole = whole;
    outstanding.kind = request.kind;
    outstanding.op = posted.op;
    outstanding.nbytes = request.nbytes;
    outstanding.local_offset = request.local_offset;
    outstanding.answers_due = parts;
    outstanding.notify = request.notify;
    requests_.take_extra(parts - 1);
    return &outstanding;
}

Posted FramedEndpoint::post_one_sided(const Request& request, const std::shared_ptr<Whole>& whole) {
    const bool reads = request.kind == Kind::read;
    const Outcome allowed = check_range(request, reads ? kRightRead : kRightWrite);
    if (!allowed.ok()) {
        return {Posted::What::failed, allowed};
    }
    Pin<Region> local;
    if (const Outcome pinned = pin_local(request.route->local, local); !pinned.ok()) {
        return {Posted::What::failed, pinned};
    }
    const uint32_t parts = reads && request.pages ? requests_for(*request.pages) : 1;
    if (parts > kWindow) {
        return {Posted::What::failed, {Status::unsupported, Reason::too_many_pages}};
    }
    const std::lock_guard lock(lane_);
    Posted posted;
    if (Outstanding* const outstanding = begin(request, parts, posted, whole)) {
        outstanding->local = std::move(local);
        outstanding->pages = request.pages;
        outstanding->announced_later = announced_later(request);
        outstanding->message = message_of(request);
        Outcome pushed;
        queue(*outstanding, posted, [&] {
            if (reads) {
                push_read(request, *outstanding);
            } else {
                pushed = push_write(request, *outstanding);
            }
        });
        if (!pushed.ok()) {
            withdraw(*outstanding, posted, pushed);
            return posted;
        }
        if (sent_by_post != 0) { // else the thread that polls sends, and nothing tells of room meanwhile
            pump(sent_by_post);
        }
    }
    return posted;
}

// The caller holds the lane's lock. Takes a request back that begin() has made, and of which no frame was queued.
void FramedEndpoint::withdraw(const Outstanding& outstanding, Posted& posted, Outcome why) {
    give_credit_back(outstanding.notify);
    const bool whole = outstanding.whole == nullptr;
    requests_.remove(outstanding.ticket);
    if (whole) {
        posted.op->finish(why); // nobody has seen it
    }
    posted = {Posted::What::failed, why};
}

void FramedEndpoint::push_read(const Request& request, Outstanding& outstanding) {
    outstanding.sink = make_sink(staging_, outstanding.local);
    if (!outstanding.local->is_host()) {
        device_work_.store(true, std::memory_order_relaxed);
    }
    const FrameHeader header = header_of(FrameKind::read, request, outstanding.ticket);
    if (!request.pages) {
        push_small(header);
        return;
    }
    const PageList& pages = *request.pages;
    const bool ranges = pages.ranges();
    std::vector<SmallFrame> frames; // all of them, before the first is queued
    std::vector<uint64_t> begins;
    uint64_t begin = 0;
    size_t at = 0;
    do {
        const size_t count = std::min(most_of(pages), pages.remote.size() - at);
        const std::span remote(pages.remote.data() + at, count);
        SmallFrame& frame = frames.emplace_back();
        frame.header = header;
        frame.header.kind = ranges ? FrameKind::read_ranges : FrameKind::read_pages;
        frame.header.arg = pages.page_bytes;
        frame.header.begin_at(begin);
        frame.table.assign(remote.begin(), remote.end());
        begins.push_back(begin);
        if (ranges) {
            const std::span lengths(pages.lengths.data() + at, count);
            frame.table.insert(frame.table.end(), lengths.begin(), lengths.end());
            frame.header.arg = std::accumulate(lengths.begin(), lengths.end(), uint64_t{0});
        }
        frame.header.table = static_cast<uint32_t>(frame.table.size());
        begin += ranges ? frame.header.arg : count * pages.page_bytes;
        at += count;
    } while (at < pages.remote.size());
    if (begins.size() > 1) {
        outstanding.pieces = Pieces(std::move(begins));
    }
    outbound_.push(frames);
}

Outcome FramedEndpoint::push_write(const Request& request, Outstanding& outstanding) {
    FrameHeader header = header_of(FrameKind::write, request, outstanding.ticket);
    const bool host = outstanding.local->is_host();
    if (request.nbytes == 0 || (host && !request.pages && request.nbytes <= kInlineBytes)) {
        header.flags |= kLast;
        header.payload = static_cast<uint32_t>(request.nbytes);
        SmallFrame frame;
        frame.header = header;
        if (const Outcome copied = copy_out(*outstanding.local, request, frame.bytes.data()); !copied.ok()) {
            return copied;
        }
        outbound_.push(std::move(frame));
        return {};
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
    return {};
}

Posted FramedEndpoint::post_atomic(const Request& request) {
    const Outcome allowed = check_range(request, kRightRead | kRightWrite);
    if (!allowed.ok()) {
        return {Posted::What::failed, allowed};
    }
    const std::lock_guard lock(lane_);
    Posted posted;
    if (const Outstanding* const outstanding = begin(request, 1, posted)) {
        const bool swap = request.kind == Kind::compare_swap;
        const FrameKind kind = swap ? FrameKind::compare_swap : FrameKind::fetch_add;
        FrameHeader header = header_of(kind, request, outstanding->ticket);
        header.table = swap ? 2 : 1;
        const uint64_t operands[2] = {swap ? request.compare : request.operand, request.operand};
        queue(*outstanding, posted, [&] { push_small(header, operands, size_t{header.table} * 8); });
        pump(kSliceBytes);
    }
    return posted;
}

Posted FramedEndpoint::post_notify(const Request& request) {
    const std::lock_guard lock(lane_);
    Posted posted;
    if (Outstanding* const outstanding = begin(request, 1, posted)) {
        outstanding->nbytes = 0; // other operations have moved the bytes that it announces
        const FrameHeader header{
            .kind = FrameKind::notify, .flags = kLast, .ticket = outstanding->ticket, .arg = request.nbytes};
        queue(*outstanding, posted, [&] { push_notice(header, request.notify, message_of(request)); });
        pump(kSliceBytes);
    }
    return posted;
}

// Announces bytes that have moved: no answer is needed, the frame itself is the announcement.
Outcome FramedEndpoint::push_notify(int64_t notify, uint64_t nbytes, const Message& message) {
    const std::lock_guard lock(lane_);
    if (!is_open()) {
        return state();
    }
    try {
        push_notice({.kind = FrameKind::notify, .arg = nbytes}, notify, message);
        pump(kSliceBytes);
    } catch (const std::bad_alloc&) { // the operation has to end all the same
        return kLaneOutOfMemory;
    }
    return {};
}

// The message travels in the table, padded to whole words.
void FramedEndpoint::push_notice(FrameHeader header, int64_t notify, const Message& message) {
    header.announce(notify);
    SmallFrame frame;
    if (message != nullptr) {
        header.page_bytes = static_cast<uint32_t>(message->size());
        header.table = message_words(header.page_bytes);
        frame.table.resize(header.table);
        message->copy(reinterpret_cast<char*>(frame.table.data()), message->size());
    }
    frame.header = header;
    outbound_.push(std::move(frame));
}

Posted FramedEndpoint::post_flush(const Request& request) {
    const std::lock_guard lock(lane_);
    if (!is_open()) {
        return {Posted::What::failed, state()};
    }
    if (requests_.epochs.empty()) {
        return {};
    }
    OpRef op = host_.operations().create(request.deadline_ns, request.started_ns);
    requests_.epochs.flush(op);
    return {Posted::What::posted, {}, std::move(op)};
}

} // namespace zerohop::framed
