#include "provider/shm/endpoint.hpp"

#include "memory/copy.hpp"
#include "provider/framed/ring_stream.hpp"

#include <atomic>
#include <cstring>
#include <mutex>
#include <sys/mman.h>
#include <unistd.h>

namespace zerohop::shm {

namespace {

constexpr size_t kMaxCopies = 1024;

} // namespace

ShmEndpoint::ShmEndpoint(Engine& engine, std::shared_ptr<Peer> peer)
    : FramedEndpoint(engine, std::move(peer)), inbound_(std::make_unique<framed::RingConsumer>()),
      inbound_fd_(inbound_->fd()) {
    streaming_hint = true;
}

Limits ShmEndpoint::limits() const {
    return {.max_message = UINT64_MAX, .alignment = 1, .fixed_us = 1.0, .gbps = 15.0};
}

Address ShmEndpoint::address() {
    return {"", {inbound_fd_}};
}

void ShmEndpoint::connect(const Address& remote) {
    if (!peer().same_host() || remote.fds.size() != 1) {
        throw NativeError(Status::unsupported, Reason::malformed, "a shm lane needs one ring of a peer on this host");
    }
    if (!inbound_) {
        throw NativeError(Status::closed, Reason::lane_closed, "this lane is connected already");
    }
    start(std::make_unique<framed::RingStream>(inbound_, remote.fds[0], shared_peer()));
}

Posted ShmEndpoint::post(const Request& request) {
    if (request.route == nullptr || !request.route->mapping || !request.route->local->is_host()) {
        return FramedEndpoint::post(request);
    }
    switch (request.kind) {
    case Kind::write:
    case Kind::read:
        return post_mapped(request);
    case Kind::fetch_add:
    case Kind::compare_swap:
        return post_mapped_atomic(request);
    case Kind::notify:
    case Kind::send:
    case Kind::recv:
    case Kind::flush:
        return FramedEndpoint::post(request);
    }
    return {Posted::What::failed, {Status::unsupported, Reason::none}};
}

Posted ShmEndpoint::post_mapped(const Request& request) {
    Pin<Region> local;
    Pin<Mapping> remote;
    if (const Outcome begun = begin_copy(request, request.route->mapping, local, remote); !begun.ok()) {
        return {Posted::What::failed, begun};
    }
    if (copies_pending_.load(std::memory_order_relaxed) >= kMaxCopies) {
        return {Posted::What::retry, {Status::would_block, Reason::window_full}};
    }
    if (!take_credit(request)) {
        return {Posted::What::retry, {Status::would_block, Reason::no_credit}};
    }
    MappedCopy copy(request, std::move(local), std::move(remote));
    bytes_mapped_.fetch_add(request.nbytes, std::memory_order_relaxed);
    copy.step(kSliceBytes);
    if (copy.done()) {
        // Asked after the copy: a write that succeeds was accepted by a living peer.
        if (const Outcome living = engine().look_at(peer()); !living.ok()) {
            return {Posted::What::failed, living};
        }
        const Outcome outcome = request.notify >= 0 ? push_notify(request.notify, request.nbytes) : Outcome{};
        return {outcome.ok() ? Posted::What::done : Posted::What::failed, outcome};
    }
    return enqueue(std::move(copy), engine().operations().create(request.deadline_ns, request.started_ns));
}

// For the poller. Under the lock either close() finds the copy there, or this finds the lane closed.
Posted ShmEndpoint::enqueue(MappedCopy copy, OpRef op) {
    copy.op = op;
    {
        const std::lock_guard lock(lane());
        copy.epoch = requests().epochs.begin();
    }
    const uint64_t epoch = copy.epoch;
    {
        const std::lock_guard lock(copies_lock_);
        if (is_open()) {
            copies_pending_.fetch_add(1, std::memory_order_release);
            copies_.push_back(std::move(copy));
            return {Posted::What::posted, {}, std::move(op)};
        }
    }
    const std::lock_guard lock(lane());
    requests().epochs.end(epoch);
    return {Posted::What::failed, state()};
}

Posted ShmEndpoint::post_mapped_atomic(const Request& request) {
    const Outcome allowed = check_range(request, kRightRead | kRightWrite);
    if (!allowed.ok()) {
        return {Posted::What::failed, allowed};
    }
    const Pin<Mapping> remote = Pin<Mapping>::of(request.route->mapping);
    if (!remote) {
        return {Posted::What::failed, {Status::access_denied, Reason::revoked}};
    }
    if (!is_open()) {
        return {Posted::What::failed, state()};
    }
    if (const Outcome living = engine().look_at(peer()); !living.ok()) {
        return {Posted::What::failed, living};
    }
    std::byte* address = remote->data() + request.remote_offset;
    if (reinterpret_cast<uintptr_t>(address) % sizeof(uint64_t) != 0) {
        return {Posted::What::failed, {Status::unsupported, Reason::misaligned}};
    }
    std::atomic_ref<uint64_t> word(*reinterpret_cast<uint64_t*>(address));
    uint64_t old = request.compare;
    if (request.kind == Kind::compare_swap) {
        word.compare_exchange_strong(old, request.operand);
    } else {
        old = word.fetch_add(request.operand);
    }
    return {Posted::What::done, {}, {}, old};
}

bool ShmEndpoint::poll() {
    bool did = FramedEndpoint::poll();
    if (copies_pending_.load(std::memory_order_acquire) != 0) {
        did |= poll_copies();
    }
    return did;
}

// The oldest copy moves on by a slice; the next poll serves the next one, so that a small copy does not wait for a
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
        finish(copy, is_open() ? engine().look_at(peer()) : state());
    }
    return did || !ended.empty();
}

void ShmEndpoint::finish(MappedCopy& copy, Outcome outcome) {
    const bool still_wanted = !copy.op->done();
    if (copy.notify() >= 0) {
        if (outcome.ok() && still_wanted) {
            outcome = push_notify(copy.notify(), copy.nbytes());
        } else {
            give_credit_back();
        }
    }
    {
        const std::lock_guard lock(lane());
        requests().epochs.end(copy.epoch);
    }
    const OpRef op = std::move(copy.op);
    const uint64_t nbytes = copy.nbytes();
    copy.release(); // unpins before anybody can see the end
    op->finish(outcome, outcome.ok() ? nbytes : 0);
}

void ShmEndpoint::close(Outcome outcome) {
    FramedEndpoint::close(outcome);
    poll_copies();
}

bool ShmEndpoint::ready() const {
    return FramedEndpoint::ready() || has_local_work();
}

bool ShmEndpoint::has_local_work() const {
    return FramedEndpoint::has_local_work() || copies_pending_.load(std::memory_order_acquire) != 0;
}

bool ShmEndpoint::idle() const {
    return FramedEndpoint::idle() && copies_pending_.load(std::memory_order_acquire) == 0;
}

void ShmEndpoint::each_statistic(void (*visit)(void*, const char*, uint64_t), void* context) const {
    FramedEndpoint::each_statistic(visit, context);
    visit(context, "bytes_mapped", bytes_mapped_.load(std::memory_order_relaxed));
}

Probe ShmProvider::probe() const {
    const int fd = memfd_create("zerohop-probe", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) {
        return {false, std::string("the kernel gives no shared memory: ") + std::strerror(errno),
                "raise the limit of open files (ulimit -n), or use a kernel with memfd_create (3.17 or later)"};
    }
    ::close(fd);
    return {true, "", ""};
}

std::shared_ptr<Endpoint> ShmProvider::endpoint(Engine& engine, std::shared_ptr<Peer> peer,
                                                std::span<const std::shared_ptr<Domain>> /*rails*/) const {
    return std::make_shared<ShmEndpoint>(engine, std::move(peer));
}

} // namespace zerohop::shm
