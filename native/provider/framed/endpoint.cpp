// The life of a framed lane: polling, closing, credits, heartbeats.
#include "provider/framed/endpoint.hpp"

#include "base/guarded.hpp"
#include "base/payload.hpp"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <new>

namespace zerohop::framed {

Outcome FramedEndpoint::swap_or_add(bool swap, uint64_t address, uint64_t operand, uint64_t compare, uint64_t& old) {
    std::atomic_ref<uint64_t> word(*reinterpret_cast<uint64_t*>(address));
    const Gone gone = guarded({address, sizeof(uint64_t)}, {}, [&] {
#if defined(__SANITIZE_THREAD__)
        touch_for_writing(address); // a fault within its atomics would leave it locked
#endif
        if (swap) {
            old = compare;
            word.compare_exchange_strong(old, operand);
        } else {
            old = word.fetch_add(operand);
        }
    });
    return gone == Gone::nothing ? Outcome{} : kMemoryGone;
}

FramedEndpoint::FramedEndpoint(const char* provider, const Limits& limits, Host& host, std::shared_ptr<Peer> peer,
                               Watcher* watcher)
    : Endpoint(provider, limits, std::move(peer)), host_(host), watcher_(watcher != nullptr ? *watcher : host),
      staging_(host.accelerators(), watcher != nullptr ? host.accelerators().spread() : 0) {}

void FramedEndpoint::start(std::unique_ptr<ByteStream> stream) {
    // The lane may be closed at any moment, also before it was connected.
    host_.exclusive([&] {
        stream_ = std::move(stream);
        if (!is_open()) {
            stream_->close(false);
            return;
        }
        last_heard_ns_ = now_ns();
        started_.store(true, std::memory_order_release);
    });
    if (!is_open()) {
        throw NativeError(state(), "this lane is closed");
    }
    watcher_.kick(); // the peer may have written already
}

bool FramedEndpoint::poll_frames() {
    if (!started() || !is_open()) {
        return settle();
    }
    if (!failure_.ok()) { // there was no memory to do anything else with
        on_failure(failure_);
        return true;
    }
    bool did = false;
    if ((in_.head_complete || !stream_->knows_empty()) && receive(kSliceBytes)) {
        did = true;
        heard_.store(true, std::memory_order_relaxed);
    }
    if (match_wanted_.load(std::memory_order_acquire)) {
        match_wanted_.store(false, std::memory_order_release);
        match();
        match_mailboxes();
        did = true;
    }
    if (device_work_.load(std::memory_order_relaxed)) {
        did |= poll_reads();
        did |= poll_arrivals();
    }
    const bool pending = anything_to_send();
    const bool ours = pending && lane_.try_lock();
    // The holder of the lock may have looked for room before there was some. Then nobody else looks again.
    look_again_.store(pending && !ours, std::memory_order_relaxed);
    if (ours) {
        const std::lock_guard lock(lane_, std::adopt_lock);
        did |= pump(kSliceBytes);
    }
    if (device_work_.load(std::memory_order_relaxed)) {
        note_device_work();
    }
    if (failure_.ok() && !stream_->state().ok()) {
        fail(stream_->state());
    }
    if (failure_.ok() && !outbound_.broken().ok()) {
        fail(outbound_.broken());
    }
    if (!failure_.ok()) {
        on_failure(failure_);
        did = true;
    }
    return did;
}

void FramedEndpoint::on_failure(Outcome outcome) {
    host_.lose_peer(peer(), outcome);
    // The first failure that was found, on this lane or on another, is the cause of the later ones.
    close(peer().state());
}

// The caller holds the lane's lock. Without memory the lane ends: a frame may have gone in part.
bool FramedEndpoint::pump(uint64_t budget) {
    try {
        return is_open() && send_frames(budget);
    } catch (const std::bad_alloc&) {
        run_out_of_memory();
        return true;
    }
}

void FramedEndpoint::run_out_of_memory() {
    outbound_.break_off(kLaneOutOfMemory);
    watcher_.kick(); // the thread that polls ends the lane
}

bool FramedEndpoint::send_frames(uint64_t budget) {
    bool did = outbound_.pump(*stream_, budget);
    note_blocked();
    // Room that came before the peer knew that it is wanted is announced by nobody.
    if (outbound_.blocked() && stream_->ready(true)) {
        did |= outbound_.pump(*stream_, budget);
        note_blocked();
    }
    if (outbound_.waits_for_device()) {
        device_work_.store(true, std::memory_order_relaxed); // also if a posting thread found that
    }
    return did;
}

void FramedEndpoint::note_blocked() {
    const bool blocked = outbound_.blocked();
    if (blocked != wants_room_.load(std::memory_order_relaxed)) {
        wants_room_.store(blocked, std::memory_order_release);
        stream_->want_room(blocked);
    }
}

void FramedEndpoint::prepare(const Route& route) {
    if (route.access) {
        refuse_access();
    }
    prepare_staging(route);
}

void FramedEndpoint::refuse_access() {
    throw NativeError(Status::unsupported, Reason::none, "a lane of another kind reaches this memory");
}

void FramedEndpoint::prepare_staging(const Route& route) {
    if (!route.local->is_host()) {
        staging_.prepare(route.local->device());
    }
}

void FramedEndpoint::quiesce() {
    const std::lock_guard lock(lane_);
}

void FramedEndpoint::push_small(const FrameHeader& header, const void* body, size_t nbytes) {
    SmallFrame frame;
    frame.header = header;
    if (nbytes != 0) {
        copy_payload(frame.bytes.data(), body, nbytes);
    }
    outbound_.push(std::move(frame));
}

Backlog FramedEndpoint::backlog(uint64_t /*now*/, bool /*attended*/) const {
    Backlog backlog;
    backlog.sendable = match_wanted_.load(std::memory_order_acquire) || can_send();
    backlog.ready =
        started() && is_open() && (backlog.sendable || stream_->ready(wants_room_.load(std::memory_order_acquire)));
    if (device_work_.load(std::memory_order_relaxed) ||
        (look_again_.load(std::memory_order_relaxed) && anything_to_send())) {
        backlog.look_in_ns = kDeviceInterval;
    }
    return backlog;
}

void FramedEndpoint::note_device_work() {
    const std::lock_guard lock(lane_);
    bool busy = !arrivals_.empty() || !ending_.empty() || !outbound_.settled() || outbound_.waits_for_device();
    if (!busy) {
        requests_.each([&](Outstanding& outstanding) {
            busy = busy || (outstanding.sink && outstanding.local && !outstanding.local->is_host());
        });
    }
    device_work_.store(busy, std::memory_order_relaxed);
}

void FramedEndpoint::fail(Outcome outcome) {
    if (failure_.ok()) {
        failure_ = outcome;
    }
}

void FramedEndpoint::close(Outcome outcome) {
    for (const auto& [ticket, mailbox] : mailed_) {
        mailbox->lane_closed(this);
    }
    mailed_.clear();
    packs_.clear();
    std::vector<std::pair<OpRef, uint64_t>> ended; // with their values
    {
        const std::lock_guard lock(lane_);
        if (!is_open()) {
            return;
        }
        // All that this needs is got before anything is changed: without memory it is called again.
        std::vector<uint32_t> tickets;
        tickets.reserve(requests_.size());
        ended.reserve(requests_.size() + recvs_.size() + arrivals_.size() + ending_.size());
        unsettled_.reserve(unsettled_.size() + requests_.size());
        ending_.reserve(ending_.size() + arrivals_.size());
        outbound_.prepare_clear();
        set_state(outcome);
        if (outbound_.clear() && outcome.status == Status::closed) {
            say_goodbye(outcome.reason);
        }
        requests_.each([&](Outstanding& outstanding) {
            ended.emplace_back(std::move(outstanding.op), 0);
            if (outstanding.sink && !outstanding.sink->settled()) {
                unsettled_.push_back(std::move(outstanding.sink));
            }
            tickets.push_back(outstanding.ticket);
        });
        requests_.epochs.fail_flushes(outcome);
        for (const uint32_t ticket : tickets) {
            requests_.remove(ticket);
        }
        for (PostedRecv& recv : recvs_) {
            ended.emplace_back(std::move(recv.op), 0);
        }
        recvs_.clear();
        sends_.clear();
        matched_.clear();
    }
    if (stream_) {
        stream_->close(outcome.status == Status::protocol);
    }
    in_.reset();
    for (auto& [ticket, arrival] : arrivals_) {
        ending_.push_back(std::move(arrival));
    }
    arrivals_.clear();
    for (const auto& arrival : ending_) {
        if (arrival->recv && arrival->claimed) {
            end_recv(*arrival, outcome);
        } else if (arrival->recv) {
            ended.emplace_back(std::move(arrival->recv), arrival->value);
        }
    }
    settle();
    for (const auto& [op, value] : ended) {
        op->finish(outcome, 0, value);
    }
}

// After close(): lets go of memory as device copies end; true if something did.
bool FramedEndpoint::settle() {
    if (settled_.load(std::memory_order_acquire) || is_open()) {
        return false;
    }
    std::erase_if(unsettled_, [](const auto& sink) { return sink->settled(); });
    std::erase_if(ending_, [this](const auto& arrival) {
        if (!arrival->sink->settled()) {
            return false;
        }
        uncount(*arrival);
        return true;
    });
    const std::lock_guard lock(lane_);
    const bool all = unsettled_.empty() && ending_.empty() && outbound_.settled();
    settled_.store(all, std::memory_order_release);
    device_work_.store(!all, std::memory_order_relaxed);
    return all;
}

bool FramedEndpoint::telling() const {
    const std::lock_guard lock(lane_);
    return is_open() && stream_ != nullptr && outbound_.telling(*stream_);
}

bool FramedEndpoint::idle() const {
    if (!is_open()) {
        return settled_.load(std::memory_order_acquire) || !started();
    }
    const std::lock_guard lock(lane_);
    return requests_.size() == 0 && !outbound_.busy() && recvs_.empty() && mailed_.empty() && arrivals_.empty() &&
           ending_.empty();
}

uint64_t FramedEndpoint::begin_epoch() {
    const std::lock_guard lock(lane_);
    return requests_.epochs.begin();
}

void FramedEndpoint::end_epoch(uint64_t epoch) {
    const std::lock_guard lock(lane_);
    requests_.epochs.end(epoch);
}

void FramedEndpoint::return_credit(uint16_t queue) {
    waiting_here_.add(queue, -1);
    if (taken_here_.add(queue, 1) < static_cast<int>(kCreditBatch)) {
        return;
    }
    const std::lock_guard lock(lane_);
    const int returned = taken_here_.take(queue);
    if (returned == 0 || !is_open()) {
        return;
    }
    FrameHeader header{.kind = FrameKind::credit, .arg = static_cast<uint64_t>(returned)};
    header.announce(notify_of(queue, 0));
    push_small(header);
    pump(kSliceBytes);
}

void FramedEndpoint::tick(uint64_t now) {
    if (!started() || !is_open()) {
        return;
    }
    drop_ended_messages();
    const uint64_t heartbeat = host_.heartbeat_ns();
    // A peer on this host has a presence page; and the clock may have been read before this lane began.
    if (peer().same_host() || heartbeat == 0 || now < last_heard_ns_) {
        return;
    }
    if (heard_.exchange(false, std::memory_order_relaxed)) {
        last_heard_ns_ = now;
    }
    if (now - last_heard_ns_ > heartbeat) {
        fail({Status::peer_lost, Reason::heartbeat});
    } else if (now - last_ping_ns_ > heartbeat / 3) {
        last_ping_ns_ = now;
        const std::lock_guard lock(lane_);
        push_small({.kind = FrameKind::ping});
        pump(kSliceBytes);
    }
}

void FramedEndpoint::add_statistics(Statistics& sums) const {
    sums["bytes_sent"] += outbound_.bytes_sent();
    sums["bytes_received"] += bytes_received_.load(std::memory_order_relaxed);
    sums["refusals"] += refusals_.load(std::memory_order_relaxed);
}

} // namespace zerohop::framed
