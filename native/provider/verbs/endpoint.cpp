// The life of a verbs lane: connecting, polling, closing.
#include "provider/verbs/endpoint.hpp"

#include "provider/verbs/provider.hpp"

#include <algorithm>
#include <cstring>
#include <mutex>

namespace zerohop::verbs {

namespace {

// What one end tells the other: this, then the addresses of its queue pairs, rail by rail.
struct LaneHeader {
    uint8_t version = 1;
    uint8_t rails = 0;
    uint8_t queue_pairs = 0; // on each rail
    uint8_t reserved = 0;
};
static_assert(sizeof(LaneHeader) == 4);

constexpr uint64_t kLastWords = 50 * kMillisecond;   // for what was sent before a close to be acknowledged
constexpr uint64_t kFlushed = 100 * kMillisecond;    // a device that has not flushed by then is asked no more
constexpr uint64_t kLastReceive = 10 * kMillisecond; // for its word on that; Soft-RoCE of Linux 6.1 never says it

} // namespace

VerbsEndpoint::VerbsEndpoint(Engine& engine, std::shared_ptr<Peer> peer,
                             std::vector<std::shared_ptr<VerbsDomain>> rails)
    : FramedEndpoint(engine, std::move(peer)), rails_(std::move(rails)) {
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
    engine.poller().exclusive([&] {
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
        engine().poller().exclusive([&] { destroy_queues(); });
    }
}

Limits VerbsEndpoint::limits() const {
    double gbps = 0;
    for (const auto& rail : rails_) {
        gbps += rail->gbps();
    }
    return {.max_message = UINT64_MAX, .alignment = 1, .fixed_us = 3.0, .gbps = gbps};
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
    if (!unstarted_) {
        throw NativeError(Status::closed, Reason::lane_closed, "this lane is connected already");
    }
    struct Connecting { // the lane may be closed meanwhile, and its queue pairs must stay until this is over
        explicit Connecting(VerbsEndpoint& of) : lane(of) {
            const std::lock_guard lock(lane.lane());
            if (!lane.state().ok()) {
                throw NativeError(lane.state(), "this lane is closed");
            }
            lane.connecting_ = true;
        }
        ~Connecting() {
            const std::lock_guard lock(lane.lane());
            lane.connecting_ = false;
        }
        Connecting(const Connecting&) = delete;
        Connecting& operator=(const Connecting&) = delete;
        VerbsEndpoint& lane;
    };
    const Connecting connecting(*this);
    // As many on each rail as both sides have.
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

bool VerbsEndpoint::poll() {
    const bool rests =
        at_rest() && segments_->knows_empty() && !segments_->owes_word() && !work_due_.load(std::memory_order_acquire);
    note_rest(rests);
    return !rests && poll_all();
}

bool VerbsEndpoint::poll_all() {
    bool did = FramedEndpoint::poll();
    if (!is_open()) {
        return tear_down() || did;
    }
    if (connected_.load(std::memory_order_acquire)) {
        did |= poll_lane();
    }
    return did;
}

bool VerbsEndpoint::poll_lane() {
    const auto nothing = [](std::byte*) {};
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

// With the lane's lock held.
void VerbsEndpoint::note_work() {
    const bool flushing = std::any_of(flushes_.begin(), flushes_.end(),
                                      [](const Flush& flush) { return !flush.begun || flush.queues_left != 0; });
    work_due_.store(!posting_.empty() || !owed_.empty() || flushing || post_failed_.load(std::memory_order_relaxed),
                    std::memory_order_release);
}

bool VerbsEndpoint::ready() const {
    return FramedEndpoint::ready() || (is_open() && segments_->owes_word());
}

bool VerbsEndpoint::has_local_work() const {
    return FramedEndpoint::has_local_work() || work_due_.load(std::memory_order_acquire);
}

bool VerbsEndpoint::idle() const {
    return torn_down_.load(std::memory_order_acquire) && FramedEndpoint::idle();
}

bool VerbsEndpoint::quiet() const {
    const std::lock_guard lock(lane());
    return nothing_under_way() && in_device_.load(std::memory_order_relaxed) == 0 && chains_.in_use() == 0 &&
           posting_.empty() && flushes_.empty() && owed_.empty();
}

Outcome VerbsEndpoint::cause() const {
    const Reason cause = cause_.load(std::memory_order_relaxed);
    return cause == Reason::none ? state() : Outcome{state().status, cause};
}

// The poller's: a queue pair is in the error state because of this, and takes the lane with it.
void VerbsEndpoint::break_off(Outcome cause) {
    if (is_open()) {
        Reason first = Reason::none;
        cause_.compare_exchange_strong(first, cause.reason, std::memory_order_relaxed);
        fail({Status::peer_lost, Reason::lane_reset});
    }
}

void VerbsEndpoint::on_last_receive(uint32_t queue_pair) {
    const std::lock_guard lock(lane());
    for (Queue& queue : queues_) {
        queue.receives = queue.receives && queue.pair->number() != queue_pair;
    }
}

void VerbsEndpoint::on_failure(Outcome outcome) {
    switch (outcome.reason) {
    case Reason::lane_reset:
    case Reason::device_lost:
        close(outcome); // the peer may well live
        engine().events()->push(kLaneDown | static_cast<uint64_t>(peer().id()));
        engine().wake_waiters();
        return;
    default:
        FramedEndpoint::on_failure(outcome);
    }
}

void VerbsEndpoint::close(Outcome outcome) {
    FramedEndpoint::close(outcome);
    struct Ended {
        OpRef op;
        Outcome outcome;
    };
    std::vector<Ended> ended;
    {
        const std::lock_guard lock(lane());
        if (closing_) {
            return;
        }
        closing_ = true;
        closed_at_ns_ = now_ns();
        bool moving = false;
        for (uint32_t i = 0; i < transfers_.size(); ++i) {
            Transfer& transfer = transfers_[i];
            if (transfer.used) {
                // Its memory stays pinned until the device has let go of it.
                moving = true;
                if (transfer.op) {
                    ended.push_back({std::move(transfer.op), transfer.outcome.ok() ? outcome : transfer.outcome});
                }
            }
        }
        for (Flush& flush : flushes_) {
            ended.push_back({std::move(flush.op), outcome});
            ended.push_back({std::move(flush.before), outcome});
        }
        flushes_.clear();
        owed_.clear();
        posting_.clear();
        note_work();
        // What was sent before a goodbye may still arrive; data that nobody waits for need not.
        if (moving || outcome.status != Status::closed || !connected_.load()) {
            fail_queues();
        }
    }
    for (Ended& each : ended) {
        each.op->finish(as_the_peer_lives(each.outcome));
    }
}

// With the lane's lock held.
void VerbsEndpoint::fail_queues() {
    failed_ = true;
    failed_at_ns_ = now_ns();
    for (Queue& queue : queues_) {
        queue.pair->fail();
    }
}

// After close(): lets go of the queue pairs when the device has; true if it did.
bool VerbsEndpoint::tear_down() {
    if (torn_down_.load(std::memory_order_relaxed) || !closing_) {
        return false;
    }
    const uint64_t now = now_ns();
    const uint64_t since = now - closed_at_ns_;
    {
        const std::lock_guard lock(lane());
        const bool quiet = chains_.in_use() == 0 && ones_ == 0;
        if (!failed_ && (quiet || since > kLastWords)) {
            fail_queues();
        }
        if (!failed_ || connecting_ || (!quiet && since < kLastWords + kFlushed)) {
            return false;
        }
        const bool receives = std::any_of(queues_.begin(), queues_.end(), [](const Queue& queue) {
            return queue.receives && queue.domain->device_alive();
        });
        if (receives && now < failed_at_ns_ + kLastReceive) {
            return false;
        }
    }
    destroy_queues();
    return true;
}

void VerbsEndpoint::destroy_queues() {
    for (Queue& queue : queues_) {
        const uint32_t number = queue.pair->number();
        queue.domain->forget(number);
        queue.pair->destroy();
        queue.domain->forget(number);
    }
    if (segments_ != nullptr) {
        segments_->close(true);
    }
    {
        const std::lock_guard lock(lane());
        for (uint32_t i = 0; i < chains_.size(); ++i) { // those whose completion never came
            if (chains_[i].what != Chain::What::none) {
                end_chain(chains_[i], i);
            }
        }
        end_ones();
        for (uint32_t i = 0; i < transfers_.size(); ++i) {
            Transfer& transfer = transfers_[i];
            if (transfer.used) {
                drop_transfer(transfer, i);
            }
        }
        if (words_) {
            rails_.front()->send_buffers().give(words_);
            words_ = {};
        }
    }
    for (size_t rail = 0; rail < numbers_.size(); ++rail) {
        rails_[rail]->leave(numbers_[rail]);
    }
    numbers_.clear();
    torn_down_.store(true, std::memory_order_release);
}

void VerbsEndpoint::each_statistic(void (*visit)(void*, const char*, uint64_t), void* context) const {
    FramedEndpoint::each_statistic(visit, context);
    visit(context, "bytes_direct", bytes_direct_.load(std::memory_order_relaxed));
    visit(context, "work_requests", work_requests_.load(std::memory_order_relaxed));
}

Probe VerbsProvider::probe() const {
    try {
        const std::vector<std::string> names = Device::names();
        if (!names.empty()) {
            return {true, "", ""};
        }
        return {false, "this machine has no RDMA device (/sys/class/infiniband is empty)",
                "install the NIC's driver, or for a software device: modprobe rdma_rxe && rdma link add rxe0 type rxe "
                "netdev eth0"};
    } catch (const NativeError& error) {
        return {false, error.what(), "apt-get install libibverbs1 ibverbs-providers"};
    }
}

std::shared_ptr<Domain> VerbsProvider::open(Engine& engine, const std::string& device, int port, int number,
                                            const DomainOptions& options) const {
    if (port < 1 || port > UINT8_MAX) {
        throw NativeError(Status::unsupported, Reason::none, "a port's number is from 1 to 255");
    }
    const Options checked = Options::from(options);
    return std::make_shared<VerbsDomain>(engine, Device::open(device, static_cast<uint8_t>(port)), number, checked);
}

std::shared_ptr<Endpoint> VerbsProvider::endpoint(Engine& engine, std::shared_ptr<Peer> peer,
                                                  std::span<const std::shared_ptr<Domain>> rails) const {
    std::vector<std::shared_ptr<VerbsDomain>> opened;
    for (const auto& rail : rails) {
        auto domain = std::dynamic_pointer_cast<VerbsDomain>(rail);
        if (!domain || !domain->alive()) {
            throw NativeError(Status::unsupported, Reason::port_down, rail->device() + " is not usable now");
        }
        opened.push_back(std::move(domain));
    }
    if (opened.empty() || opened.size() > kMaxRails) {
        throw NativeError(Status::unsupported, Reason::none, "a verbs lane needs one to eight NIC ports");
    }
    return std::make_shared<VerbsEndpoint>(engine, std::move(peer), std::move(opened));
}

} // namespace zerohop::verbs
