// The operations that this end begins and the NICs carry out: which may begin, and which parts are posted later.
#include "provider/verbs/endpoint.hpp"

#include <algorithm>
#include <mutex>

namespace zerohop::verbs {

namespace {

// prepare() has checked the kind of the route's access.
const KeyedAccess& access_of(const Request& request) {
    return static_cast<const KeyedAccess&>(*request.route->access);
}

} // namespace

Posted VerbsEndpoint::post(const Request& request) {
    bool direct = false;
    switch (request.kind) {
    case Kind::write:
    case Kind::read:
        direct = request.route->access != nullptr;
        break;
    case Kind::fetch_add:
    case Kind::compare_swap:
        direct = request.route->access && access_of(request).keys->atomics;
        break;
    case Kind::flush:
        return post_flush(request);
    case Kind::notify:
    case Kind::send:
    case Kind::recv:
        break;
    }
    return direct ? post_transfer(request) : FramedEndpoint::post(request);
}

Posted VerbsEndpoint::post_transfer(const Request& request) {
    const KeyedAccess& access = access_of(request);
    const bool atomic = request.kind == Kind::fetch_add || request.kind == Kind::compare_swap;
    const uint8_t right = atomic ? kRightRead | kRightWrite : request.kind == Kind::read ? kRightRead : kRightWrite;
    const Outcome allowed = check_range(request, right);
    if (!allowed.ok()) {
        return {Posted::What::failed, allowed};
    }
    if (atomic && (access.keys->address + request.remote_offset) % sizeof(uint64_t) != 0) {
        return {Posted::What::failed, {Status::unsupported, Reason::misaligned}};
    }
    lane().lock(); // by itself, so that it is inlined
    const std::lock_guard lock(lane(), std::adopt_lock);
    if (!is_open() || !connected_.load(std::memory_order_relaxed)) {
        return {Posted::What::failed, is_open() ? Outcome{Status::closed, Reason::lane_closed} : state()};
    }
    Queue* const queue = queue_for(request.nbytes);
    if (queue == nullptr || transfers_.in_use() >= framed::kWindow || (atomic && !has_word())) {
        return {Posted::What::retry, {Status::would_block, Reason::window_full}};
    }
    if (!has_credit(request.notify)) {
        return {Posted::What::retry, {Status::would_block, Reason::no_credit}};
    }
    const uint32_t index = transfers_.add();
    Transfer& transfer = transfers_[index];
    const Outcome pinned = atomic ? Outcome{} : pin_local(request.route->local, transfer.local);
    if (!pinned.ok()) {
        drop_transfer(transfer, index);
        return {Posted::What::failed, pinned};
    }
    if (!transfer.remote.pin(access.keys)) {
        drop_transfer(transfer, index);
        return {Posted::What::failed, {Status::access_denied, Reason::revoked}};
    }
    const bool is_one = fits_one_request(request, *queue);
    if (is_one && !queue->domain->take_room(1)) {
        drop_transfer(transfer, index);
        return {Posted::What::retry, {Status::would_block, Reason::window_full}};
    }
    OpRef op;
    try {
        op = host().operations().create(request.deadline_ns, request.started_ns);
        (void)take_credit(request.notify); // there is one, as seen above with the lock held
    } catch (...) { // 1 Mi operations are in flight, or no memory: what was taken goes back, and the caller is told
        if (is_one) {
            queue->domain->give_room(1);
        }
        drop_transfer(transfer, index);
        throw;
    }
    OpRef held = op;
    transfer.used = true;
    transfer.kind = request.kind;
    transfer.nbytes = request.nbytes;
    transfer.notify = request.notify;
    transfer.epoch = requests().epochs.begin();
    transfer.op.swap(held);
    wrote_since_flush_ |= request.kind == Kind::write;
    if (is_one) {
        post_one(transfer, index, request, *queue);
    } else {
        begin_walk(transfer, request);
        post_some(index);
        if (!transfer.all_posted || transfer.marks_due) {
            posting_.push_back(index);
            work_due_.store(true, std::memory_order_release);
        }
    }
    bytes_direct_.fetch_add(request.nbytes, std::memory_order_relaxed);
    return {.what = Posted::What::posted, .op = std::move(op), .carried_out = is_one};
}

void VerbsEndpoint::begin_walk(Transfer& transfer, const Request& request) {
    transfer.message = message_of(request);
    const KeyedAccess& access = access_of(request);
    transfer.pages =
        request.pages && request.pages->page_bytes <= kGatheredBytes ? in_remote_order(request.pages) : request.pages;
    std::copy(access.local_keys.begin(), access.local_keys.end(), transfer.local_keys.begin()); // one for each rail
    const uint64_t there = access.keys->address + request.remote_offset;
    const uint64_t here = transfer.local->address() + request.local_offset;
    if (const auto& pages = transfer.pages) {
        transfer.there = pages->walk(there, pages->remote, request.nbytes);
        transfer.here = pages->walk(here, pages->local, request.nbytes);
    } else {
        transfer.there = Extents(there, request.nbytes);
        transfer.here = Extents(here, request.nbytes);
    }
}

// Returns true if there is a word for the result of an atomic.
bool VerbsEndpoint::has_word() {
    if (!words_) {
        words_ = rails_.front()->send_buffers().take();
        for (uint32_t i = words_ ? kSegmentBytes / sizeof(uint64_t) : 0; i-- > 0;) {
            free_words_.push_back(i);
        }
    }
    return !free_words_.empty();
}

// Picks the queue of a new operation: small ones stay with one queue as long as that has room in plenty.
VerbsEndpoint::Queue* VerbsEndpoint::queue_for(uint64_t nbytes) {
    if (nbytes > stays_bytes_) {
        return pick_queue(nbytes, 0);
    }
    Queue& recent = queues_[recent_];
    if (recent.free > recent.depth / 2) {
        return &recent;
    }
    Queue* const queue = pick_queue(nbytes, 0);
    if (queue != nullptr) {
        recent_ = queue->index;
    }
    return queue;
}

// Returns the queue with most room; null if none has enough. A transfer of several chains leaves a part of each queue
// to others.
VerbsEndpoint::Queue* VerbsEndpoint::pick_queue(uint64_t nbytes, uint32_t chains) {
    const bool many_rails = nbytes >= static_cast<uint64_t>(rails_.front()->options().rail_bytes);
    Queue* best = nullptr;
    uint32_t most = kReserve;
    for (Queue& queue : queues_) {
        if (queue.rail != 0 && !many_rails) {
            break; // they are in order of their rails
        }
        const uint32_t kept = chains == 0 ? 0 : queue.depth / 4;
        if (queue.free > most && queue.free > kReserve + kept) {
            best = &queue;
            most = queue.free;
        }
    }
    return best;
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
                drop_transfer(transfers_[index], index);
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
    lane().lock(); // by itself, so that it is inlined
    const std::lock_guard lock(lane(), std::adopt_lock);
    if (!is_open() || !connected_.load(std::memory_order_relaxed)) {
        return {Posted::What::failed, is_open() ? Outcome{Status::closed, Reason::lane_closed} : state()};
    }
    // The first flush always crosses: it proves to those who have opened the lane that the fabric carries anything.
    if (proved_ && requests().epochs.empty() && !wrote_since_flush_ && flushes_.empty()) {
        return {};
    }
    proved_ = true;
    Flush flush;
    flush.op = host().operations().create(request.deadline_ns, request.started_ns);
    flush.before = host().operations().create(request.deadline_ns, request.started_ns);
    flush.ticket = next_ticket_++;
    requests().epochs.flush(flush.before);
    wrote_since_flush_ = false;
    OpRef op = flush.op;
    flushes_.push_back(std::move(flush));
    work_due_.store(true, std::memory_order_release);
    return {Posted::What::posted, {}, std::move(op)};
}

} // namespace zerohop::verbs
