// The requests of the peer: each is checked against the share that it names before a byte moves.
#include "provider/framed/endpoint.hpp"

#include <mutex>
#include <new>

namespace zerohop::framed {

// Checks a request for `nbytes` at the header's offset, or for what its table names, and pins the memory.
Outcome FramedEndpoint::admit(const FrameHeader& header, uint8_t right, uint64_t nbytes, std::shared_ptr<Share>& share,
                              Pin<Region>& region) {
    const bool ranged = header.kind == FrameKind::write_ranges || header.kind == FrameKind::read_ranges;
    const bool paged = header.kind == FrameKind::write_pages || header.kind == FrameKind::read_pages;
    Outcome outcome = host_.shares().check(header.share(), header.capability, right, header.offset,
                                           ranged || paged ? 0 : nbytes, share);
    if (outcome.ok() && paged) {
        outcome = check_pages(header, share->nbytes - header.offset);
    } else if (outcome.ok() && ranged) {
        outcome = check_ranges(nbytes, share->nbytes - header.offset);
    }
    if (outcome.ok() && !region.pin(share->region)) {
        outcome = {Status::access_denied, Reason::revoked};
    } else if (outcome.ok() && region->moved()) {
        outcome = kMoved;
    }
    refusals_.fetch_add(outcome.ok() ? 0 : 1, std::memory_order_relaxed);
    return outcome;
}

Outcome FramedEndpoint::check_pages(const FrameHeader& header, uint64_t room) const {
    const uint64_t page_bytes = header.kind == FrameKind::read_pages ? header.arg : header.page_bytes;
    for (const uint64_t page : in_.table) {
        if (page_bytes > room || (page_bytes != 0 && page > (room - page_bytes) / page_bytes)) {
            return {Status::access_denied, Reason::bounds};
        }
    }
    return {};
}

// Checks the peer's offsets and lengths: they must add up to `left`, and lie within the share.
Outcome FramedEndpoint::check_ranges(uint64_t left, uint64_t room) const {
    Outcome outcome;
    const size_t count = in_.table.size() / 2;
    for (size_t i = 0; i < count; ++i) {
        const uint64_t offset = in_.table[i];
        const uint64_t nbytes = in_.table[count + i];
        if (nbytes == 0 || nbytes > left) {
            return {Status::protocol, Reason::malformed};
        }
        left -= nbytes;
        if (offset > room || nbytes > room - offset) {
            outcome = {Status::access_denied, Reason::bounds};
        }
    }
    return left == 0 ? outcome : Outcome{Status::protocol, Reason::malformed};
}

bool FramedEndpoint::begin_write(const FrameHeader& header) {
    const bool paged = header.kind == FrameKind::write_pages;
    const bool ranged = header.kind == FrameKind::write_ranges;
    std::shared_ptr<Share> share;
    Pin<Region> region;
    in_.verdict = admit(header, kRightWrite, header.payload, share, region);
    if (!in_.verdict.ok() || header.payload == 0) {
        return true;
    }
    const uint64_t base = region->address() + share->offset + header.offset;
    const size_t count = in_.table.size() / 2;
    const Extents extents = paged    ? Extents(base, in_.table.data(), in_.table.size(), header.page_bytes)
                            : ranged ? Extents(base, in_.table.data(), in_.table.data() + count, header.payload)
                                     : Extents(base, header.payload);
    Sink* sink = nullptr;
    if (region->is_host()) {
        in_.own_sink = make_sink(staging_, std::move(region));
        sink = in_.own_sink.get();
        const bool spread = paged && header.page_bytes >= kMinStreamingPage && share->nbytes >= kStreamingPages;
        in_.streaming = streaming_hint && (spread || (!paged && !ranged && header.arg >= kStreamingBytes));
    } else {
        sink = arrival_sink(header, std::move(region), share);
        if (sink == nullptr) {
            in_.verdict = {Status::protocol, Reason::malformed};
            return true;
        }
    }
    if (!sink->begin_frame(extents)) {
        return false;
    }
    in_.sink = sink;
    in_.share = std::move(share);
    return true;
}

void FramedEndpoint::end_write(const FrameHeader& header) {
    if (in_.verdict.ok() && in_.own_sink) {
        in_.verdict = as_seen_there(in_.own_sink->outcome());
    }
    if (in_.verdict.status == Status::protocol) {
        return fail(in_.verdict);
    }
    const bool last = header.has(kLast);
    const auto refused = refused_.find(header.ticket);
    if (!last) {
        if (!in_.verdict.ok() && refused == refused_.end()) {
            if (refused_.size() >= kWindow) {
                return fail({Status::protocol, Reason::malformed});
            }
            refused_[header.ticket] = in_.verdict;
            answer(header.ticket, in_.verdict, 0, false);
        }
        return;
    }
    Outcome outcome = in_.verdict;
    if (refused != refused_.end()) {
        outcome = refused->second;
        refused_.erase(refused);
    }
    if (header.has(kAborted) && outcome.ok()) {
        outcome = outcome_of(header);
    }
    const auto found = arrivals_.find(header.ticket);
    if (found != arrivals_.end()) {
        if (found->second->recv) {
            return fail({Status::protocol, Reason::malformed}); // that ticket is a message
        }
        found->second->outcome = outcome;
        found->second->last = header;
        ending_.push_back(std::move(found->second));
        arrivals_.erase(found);
        return;
    }
    if (outcome.ok()) {
        announce(header);
    }
    answer(header.ticket, outcome);
}

// Call it with the bytes in place. The thread that pops the notification synchronises with this one.
void FramedEndpoint::announce(const FrameHeader& header) {
    if (!header.has(kNotify)) {
        return;
    }
    Message message;
    if (header.kind == FrameKind::notify && header.page_bytes != 0) {
        message =
            std::make_shared<const std::string>(reinterpret_cast<const char*>(in_.table.data()), header.page_bytes);
    }
    deliver(header.announced(), header.arg, std::move(message));
}

void FramedEndpoint::deliver(int64_t notify, uint64_t nbytes, Message message) {
    if (waiting_here_.add(queue_of(notify), 1) > static_cast<int>(kCredits)) {
        return fail({Status::protocol, Reason::no_credit}); // more than it was granted
    }
    if (anything_to_send()) { // a peer that reads nothing would have credits for it queued without end
        const std::lock_guard lock(lane_);
        if (outbound_.answers() >= kMaxAnswers) {
            return fail({Status::protocol, Reason::window_full});
        }
    }
    host_.notify(queue_of(notify), {peer().id(), value_of(notify), nbytes, std::move(message), shared_from_this()});
}

void FramedEndpoint::on_notify(const FrameHeader& header) {
    announce(header);
    if (header.has(kLast)) {
        answer(header.ticket, {});
    }
}

void FramedEndpoint::on_read(const FrameHeader& header) {
    const bool paged = header.kind == FrameKind::read_pages;
    const bool listed = paged || header.kind == FrameKind::read_ranges;
    std::shared_ptr<Share> share;
    Pin<Region> region;
    const Outcome outcome = admit(header, kRightRead, header.arg, share, region);
    const uint64_t nbytes = paged ? in_.table.size() * header.arg : header.arg;
    if (outcome.status == Status::protocol) {
        return fail(outcome);
    }
    if (!outcome.ok() || nbytes == 0) {
        return answer(header.ticket, outcome);
    }
    const uint64_t base = region->address() + share->offset + header.offset;
    const uint64_t table_bytes = in_.table.size() * sizeof(uint64_t);
    if (kept_bytes_.load(std::memory_order_relaxed) + table_bytes > kMostKeptOfLane) {
        return fail({Status::protocol, Reason::window_full});
    }
    if (host_.kept_bytes().load(std::memory_order_relaxed) + table_bytes > kMostKept) {
        return fail(kLaneOutOfMemory);
    }
    Transfer transfer;
    transfer.kept = Kept(kept_bytes_, host_.kept_bytes(), table_bytes);
    transfer.header.kind = FrameKind::read_data;
    transfer.header.ticket = header.ticket;
    transfer.share = std::move(share);
    transfer.remote = Extents(listed ? header.begins() : 0, nbytes);
    Extents extents(base, nbytes);
    std::shared_ptr<std::vector<uint64_t>> pages;
    if (listed) {
        pages = std::make_shared<std::vector<uint64_t>>(in_.table); // and not the buffer, which may be much larger
        extents = paged ? Extents(base, pages->data(), pages->size(), header.arg)
                        : Extents(base, pages->data(), pages->data() + pages->size() / 2, nbytes);
    }
    if (!region->is_host()) {
        device_work_.store(true, std::memory_order_relaxed);
    }
    transfer.source = make_source(staging_, std::move(region), extents, std::move(pages));
    const std::lock_guard lock(lane_);
    if (outbound_.transfers() >= 2 * kWindow) { // ours, and as many of the peer's reads
        return fail({Status::protocol, Reason::window_full});
    }
    outbound_.push(std::move(transfer));
}

void FramedEndpoint::on_atomic(const FrameHeader& header) {
    const bool swap = header.kind == FrameKind::compare_swap;
    std::shared_ptr<Share> share;
    Pin<Region> region;
    const Outcome outcome = admit(header, kRightRead | kRightWrite, sizeof(uint64_t), share, region);
    if (!outcome.ok()) {
        return answer(header.ticket, outcome);
    }
    const uint64_t address = region->address() + share->offset + header.offset;
    if (address % sizeof(uint64_t) != 0) {
        refusals_.fetch_add(1, std::memory_order_relaxed);
        return answer(header.ticket, {Status::unsupported, Reason::misaligned});
    }
    const uint64_t operand = in_.table[swap ? 1 : 0];
    const uint64_t compare = in_.table[0];
    if (!region->is_host()) {
        if (atomics_pending_ >= kWindow) {
            return fail({Status::protocol, Reason::window_full});
        }
        const auto reply = [lane = weak_from_this(), ticket = header.ticket](Outcome ended, uint64_t old) {
            if (const auto endpoint = std::static_pointer_cast<FramedEndpoint>(lane.lock())) {
                --endpoint->atomics_pending_;
                try {
                    endpoint->answer(ticket, as_seen_there(ended), old);
                } catch (const std::bad_alloc&) { // it is called for all lanes together
                    endpoint->fail(kLaneOutOfMemory);
                }
            }
        };
        Share& counted = *share;
        host_.device_atomics().push({swap, operand, compare, std::move(share), std::move(region), address, reply});
        ++atomics_pending_; // only now, because it may have found no memory
        counted.device_copies.fetch_add(1, std::memory_order_acq_rel);
        return;
    }
    uint64_t old = 0;
    const Outcome changed = swap_or_add(swap, address, operand, compare, old);
    answer(header.ticket, changed, old);
}

void FramedEndpoint::answer(uint32_t ticket, Outcome outcome, uint64_t value, bool last) {
    if (const auto pack = packs_.empty() ? packs_.end() : packs_.find(ticket); pack != packs_.end()) {
        if (--pack->second.unanswered != 0) {
            return;
        }
        packs_.erase(pack); // its messages had ended for the sender when they were sent
        outcome = {};
    }
    const FrameHeader header{.kind = FrameKind::ack,
                             .flags = last ? kLast : uint8_t{0},
                             .status = static_cast<uint8_t>(outcome.status),
                             .reason = static_cast<uint8_t>(outcome.reason),
                             .ticket = ticket,
                             .arg = value};
    const std::lock_guard lock(lane_);
    if (outbound_.answers() >= kMaxAnswers) {
        return fail({Status::protocol, Reason::window_full});
    }
    push_small(header);
}

} // namespace zerohop::framed
