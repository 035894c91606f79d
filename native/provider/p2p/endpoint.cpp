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

// All of it, or where its pages begin.
accel::CopySegment segment_of(const Request& request) {
    const bool reads = request.kind == Kind::read;
    const uint64_t here = request.route->local->address() + request.local_offset;
    const uint64_t there = request.route->peer_address + request.remote_offset;
    return {reads ? here : there, reads ? there : here, request.nbytes};
}

std::shared_ptr<accel::Event> start_copy(accel::Stream& stream, const Request& request,
                                         std::span<const accel::Word> then) {
    const bool reads = request.kind == Kind::read;
    const accel::CopySegment segment = segment_of(request);
    if (request.pages && request.pages->ranges()) {
        const PageList& ranges = *request.pages;
        const PageNumbers& to = reads ? ranges.local : ranges.remote;
        const PageNumbers& from = reads ? ranges.remote : ranges.local;
        std::vector<accel::CopySegment> segments(to.size());
        for (size_t i = 0; i < to.size(); ++i) {
            segments[i] = {segment.dst + to[i], segment.src + from[i], ranges.lengths[i]};
        }
        return stream.copy_many(segments, then);
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

P2pEndpoint::P2pEndpoint(Engine& engine, std::shared_ptr<Peer> peer)
    : FramedEndpoint(engine, std::move(peer)), queues_(engine.accelerators()),
      inbound_(std::make_unique<framed::RingConsumer>()), inbound_fd_(inbound_->fd()) {
    streaming_hint = true;
}

P2pEndpoint::~P2pEndpoint() {
    if (queues_.any_busy()) {
        queues_.leave(std::move(outbox_));
    }
    CopyQueues::sweep();
}

void P2pEndpoint::tick(uint64_t now) {
    FramedEndpoint::tick(now);
    CopyQueues::sweep();
}

Limits P2pEndpoint::limits() const {
    return {.max_message = UINT64_MAX, .alignment = 1, .fixed_us = 7.0, .gbps = CopyQueues::kLinkGbps};
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
    Pin<Region> local;
    Pin<PeerMemory> remote;
    if (const Outcome begun = begin_copy(request, request.route->peer_memory, local, remote); !begun.ok()) {
        return {Posted::What::failed, begun};
    }
    if (const Outcome living = engine().look_at(peer()); !living.ok()) {
        return {Posted::What::failed, living};
    }
    Outcome outcome;
    CopyQueue* const queue = queues_.of(request.route->copy_device, queues_.kind_of(request), outcome);
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

// With the queue's lock held: either close() finds the copy there, or this finds the lane closed.
Outcome P2pEndpoint::begin(CopyQueue& queue, const Request& request, PeerCopy& copy, Pin<Region> local,
                           Pin<PeerMemory> remote) {
    const bool notifies = request.notify >= 0;
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
    copy.form = CopyRates::form_of(request.pages.get());
    copy.local = std::move(local);
    copy.remote = std::move(remote);
    const uint64_t now = now_ns();
    if (!notifies && !request.after_stream && !request.pages && queue.gathers(request.nbytes, now)) {
        queue.hold(std::move(copy), segment_of(request), now);
        return {};
    }
    queue.issue(); // what is held waits for no stream of the user's
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
    copy.op = engine().operations().create(request.deadline_ns, request.started_ns); // throws before anything is taken
    {
        const std::lock_guard lock(lane());
        copy.epoch = requests().epochs.begin();
    }
    const OpRef op = copy.op;
    const uint64_t epoch = copy.epoch;
    Outcome refused;
    try {
        const std::lock_guard lock(queue.lock());
        refused = begin(queue, request, copy, std::move(local), std::move(remote));
    } catch (...) { // out of memory, of which the caller hears
        const std::lock_guard lock(lane());
        requests().epochs.end(epoch);
        throw;
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

bool P2pEndpoint::poll() {
    bool did = FramedEndpoint::poll();
    if (queues_.any_busy()) {
        did |= poll_copies();
    }
    // What a peer that died or left has announced before is delivered as long as the lane is open.
    if (started() && is_open()) {
        did |= inbox_.drain([this](int64_t notify, uint64_t nbytes) { deliver(notify, nbytes); }) != 0;
    }
    return did;
}

bool P2pEndpoint::poll_copies() {
    std::vector<PeerCopy> ended;
    const bool attended = engine().anybody_waits();
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
    const bool announced = copy.ticket.slot != nullptr;
    if (announced && !outcome.ok()) {
        copy.ticket.skip();
        give_credit_back();
    }
    if (outcome.ok()) {
        outcome = is_open() ? engine().look_at(peer()) : state();
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
    std::vector<PeerCopy> dropped; // lets go of memory: outside the locks
    queues_.each([&](CopyQueue& queue) {
        const std::lock_guard lock(queue.lock());
        queue.each([&](PeerCopy& copy) {
            if (copy.op) {
                ended.emplace_back(std::move(copy.op), copy.epoch);
            }
        });
        queue.drop_held(dropped);
    });
    dropped.clear();
    for (auto& [op, epoch] : ended) {
        {
            const std::lock_guard lock(lane());
            requests().epochs.end(epoch);
        }
        op->finish(state());
    }
    poll_copies();
}

bool P2pEndpoint::ready() const {
    return FramedEndpoint::ready() || (is_open() && inbox_.any());
}

bool P2pEndpoint::needs_polling() const {
    return FramedEndpoint::needs_polling() || queues_.any_busy();
}

void P2pEndpoint::prepare(const Route& route) {
    if (!route.peer_memory) {
        FramedEndpoint::prepare(route);
        return;
    }
    for (const uint64_t kind : {CopyQueues::kSmall, CopyQueues::kLarge}) {
        Outcome outcome; // a device that is lost says so when it is used
        (void)queues_.of(route.copy_device, kind, outcome);
    }
}

uint64_t P2pEndpoint::look_in_ns(uint64_t now, bool attended) const {
    const uint64_t look_in = queues_.look_in_ns(now, attended, peer().presence()->sleeping());
    return FramedEndpoint::needs_polling() ? std::min(look_in, kDeviceInterval) : look_in;
}

std::optional<Endpoint::Held> P2pEndpoint::hold(const OpRef& op, const accel::Driver& driver, uint64_t native_stream) {
    std::optional<Held> held;
    queues_.each([&](CopyQueue& queue) {
        const std::lock_guard lock(queue.lock());
        const accel::Event* const event = held ? nullptr : queue.event_of_last(op);
        if (event != nullptr && engine().accelerators().place(queue.device()).first.get() == &driver) {
            held.emplace();
            held->gate = event->hold(native_stream, held->why);
        }
    });
    return held;
}

bool P2pEndpoint::idle() const {
    return FramedEndpoint::idle() && !queues_.any_busy();
}

bool P2pEndpoint::quiet() const {
    return FramedEndpoint::quiet() && !queues_.any_busy();
}

void P2pEndpoint::quiesce() {
    FramedEndpoint::quiesce();
    queues_.each([](CopyQueue& queue) { const std::lock_guard lock(queue.lock()); });
}

void P2pEndpoint::each_statistic(void (*visit)(void*, const char*, uint64_t), void* context) const {
    FramedEndpoint::each_statistic(visit, context);
    visit(context, "bytes_copied_by_devices", bytes_copied_.load(std::memory_order_relaxed));
    uint64_t gathered = 0;
    queues_.each([&](const CopyQueue& queue) { gathered += queue.gathered(); });
    visit(context, "copies_gathered", gathered);
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
