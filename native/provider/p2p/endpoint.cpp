// The life of a p2p lane.
#include "provider/p2p/endpoint.hpp"

#include "provider/framed/ring_stream.hpp"
#include "shim/gpu_api.hpp"

#include <algorithm>
#include <mutex>
#include <unistd.h>

namespace zerohop::p2p {

P2pEndpoint::P2pEndpoint(Host& host, std::shared_ptr<Peer> peer)
    : FramedEndpoint("p2p", {.fixed_us = 7.0, .gbps = kLinkGbps}, host, std::move(peer)), queues_(host.accelerators()),
      inbound_(std::make_shared<framed::RingConsumer>()) {
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

void P2pEndpoint::connect(const Address& remote) {
    if (!peer().same_host() || remote.fds.size() != 2) {
        throw NativeError(Status::unsupported, Reason::malformed,
                          "a p2p lane needs a ring and the notifications of a peer on this host");
    }
    check_unconnected();
    outbox_ = std::make_unique<NotifyOutbox>(host().accelerators(), remote.fds[1]);
    start(std::make_unique<framed::RingStream>(inbound_, remote.fds[0], shared_peer()));
}

Posted P2pEndpoint::post(const Request& request) {
    const bool copies = request.kind == Kind::write || request.kind == Kind::read;
    if (copies && request.route != nullptr && request.route->access && request.nbytes != 0) {
        return post_copy(request);
    }
    return FramedEndpoint::post(request);
}

Progress P2pEndpoint::poll() {
    bool did = poll_frames();
    if (queues_.any_busy()) {
        did |= poll_copies();
    }
    // A peer that died or left may have announced writes before. They are delivered as long as the lane is open.
    if (started() && is_open()) {
        did |= inbox_.drain([this](int64_t notify, uint64_t nbytes) { deliver(notify, nbytes); }) != 0;
    }
    return did ? Progress::made : Progress::none;
}

void P2pEndpoint::close(Outcome outcome) {
    FramedEndpoint::close(outcome);
    // The devices go on with the copies that they have; only the memory waits for their ends.
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
        end_epoch(epoch);
        op->finish(state());
    }
    poll_copies();
}

Backlog P2pEndpoint::backlog(uint64_t now, bool attended) const {
    Backlog backlog = FramedEndpoint::backlog(now, attended);
    backlog.ready = backlog.ready || (is_open() && inbox_.any());
    // A copy that nobody waits for is reaped all the same, a little later: its memory may be asked back.
    backlog.in_device = queues_.any_busy();
    if (backlog.in_device) {
        const uint64_t look_in = queues_.look_in_ns(now, attended, peer().presence()->sleeping());
        backlog.look_in_ns = std::min(backlog.look_in_ns, look_in);
    }
    return backlog;
}

void P2pEndpoint::prepare(const Route& route) {
    require_access<DeviceAccess>(route);
    if (!route.access) {
        FramedEndpoint::prepare(route);
        return;
    }
    for (const uint64_t kind : {CopyQueues::kSmall, CopyQueues::kLarge}) {
        Outcome outcome; // a device that is lost says so when it is used
        (void)queues_.of(static_cast<const DeviceAccess&>(*route.access).reach.device, kind, outcome);
    }
}

std::optional<Endpoint::Held> P2pEndpoint::hold(const OpRef& op, const accel::Driver& driver, uint64_t native_stream) {
    std::optional<Held> held;
    queues_.each([&](CopyQueue& queue) {
        const std::lock_guard lock(queue.lock());
        const accel::Event* const event = held ? nullptr : queue.event_of_last(op);
        if (event != nullptr && host().accelerators().place(queue.device()).first.get() == &driver) {
            held.emplace();
            held->gate = event->hold(native_stream, held->why);
        }
    });
    return held;
}

void P2pEndpoint::quiesce() {
    FramedEndpoint::quiesce();
    queues_.each([](CopyQueue& queue) { const std::lock_guard lock(queue.lock()); });
}

void P2pEndpoint::add_statistics(Statistics& sums) const {
    FramedEndpoint::add_statistics(sums);
    sums["bytes_copied_by_devices"] += bytes_copied_.load(std::memory_order_relaxed);
    queues_.each([&](const CopyQueue& queue) { sums["copies_gathered"] += queue.gathered(); });
}

// Whether the driver shows a device is found out on first use: asking takes some hundred milliseconds.
Provider::Probe probe() {
    // Distributions package HIP's library, so that it alone says nothing of a GPU; it needs this device file.
    constexpr const char* kHipDevice = "/dev/kfd";
    const bool hip = shim::hip() && ::access(kHipDevice, F_OK) == 0;
    if (shim::cuda() || hip) {
        return {true, "", ""};
    }
    const std::string why_no_hip = shim::hip() ? std::string(kHipDevice) + " is missing" : shim::hip().why_not();
    return {false, "no driver of a GPU is installed: " + shim::cuda().why_not() + "; " + why_no_hip,
            "install the driver of your GPUs; in a container, start it with them (docker run --gpus all)"};
}

} // namespace zerohop::p2p
