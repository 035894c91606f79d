// Writes and messages of the peer that end only when a device has copied their last piece.
#include "base/payload.hpp"
#include "provider/framed/endpoint.hpp"

namespace zerohop::framed {

// Returns the sink of the write that a piece belongs to. Null if the peer breaks the protocol: its ticket means
// something else already, or there are more writes than the window.
Sink* FramedEndpoint::arrival_sink(const FrameHeader& header, Pin<Region> region, const std::shared_ptr<Share>& share) {
    const auto found = arrivals_.find(header.ticket);
    if (found != arrivals_.end()) {
        return found->second->share == share ? found->second->sink.get() : nullptr;
    }
    if (arrivals_.size() >= kWindow) {
        return nullptr;
    }
    auto arrival = std::make_shared<Arrival>();
    arrival->ticket = header.ticket;
    arrival->sink = make_sink(staging_, std::move(region));
    arrival->share = share;
    arrivals_.emplace(header.ticket, arrival); // before it is counted, because it may find no memory
    arrival->counted = true;
    share->device_copies.fetch_add(1, std::memory_order_acq_rel);
    device_work_.store(true, std::memory_order_relaxed);
    return arrival->sink.get();
}

// Call it once no device copy of it runs any more, and none will begin.
void FramedEndpoint::uncount(Arrival& arrival) {
    if (arrival.counted) {
        arrival.counted = false;
        arrival.share->device_copies.fetch_sub(1, std::memory_order_acq_rel);
        host_.wake_waiters(); // a revocation may wait for it
    }
}

void FramedEndpoint::end_send_data(const FrameHeader& header) {
    if (in_.verdict.status == Status::protocol) {
        return fail(in_.verdict);
    }
    const auto found = arrivals_.find(header.ticket);
    Arrival& arrival = *found->second;
    const Outcome aborted = header.has(kAborted) ? as_seen_there(outcome_of(header)) : Outcome{};
    const bool ends_well = header.has(kLast) && aborted.ok();
    if (!arrival.pieces.take(header.offset, header.payload) ||
        (ends_well && arrival.pieces.total() != arrival.nbytes)) {
        return fail({Status::protocol, Reason::malformed});
    }
    if (!in_.verdict.ok()) {
        arrival.outcome = in_.verdict;
    }
    if (!header.has(kLast)) {
        return;
    }
    if (arrival.outcome.ok()) {
        arrival.outcome = aborted;
    }
    ending_.push_back(std::move(found->second));
    arrivals_.erase(found);
    poll_arrivals();
}

// Ends what has had its last frame and its last device copy; true if something did.
bool FramedEndpoint::poll_arrivals() {
    bool did = false;
    for (const auto& [ticket, arrival] : arrivals_) {
        // settled() gives staging buffers back, so that every arrival is asked. A revoked one gets no further piece,
        // and does not wait for a peer that never sends the last one.
        if (arrival->sink->settled() && arrival->share && arrival->share->revoked.load(std::memory_order_acquire)) {
            uncount(*arrival);
        }
    }
    for (size_t i = 0; i < ending_.size();) {
        std::shared_ptr<Arrival> arrival = ending_[i];
        if (!arrival->eager.empty()) {
            if (!arrival->sink->begin_frame(arrival->extents)) {
                ++i;
                continue;
            }
            if (arrival->sink->outcome().ok()) {
                iovec piece;
                [[maybe_unused]] const size_t one = arrival->sink->scatter(&piece, 1, arrival->eager.size());
                copy_payload(piece.iov_base, arrival->eager.data(), arrival->eager.size());
                arrival->sink->consume(arrival->eager.size());
                arrival->sink->end_frame(true);
            }
            arrival->eager.clear();
        }
        if (arrival->sink->settled()) {
            ending_.erase(ending_.begin() + static_cast<ptrdiff_t>(i)); // first: its end may find no memory
            finish_arrival(*arrival);
            did = true;
        } else {
            ++i;
        }
    }
    return did;
}

// Ends the recv of a message; false if it had ended before.
bool FramedEndpoint::end_recv(Arrival& arrival, Outcome outcome) {
    const uint64_t nbytes = outcome.ok() ? arrival.nbytes : 0;
    if (arrival.claimed) {
        arrival.recv->finish_claimed(outcome, nbytes, arrival.value);
        return true;
    }
    return arrival.recv->finish(outcome, nbytes, arrival.value);
}

void FramedEndpoint::finish_arrival(Arrival& arrival) {
    Outcome outcome = arrival.outcome.ok() ? arrival.sink->outcome() : arrival.outcome;
    arrival.sink.reset(); // unpins before anybody can see the end
    uncount(arrival);
    if (arrival.recv) {
        // Where one side gave up, the other must not take a part of a message for the whole.
        const bool taken = end_recv(arrival, outcome.status == Status::cancelled ? kGivenUp : outcome);
        outcome = as_seen_there(outcome);
        if (!taken && outcome.ok()) {
            outcome = kGivenUp;
        }
    } else if (outcome.ok()) {
        announce(arrival.last);
    }
    answer(arrival.ticket, outcome);
}

} // namespace zerohop::framed
