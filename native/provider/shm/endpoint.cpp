#include "provider/shm/endpoint.hpp"

#include "memory/copy.hpp"
#include "provider/framed/ring_stream.hpp"

#include <atomic>
#include <cstring>
#include <mutex>
#include <sys/mman.h>

namespace zerohop::shm {

namespace {

constexpr size_t kMaxCopies = 1024; // waiting for the poller: as many as the framed protocol has requests in flight

// prepare() has checked the kind of the route's access.
const std::shared_ptr<Mapping>& mapping_of(const Request& request) {
    return static_cast<const MappedAccess&>(*request.route->access).mapping;
}

} // namespace

ShmEndpoint::ShmEndpoint(Host& host, std::shared_ptr<Peer> peer)
    : FramedEndpoint("shm", {.fixed_us = 1.0, .gbps = 15.0}, host, std::move(peer)),
      inbound_(std::make_shared<framed::RingConsumer>()) {
    streaming_hint = true;
}

void ShmEndpoint::connect(const Address& remote) {
    if (!peer().same_host() || remote.fds.size() != 1) {
        throw NativeError(Status::unsupported, Reason::malformed, "a shm lane needs one ring of a peer on this host");
    }
    check_unconnected();
    start(std::make_unique<framed::RingStream>(inbound_, remote.fds[0], shared_peer()));
}

void ShmEndpoint::prepare(const Route& route) {
    require_access<MappedAccess>(route);
    prepare_staging(route);
}

Posted ShmEndpoint::post(const Request& request) {
    if (request.route != nullptr && request.route->access && request.route->local->is_host()) {
        if (request.kind == Kind::write || request.kind == Kind::read) {
            return post_mapped(request);
        }
        if (request.kind == Kind::fetch_add || request.kind == Kind::compare_swap) {
            return post_mapped_atomic(request);
        }
    }
    return FramedEndpoint::post(request);
}

Posted ShmEndpoint::post_mapped(const Request& request) {
    Pin<Region> local;
    Pin<Mapping> remote;
    if (const Outcome begun = begin_copy(request, mapping_of(request), local, remote); !begun.ok()) {
        return {Posted::What::failed, begun};
    }
    if (copies_pending_.load(std::memory_order_relaxed) >= kMaxCopies) {
        return {Posted::What::retry, {Status::would_block, Reason::window_full}};
    }
    if (!take_credit(request.notify)) {
        return {Posted::What::retry, {Status::would_block, Reason::no_credit}};
    }
    MappedCopy copy(request, std::move(local), std::move(remote));
    bytes_mapped_.fetch_add(request.nbytes, std::memory_order_relaxed);
    copy.step(kSliceBytes);
    if (copy.done()) {
        if (const Outcome outcome = copy.outcome(); !outcome.ok()) {
            give_credit_back(request.notify);
            return {Posted::What::failed, outcome};
        }
        // Asked after the copy: a write succeeds only where a living peer has accepted it.
        if (const Outcome living = host().look_at(peer()); !living.ok()) {
            return {Posted::What::failed, living};
        }
        const Outcome outcome =
            request.notify >= 0 ? push_notify(request.notify, request.nbytes, message_of(request)) : Outcome{};
        return {outcome.ok() ? Posted::What::done : Posted::What::failed, outcome};
    }
    return enqueue(std::move(copy), host().operations().create(request.deadline_ns, request.started_ns));
}

// Leaves the copy to the poller. Under the lock either close() finds it there, or this finds the lane closed.
Posted ShmEndpoint::enqueue(MappedCopy copy, OpRef op) {
    copy.op = op;
    const uint64_t epoch = copy.epoch = begin_epoch();
    {
        const std::lock_guard lock(copies_lock_);
        if (is_open()) {
            copies_pending_.fetch_add(1, std::memory_order_release);
            copies_.push_back(std::move(copy));
            return {Posted::What::posted, {}, std::move(op)};
        }
    }
    end_epoch(epoch);
    return {Posted::What::failed, state()};
}

Posted ShmEndpoint::post_mapped_atomic(const Request& request) {
    const Outcome allowed = check_range(request, kRightRead | kRightWrite);
    if (!allowed.ok()) {
        return {Posted::What::failed, allowed};
    }
    const Pin<Mapping> remote = Pin<Mapping>::of(mapping_of(request));
    if (!remote) {
        return {Posted::What::failed, {Status::access_denied, Reason::revoked}};
    }
    if (!is_open()) {
        return {Posted::What::failed, state()};
    }
    if (const Outcome living = host().look_at(peer()); !living.ok()) {
        return {Posted::What::failed, living};
    }
    const uint64_t address = reinterpret_cast<uint64_t>(remote->data()) + request.remote_offset;
    if (address % sizeof(uint64_t) != 0) {
        return {Posted::What::failed, {Status::unsupported, Reason::misaligned}};
    }
    uint64_t old = 0;
    const Outcome outcome =
        swap_or_add(request.kind == Kind::compare_swap, address, request.operand, request.compare, old);
    return {outcome.ok() ? Posted::What::done : Posted::What::failed, outcome, {}, old};
}

Progress ShmEndpoint::poll() {
    bool did = poll_frames();
    if (copies_pending_.load(std::memory_order_acquire) != 0) {
        did |= poll_copies();
    }
    return did ? Progress::made : Progress::none;
}

// Moves the oldest copy on by a slice. The next poll serves the next one, so that a small copy does not wait for a
// large one.
bool ShmEndpoint::poll_copies() {
    std::list<MappedCopy> ended;
    bool did = false;
    {
        std::unique_lock lock(copies_lock_);
        const bool open = is_open();
        for (auto copy = copies_.begin(); copy != copies_.end();) {
            const auto next = std::next(copy);
            if (!open || copy->op->done()) {
                copy->stop();
            }
            if (copy->done()) {
                ended.splice(ended.end(), copies_, copy);
            }
            copy = next;
        }
        if (!copies_.empty()) {
            std::list<MappedCopy> turn;
            turn.splice(turn.end(), copies_, copies_.begin());
            lock.unlock(); // posting threads must not wait for the copy
            did = turn.front().step(kSliceBytes) != 0;
            const bool over = turn.front().done();
            lock.lock();
            (over ? ended : copies_).splice((over ? ended : copies_).end(), turn);
        }
        copies_pending_.fetch_sub(ended.size(), std::memory_order_release);
    }
    for (MappedCopy& copy : ended) {
        const Outcome outcome = copy.outcome();
        finish(copy, !outcome.ok() ? outcome : is_open() ? host().look_at(peer()) : state());
    }
    return did || !ended.empty();
}

void ShmEndpoint::finish(MappedCopy& copy, Outcome outcome) {
    const bool claimed = copy.notify() >= 0 && outcome.ok() && copy.op->claim();
    if (copy.notify() >= 0) {
        if (claimed) {
            outcome = push_notify(copy.notify(), copy.nbytes(), copy.message());
        } else {
            give_credit_back(copy.notify());
        }
    }
    end_epoch(copy.epoch);
    const OpRef op = std::move(copy.op);
    const uint64_t nbytes = copy.nbytes();
    copy.release(); // unpins before anybody can see the end
    if (claimed) {
        op->finish_claimed(outcome, outcome.ok() ? nbytes : 0);
    } else {
        op->finish(outcome, outcome.ok() ? nbytes : 0);
    }
}

void ShmEndpoint::close(Outcome outcome) {
    FramedEndpoint::close(outcome);
    poll_copies();
}

Backlog ShmEndpoint::backlog(uint64_t now, bool attended) const {
    Backlog backlog = FramedEndpoint::backlog(now, attended);
    backlog.sendable = backlog.sendable || copies_pending_.load(std::memory_order_acquire) != 0;
    backlog.ready = backlog.ready || backlog.sendable;
    return backlog;
}

bool ShmEndpoint::idle() const {
    return FramedEndpoint::idle() && copies_pending_.load(std::memory_order_acquire) == 0;
}

void ShmEndpoint::add_statistics(Statistics& sums) const {
    FramedEndpoint::add_statistics(sums);
    sums["bytes_mapped"] += bytes_mapped_.load(std::memory_order_relaxed);
}

Provider::Probe probe() {
    if (Descriptor(memfd_create("zerohop-probe", MFD_CLOEXEC | MFD_ALLOW_SEALING))) {
        return {true, "", ""};
    }
    const int error = errno;
    const std::string why = std::string("the kernel gives no shared memory (memfd_create): ") + std::strerror(error);
    if (failed_to_make(error).reason == Reason::not_allowed) {
        return {false, why, "allow memfd_create: in a container, docker run --security-opt seccomp=PROFILE.json"};
    }
    return {false, why, "raise the limit of open files (ulimit -n), or use a kernel with memfd_create (3.17 or later)"};
}

} // namespace zerohop::shm
