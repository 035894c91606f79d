// The life of a verbs lane: connecting and polling.
#include "provider/verbs/endpoint.hpp"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <stdexcept>

namespace zerohop::verbs {

namespace {

// One end's address: this header, then the addresses of its queue pairs, rail by rail.
struct LaneHeader {
    uint8_t version = 1;
    uint8_t rails = 0;
    uint8_t queue_pairs = 0; // on each rail
    uint8_t reserved = 0;
};
static_assert(sizeof(LaneHeader) == 4);

Limits limits_of(const std::vector<std::shared_ptr<VerbsDomain>>& rails) {
    Limits limits{.fixed_us = 3.0};
    for (const auto& rail : rails) {
        limits.gbps += rail->gbps();
    }
    return limits;
}

} // namespace

VerbsEndpoint::VerbsEndpoint(Host& host, std::shared_ptr<Peer> peer, std::vector<std::shared_ptr<VerbsDomain>> rails)
    : FramedEndpoint("verbs", limits_of(rails), host, std::move(peer)), rails_(std::move(rails)) {
    const uint64_t spreads = static_cast<uint64_t>(rails_.front()->options().rail_bytes);
    stays_bytes_ = std::min(kStaysBytes, spreads == 0 ? 0 : spreads - 1);
    const int pairs =
        std::max(1, std::min(rails_.front()->options().queue_pairs, static_cast<int>(kMaxQueues / rails_.size())));
    for (size_t rail = 0; rail < rails_.size(); ++rail) {
        for (int i = 0; i < pairs; ++i) {
            Queue queue{.pair = rails_[rail]->queue_pair(), .domain = rails_[rail].get(), .rail = rail};
            queue.index = static_cast<uint8_t>(queues_.size());
            queue.depth = queue.free = queue.pair->send_depth();
            queues_.push_back(std::move(queue));
        }
    }
    unstarted_ = std::make_unique<SegmentStream>(*this);
    segments_ = unstarted_.get();
    host.exclusive([&] {
        try {
            for (const auto& rail : rails_) {
                numbers_.push_back(rail->join(*this));
            }
        } catch (...) { // no destructor runs: the domains would keep a lane that does not exist
            for (size_t rail = 0; rail < numbers_.size(); ++rail) {
                rails_[rail]->leave(numbers_[rail]);
            }
            throw;
        }
        for (Queue& queue : queues_) {
            queue.lane = numbers_[queue.rail];
            queue.domain->know(queue.pair->number(), *this);
        }
    });
}

VerbsEndpoint::~VerbsEndpoint() {
    // Never connected, or the engine could not wait any longer; in a forked child they are the parent's.
    if (!torn_down_.load() && rails_.front()->opened()->is_ours()) {
        host().exclusive([&] { destroy_queues(); });
    }
}

Address VerbsEndpoint::address() {
    LaneHeader header;
    header.rails = static_cast<uint8_t>(rails_.size());
    header.queue_pairs = static_cast<uint8_t>(queues_.size() / rails_.size());
    std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
    for (const Queue& queue : queues_) {
        const QueuePairAddress address = queue.pair->address();
        bytes.append(reinterpret_cast<const char*>(&address), sizeof address);
    }
    return {std::move(bytes), {}};
}

void VerbsEndpoint::connect(const Address& remote) {
    LaneHeader header;
    if (remote.bytes.size() < sizeof header) {
        throw NativeError(Status::protocol, Reason::malformed, "the peer's end of a verbs lane has no address");
    }
    std::memcpy(&header, remote.bytes.data(), sizeof header);
    const size_t theirs = size_t{header.rails} * header.queue_pairs;
    if (header.version != LaneHeader{}.version || header.rails != rails_.size() || header.queue_pairs == 0 ||
        remote.bytes.size() != sizeof header + theirs * sizeof(QueuePairAddress)) {
        throw NativeError(Status::protocol, Reason::malformed, "the peer's end of a verbs lane does not fit this one");
    }
    check_unconnected();
    const std::lock_guard connecting(connecting_); // the lane may be closed meanwhile, and its queue pairs must stay
    if (!is_open()) {
        throw NativeError(state(), "this lane is closed");
    }
    // Connects as many queue pairs on each rail as both sides have.
    const size_t ours = queues_.size() / rails_.size();
    const size_t both = std::min<size_t>(ours, header.queue_pairs);
    for (size_t i = 0; i < queues_.size(); ++i) {
        if (i % ours < both) {
            QueuePairAddress address;
            const size_t at = i / ours * header.queue_pairs + i % ours;
            std::memcpy(&address, remote.bytes.data() + sizeof header + at * sizeof address, sizeof address);
            {
                const std::lock_guard lock(lane());
                queues_[i].receives = true;
            }
            queues_[i].pair->connect(address);
        } else {
            queues_[i].free = queues_[i].depth = 0; // never used
        }
    }
    connected_.store(true, std::memory_order_release);
    start(std::move(unstarted_));
}

void VerbsEndpoint::prepare(const Route& route) {
    require_access<KeyedAccess>(route);
    const auto* access = static_cast<const KeyedAccess*>(route.access.get());
    if (access != nullptr &&
        (access->keys->keys.size() != rails_.size() || access->local_keys.size() != rails_.size())) {
        throw std::invalid_argument("the keys do not fit the rails of the lane");
    }
    prepare_staging(route);
}

Progress VerbsEndpoint::poll() {
    if (at_rest() && segments_->knows_empty() && !segments_->owes_word() &&
        !work_due_.load(std::memory_order_acquire)) {
        return Progress::rests;
    }
    return poll_all() ? Progress::made : Progress::none;
}

bool VerbsEndpoint::poll_all() {
    bool did = poll_frames();
    if (!is_open()) {
        return tear_down() || did;
    }
    if (connected_.load(std::memory_order_acquire)) {
        did |= poll_lane();
    }
    return did;
}

bool VerbsEndpoint::poll_lane() {
    const auto nothing = [](std::byte*) { return size_t{0}; };
    if (post_failed_.exchange(false, std::memory_order_acquire)) {
        fail({Status::peer_lost, Reason::lane_reset});
        return true;
    }
    bool did = false;
    if (work_due_.load(std::memory_order_acquire)) {
        const std::lock_guard lock(lane());
        pump_transfers();
        did = pump_flushes();
        note_work();
    }
    if (segments_->owes_word()) {
        const std::lock_guard lock(lane());
        did |= post_segment({.kind = SegmentKind::taken}, 0, 0, nothing);
    }
    return did;
}

bool VerbsEndpoint::pump_flushes() {
    bool did = false;
    while (!owed_.empty() && post_mark({SegmentKind::flushed, Chain::What::mark}, 0, owed_.front())) {
        owed_.pop_front();
        did = true;
    }
    for (Flush& flush : flushes_) {
        if (!flush.before->done()) {
            break;
        }
        if (!flush.begun) {
            flush.begun = true;
            for (size_t i = 0; i < queues_.size(); ++i) {
                flush.queues_left |= queues_[i].depth != 0 ? 1U << i : 0;
            }
        }
        Mark mark;
        mark.ticket = flush.ticket;
        mark.parts = static_cast<uint32_t>(
            std::count_if(queues_.begin(), queues_.end(), [](const Queue& queue) { return queue.depth != 0; }));
        for (size_t i = 0; i < queues_.size(); ++i) {
            if ((flush.queues_left >> i & 1) != 0 && post_mark({SegmentKind::flush, Chain::What::mark}, i, mark)) {
                flush.queues_left &= ~(1U << i);
                did = true;
            }
        }
    }
    return did;
}

// The caller holds the lane's lock.
void VerbsEndpoint::note_work() {
    const bool flushing = std::any_of(flushes_.begin(), flushes_.end(),
                                      [](const Flush& flush) { return !flush.begun || flush.queues_left != 0; });
    work_due_.store(!posting_.empty() || !owed_.empty() || flushing || post_failed_.load(std::memory_order_relaxed),
                    std::memory_order_release);
}

Backlog VerbsEndpoint::backlog(uint64_t now, bool attended) const {
    Backlog backlog = FramedEndpoint::backlog(now, attended);
    const bool due = work_due_.load(std::memory_order_acquire);
    backlog.ready = backlog.ready || (is_open() && segments_->owes_word());
    backlog.sendable = backlog.sendable || due;
    backlog.stalled = due || anything_to_send();
    backlog.in_device = transfers_.in_use() != 0;
    return backlog;
}

bool VerbsEndpoint::idle() const {
    if (!is_open()) {
        return torn_down_.load(std::memory_order_acquire) && FramedEndpoint::idle();
    }
    if (!FramedEndpoint::idle()) {
        return false;
    }
    const std::lock_guard lock(lane());
    return transfers_.in_use() == 0 && chains_.in_use() == 0 && posting_.empty() && flushes_.empty() && owed_.empty();
}

void VerbsEndpoint::add_statistics(Statistics& sums) const {
    FramedEndpoint::add_statistics(sums);
    sums["bytes_direct"] += bytes_direct_.load(std::memory_order_relaxed);
    sums["work_requests"] += work_requests_.load(std::memory_order_relaxed);
}

} // namespace zerohop::verbs
