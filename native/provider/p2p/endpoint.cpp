#include "provider/p2p/endpoint.hpp"

#include "provider/framed/ring_stream.hpp"
#include "shim/gpu_api.hpp"

#include <algorithm>
#include <mutex>
#include <sys/mman.h>
#include <unistd.h>

namespace zerohop::p2p {

namespace {

constexpr size_t kMaxCopies = 4096; // in flight on one stream
// From this size on a copy has a stream of its own kind, so that small ones do not wait for it.
constexpr uint64_t kLargeBytes = 256 * 1024;
constexpr double kLinkGbps = 300; // until a copy has shown how fast the link is
// So long before a copy is likely to end whoever waits for it begins to look: a sleep ends this late at times.
constexpr uint64_t kEarlyNs = 100 * kMicrosecond;
// And so long after that it is looked at without pause.
constexpr uint64_t kLateNs = 50 * kMicrosecond;
// How late a peer is woken that fell asleep after a copy for it was posted, where nobody here waits for the end.
constexpr uint64_t kWakeNs = kMillisecond;

// Kinds of copies, each with a stream of its own.
constexpr uint64_t kSmall = 0;
constexpr uint64_t kLarge = 1;
constexpr uint64_t kFollowing = 2; // a stream of the user's; they are told apart by so many numbers:
constexpr uint64_t kFollowers = 4;

std::shared_ptr<accel::Event> start_copy(accel::Stream& stream, const Request& request,
                                         std::span<const accel::Word> then) {
    const bool reads = request.kind == Kind::read;
    const uint64_t here = request.route->local->address() + request.local_offset;
    const uint64_t there = request.route->peer_address + request.remote_offset;
    if (request.pages) {
        const PageList& pages = *request.pages;
        return stream.copy_pages({.dst_base = reads ? here : there,
                                  .src_base = reads ? there : here,
                                  .dst_pages = reads ? pages.local : pages.remote,
                                  .src_pages = reads ? pages.remote : pages.local,
                                  .page_bytes = pages.page_bytes},
                                 then);
    }
    const accel::CopySegment segment{reads ? here : there, reads ? there : here, request.nbytes};
    return stream.copy({&segment, 1}, then);
}

uint64_t kind_of(const Request& request) {
    if (request.after_stream) { // they must not hold up what waits for no stream, nor, mostly, each other
        return kFollowing + std::hash<uint64_t>{}(*request.after_stream / 64) % kFollowers;
    }
    return request.nbytes >= kLargeBytes ? kLarge : kSmall;
}

} // namespace

P2pEndpoint::P2pEndpoint(Engine& engine, std::shared_ptr<Peer> peer)
    : FramedEndpoint(engine, std::move(peer)), inbound_(std::make_unique<framed::RingConsumer>()),
      inbound_fd_(inbound_->fd()) {
    streaming_hint = true;
}

Limits P2pEndpoint::limits() const {
    return {.max_message = UINT64_MAX, .alignment = 1, .fixed_us = 7.0, .gbps = kLinkGbps};
}

Address P2pEndpoint::address() {
    return {"", {inbound_fd_, inbox_.fd()}};
}

void P2pEndpoint::connect(const Address& remote) {
    if (!peer().same_host() || remote.fds.size() != 2) {
        throw NativeError(Status::unsupported, Reason::malformed,
                          "a p2p lane needs a ring and the notifications of a peer on this host");
    }
    if (!inbound_) {
        throw NativeError(Status::closed, Reason::lane_closed, "this lane is connected already");
    }
    outbox_ = std::make_unique<NotifyOutbox>(engine().accelerators(), remote.fds[1]);
    FramedEndpoint::start(std::make_unique<framed::RingStream>(inbound_, remote.fds[0], shared_peer()));
}

Posted P2pEndpoint::post(const Request& request) {
    const bool copies = request.kind == Kind::write || request.kind == Kind::read;
    if (copies && request.route != nullptr && request.route->peer_memory && request.nbytes != 0) {
        return post_copy(request);
    }
    return FramedEndpoint::post(request);
}

Posted P2pEndpoint::post_copy(const Request& request) {
    const Outcome allowed = check_range(request, request.kind == Kind::read ? kRightRead : kRightWrite);
    if (!allowed.ok()) {
        return {Posted::What::failed, allowed};
    }
    if (!state().ok()) {
        return {Posted::What::failed, state()};
    }
    Pin<Region> local = Pin<Region>::of(request.route->local);
    Pin<PeerMemory> remote = Pin<PeerMemory>::of(request.route->peer_memory);
    if (!local || !remote) {
        return {Posted::What::failed,
                remote ? Outcome{Status::closed, Reason::revoked} : Outcome{Status::access_denied, Reason::revoked}};
    }
    if (const Outcome living = engine().look_at(peer()); !living.ok()) {
        return {Posted::What::failed, living};
    }
    Outcome outcome;
    CopyQueue* const queue = queue_for(request.route->copy_device, kind_of(request), outcome);
    if (queue == nullptr) {
        return {Posted::What::failed, outcome};
    }
    if (!take_credit(request)) {
        return {Posted::What::retry, {Status::would_block, Reason::no_credit}};
    }
    Posted posted = queue_copy(*queue, request, std::move(local), std::move(remote));
    if (posted.what != Posted::What::posted && request.notify >= 0) {
        give_credit_back();
    }
    return posted;
}

// Under the queue's lock either close() finds the copy there, or this finds the lane closed.
Posted P2pEndpoint::queue_copy(CopyQueue& queue, const Request& request, Pin<Region> local, Pin<PeerMemory> remote) {
    PeerCopy copy;
    copy.op = engine().operations().create(request.deadline_ns, request.started_ns); // throws before anything is taken
    {
        const std::lock_guard lock(lane());
        copy.epoch = requests().epochs.begin();
    }
    const OpRef op = copy.op;
    const uint64_t epoch = copy.epoch;
    Outcome refused;
    {
        const std::lock_guard lock(queue.lock());
        const bool notifies = request.notify >= 0;
        if (!state().ok()) {
            refused = state();
        } else if (queue.size() >= kMaxCopies) {
            refused = {Status::would_block, Reason::window_full};
        } else if (notifies) {
            copy.ticket = outbox_->take(queue.ring(), static_cast<uint32_t>(request.notify), request.nbytes);
            refused = copy.ticket.slot == nullptr ? Outcome{Status::would_block, Reason::no_credit} : Outcome{};
        }
        if (refused.ok() && request.after_stream) {
            refused = queue.stream().follow(*request.after_stream);
            if (!refused.ok()) {
                copy.ticket.skip();
            }
        }
        if (refused.ok()) {
            const accel::Word word = notifies ? copy.ticket.word() : accel::Word{};
            copy.nbytes = request.nbytes;
            copy.event = start_copy(queue.stream(), request, {&word, notifies ? size_t{1} : 0});
            copy.local = std::move(local);
            copy.remote = std::move(remote);
            queue.push(std::move(copy), now_ns());
        }
    }
    if (!refused.ok()) {
        {
            const std::lock_guard lock(lane());
            requests().epochs.end(epoch);
        }
        op->finish(refused); // nobody has seen it
        const bool full = refused.status == Status::would_block;
        return {full ? Posted::What::retry : Posted::What::failed, refused};
    }
    bytes_copied_.fetch_add(request.nbytes, std::memory_order_relaxed);
    return {Posted::What::posted, {}, op};
}

// Null, and why, where there is none and none can be made.
CopyQueue* P2pEndpoint::queue_for(int device, uint64_t kind, Outcome& outcome) {
    const std::lock_guard lock(queues_lock_);
    CopyQueue*& queue = queue_of_[{device, kind}];
    if (queue != nullptr) {
        return queue;
    }
    const uint32_t index = queue_count_.load(std::memory_order_relaxed);
    if (index == kRings) {
        outcome = {Status::unsupported, Reason::window_full};
        return nullptr;
    }
    const auto& devices = engine().accelerators().devices();
    std::unique_ptr<accel::Stream> stream = devices.at(static_cast<size_t>(device))->stream(outcome);
    if (!stream) {
        return nullptr;
    }
    queues_[index] = std::make_unique<CopyQueue>(std::move(stream), device, index, kLinkGbps);
    queue = queues_[index].get();
    queue_count_.store(index + 1, std::memory_order_release);
    return queue;
}

bool P2pEndpoint::poll() {
    bool did = FramedEndpoint::poll();
    if (any_busy()) {
        did |= poll_copies();
    }
    // What a peer that died or left has announced before is delivered as long as the lane is open.
    if (started() && state().ok()) {
        did |= inbox_.drain([this](uint32_t value, uint64_t nbytes) { deliver(value, nbytes); }) != 0;
    }
    return did;
}

bool P2pEndpoint::poll_copies() {
    std::vector<PeerCopy> ended;
    const uint32_t count = queue_count_.load(std::memory_order_acquire);
    for (uint32_t index = 0; index < count; ++index) {
        CopyQueue& queue = *queues_[index];
        if (queue.busy()) {
            const std::lock_guard lock(queue.lock());
            queue.reap(ended);
        }
    }
    for (PeerCopy& copy : ended) {
        finish(copy);
    }
    return !ended.empty();
}

void P2pEndpoint::finish(PeerCopy& copy) {
    Outcome outcome = copy.event->query() == accel::EventState::failed ? copy.event->outcome() : Outcome{};
    const bool announced = copy.ticket.slot != nullptr;
    if (announced && !outcome.ok()) {
        copy.ticket.skip();
        give_credit_back();
    }
    if (outcome.ok()) {
        outcome = state().ok() ? engine().look_at(peer()) : state();
    }
    if (announced && outcome.ok()) {
        peer().presence()->wake(); // a device wakes nobody
    }
    if (!copy.op) { // the lane was closed, and has ended it
        return;
    }
    {
        const std::lock_guard lock(lane());
        requests().epochs.end(copy.epoch);
    }
    const OpRef op = std::move(copy.op);
    copy.local.reset(); // before anybody can see the end
    copy.remote.reset();
    if (!op->finish(outcome, outcome.ok() ? copy.nbytes : 0)) {
        engine().wake_waiters(); // it had ended before, but only now there is room for another
    }
}

void P2pEndpoint::close(Outcome outcome) {
    FramedEndpoint::close(outcome);
    // The devices go on with what they have; nobody needs to wait for that but the memory.
    std::vector<std::pair<OpRef, uint64_t>> ended;
    const uint32_t count = queue_count_.load(std::memory_order_acquire);
    for (uint32_t index = 0; index < count; ++index) {
        const std::lock_guard lock(queues_[index]->lock());
        queues_[index]->each([&](PeerCopy& copy) {
            if (copy.op) {
                ended.emplace_back(std::move(copy.op), copy.epoch);
            }
        });
    }
    for (auto& [op, epoch] : ended) {
        {
            const std::lock_guard lock(lane());
            requests().epochs.end(epoch);
        }
        op->finish(state());
    }
    poll_copies();
}

bool P2pEndpoint::any_busy() const {
    const uint32_t count = queue_count_.load(std::memory_order_acquire);
    for (uint32_t index = 0; index < count; ++index) {
        if (queues_[index]->busy()) {
            return true;
        }
    }
    return false;
}

bool P2pEndpoint::ready() const {
    return FramedEndpoint::ready() || (state().ok() && inbox_.any());
}

bool P2pEndpoint::needs_polling() const {
    return FramedEndpoint::needs_polling() || any_busy();
}

// Copies that nobody waits for need no look: their memory is given back a little later. Those that are announced do,
// because the peer may be asleep: precisely, where it sleeps already, and else soon enough.
uint64_t P2pEndpoint::look_in_ns(uint64_t now, bool attended) const {
    uint64_t look_in = FramedEndpoint::needs_polling() ? kDeviceInterval : UINT64_MAX;
    const uint32_t count = queue_count_.load(std::memory_order_acquire);
    for (uint32_t index = 0; index < count; ++index) {
        const CopyQueue& queue = *queues_[index];
        if (!queue.busy()) {
            continue;
        }
        if (!attended && !(queue.announces() && peer().presence()->sleeping())) {
            look_in = std::min(look_in, queue.announces() ? kWakeNs : UINT64_MAX);
            continue;
        }
        const uint64_t expected = queue.expected_ns();
        if (now > expected + kLateNs) {
            look_in = std::min(look_in, kDeviceInterval);
        } else {
            look_in = std::min(look_in, expected > now + kEarlyNs ? expected - kEarlyNs - now : 0);
        }
    }
    return look_in;
}

void P2pEndpoint::prepare(const Route& route) {
    if (!route.peer_memory) {
        FramedEndpoint::prepare(route);
        return;
    }
    for (const uint64_t kind : {kSmall, kLarge}) {
        Outcome outcome; // a device that is lost says so when it is used
        (void)queue_for(route.copy_device, kind, outcome);
    }
}

std::optional<Outcome> P2pEndpoint::hold(const OpRef& op, const accel::Driver& driver, uint64_t native_stream) {
    const uint32_t count = queue_count_.load(std::memory_order_acquire);
    for (uint32_t index = 0; index < count; ++index) {
        CopyQueue& queue = *queues_[index];
        const std::lock_guard lock(queue.lock());
        const accel::Event* const event = queue.event_of(op);
        if (event != nullptr && engine().accelerators().place(queue.device()).first.get() == &driver) {
            return event->hold(native_stream);
        }
    }
    return std::nullopt;
}

bool P2pEndpoint::idle() const {
    return FramedEndpoint::idle() && !any_busy();
}

bool P2pEndpoint::quiet() const {
    return FramedEndpoint::quiet() && !any_busy();
}

void P2pEndpoint::quiesce() {
    FramedEndpoint::quiesce();
    const uint32_t count = queue_count_.load(std::memory_order_acquire);
    for (uint32_t index = 0; index < count; ++index) {
        const std::lock_guard lock(queues_[index]->lock());
    }
}

void P2pEndpoint::each_statistic(void (*visit)(void*, const char*, uint64_t), void* context) const {
    FramedEndpoint::each_statistic(visit, context);
    visit(context, "bytes_copied_by_devices", bytes_copied_.load(std::memory_order_relaxed));
}

// Whether the driver then shows a device is found out on first use: asking takes some hundred milliseconds.
Probe P2pProvider::probe() const {
    // Distributions package HIP's library, so that it alone says nothing of a GPU; it needs this device file.
    constexpr const char* kHipDevice = "/dev/kfd";
    const bool hip = shim::hip() != nullptr && ::access(kHipDevice, F_OK) == 0;
    if (shim::cuda() != nullptr || hip) {
        return {true, "", ""};
    }
    const std::string why_no_hip =
        shim::hip() != nullptr ? std::string(kHipDevice) + " is missing" : shim::why_no_hip();
    return {false, "no driver of a GPU is installed: " + shim::why_no_cuda() + "; " + why_no_hip,
            "install the driver of your GPUs; in a container, start it with them (docker run --gpus all)"};
}

std::shared_ptr<Endpoint> P2pProvider::endpoint(Engine& engine, std::shared_ptr<Peer> peer,
                                                std::span<const std::shared_ptr<Domain>> /*rails*/) const {
    return std::make_shared<P2pEndpoint>(engine, std::move(peer));
}

} // namespace zerohop::p2p
