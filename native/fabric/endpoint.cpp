#include "fabric/endpoint.hpp"

#include "accel/idle_calls.hpp"
#include "base/clock.hpp"
#include "base/status.hpp"

#include <algorithm>
#include <arpa/inet.h>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <poll.h>
#include <string>

namespace zerohop::fabric {

namespace {

// Marks the receives among the numbers that a work request carries as its id.
constexpr uint64_t kReceive = 1ULL << 63;
constexpr size_t kBatch = 32;

ibv_wc_opcode completion_opcode(ibv_wr_opcode opcode) {
    switch (opcode) {
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
        return IBV_WC_RDMA_WRITE;
    case IBV_WR_RDMA_READ:
        return IBV_WC_RDMA_READ;
    case IBV_WR_ATOMIC_CMP_AND_SWP:
        return IBV_WC_COMP_SWAP;
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
        return IBV_WC_FETCH_ADD;
    default:
        return IBV_WC_SEND;
    }
}

void fill(ibv_send_wr& made, const Request& request, ibv_sge& payload) {
    made.opcode = request.opcode;
    made.send_flags = request.flags;
    made.imm_data = htonl(request.immediate);
    if (request.payload.empty()) {
        // The library only reads them.
        made.sg_list = const_cast<ibv_sge*>(request.pieces.data());
        made.num_sge = static_cast<int>(request.pieces.size());
    } else {
        payload = {reinterpret_cast<uint64_t>(request.payload.data()), static_cast<uint32_t>(request.payload.size()),
                   0};
        made.sg_list = &payload;
        made.num_sge = 1;
    }
    if (request.opcode == IBV_WR_ATOMIC_CMP_AND_SWP || request.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
        const bool swap = request.opcode == IBV_WR_ATOMIC_CMP_AND_SWP;
        made.wr.atomic.remote_addr = request.remote_address;
        made.wr.atomic.rkey = request.remote_key;
        made.wr.atomic.compare_add = swap ? request.compare : request.operand;
        made.wr.atomic.swap = swap ? request.operand : 0;
    } else {
        made.wr.rdma.remote_addr = request.remote_address;
        made.wr.rdma.rkey = request.remote_key;
    }
}

template <class Work> void link(std::vector<Work>& chain) {
    for (size_t i = 0; i + 1 < chain.size(); ++i) {
        chain[i].next = &chain[i + 1];
    }
}

// How many of a chain the device took, which says where it stopped.
template <class Work> size_t accepted(int error, const Work* bad, const std::vector<Work>& chain) {
    return error == 0 ? chain.size() : static_cast<size_t>(bad - chain.data());
}

void check_posted(int error, size_t taken, size_t count) {
    if (error != 0) {
        throw NativeError(Status::device_error, Reason::none,
                          "the device refused request " + std::to_string(taken + 1) + " of " + std::to_string(count) +
                              ", and those before it are posted: " + std::strerror(error));
    }
}

// Holds the objects that an endpoint has made on its device. The queue pair is destroyed first.
struct Parts {
    std::shared_ptr<verbs::Device> device;
    verbs::Made<ibv_comp_channel> channel;
    verbs::Made<ibv_cq> queue;
    std::unique_ptr<verbs::QueuePair> pair;
};

} // namespace

void Endpoint::Queue::check_room(size_t wanted) const {
    const uint64_t free = places.size() - taken();
    if (wanted > free) {
        throw NativeError(Status::would_block, Reason::none,
                          "of the " + std::to_string(places.size()) + " places of the " + name + ", " +
                              std::to_string(free) + " are free, and " + std::to_string(wanted) + " are needed");
    }
}

Endpoint::Endpoint(std::shared_ptr<verbs::Device> device, const Size& size, const verbs::Options& options)
    : device_(std::move(device)), size_(size), sends_{"send queue", std::vector<Place>(size.messages)},
      receives_{"receive queue", std::vector<Place>(size.receives)} {
    const shim::IbVerbs& api = device_->api();
    if (size.sleeps) {
        bell_ = Descriptor::event();
        channel_ = verbs::make_channel(*device_);
    }
    const auto entries = static_cast<int>(size.completions);
    queue_ = verbs::Made<ibv_cq>(api.create_cq(device_->context(), entries, nullptr, channel_.get(), 0),
                                 {device_.get(), api.destroy_cq});
    if (queue_ == nullptr) {
        verbs::raise("cannot make a completion queue of " + std::to_string(size.completions) + " entries on " +
                         device_->name(),
                     errno);
    }
    verbs::Options own = options;
    own.send_depth = static_cast<int>(size.messages);
    own.max_inline = static_cast<int>(size.inline_bytes);
    pair_ = std::make_unique<verbs::QueuePair>(
        device_,
        verbs::QueuePair::Queues{
            .send = queue_.get(), .receive = queue_.get(), .receive_depth = size.receives, .max_sge = size.sge},
        own);
    max_inline_ = pair_->max_inline();
}

void Endpoint::check_open() const {
    if (closing_) {
        throw NativeError(Status::closed, Reason::none, "this Endpoint is closed");
    }
}

verbs::QueuePairAddress Endpoint::address() const {
    const std::lock_guard lock(mutex_);
    check_open();
    return pair_->address();
}

DirectQueue Endpoint::direct_queue() {
    const std::lock_guard lock(mutex_);
    check_open();
    const shim::Loaded<shim::Mlx5>& api = shim::mlx5();
    if (!api) {
        throw NativeError(Status::unsupported, Reason::none, api.why_not());
    }
    const DirectQueue found = find_direct_queue(*api, *pair_->handle(), *queue_);
    direct_ = true;
    return found;
}

void Endpoint::connect(const verbs::QueuePairAddress& remote) {
    const std::lock_guard lock(mutex_);
    check_open();
    pair_->connect(remote);
}

void Endpoint::fail() {
    const std::lock_guard lock(mutex_);
    if (!closing_) {
        pair_->fail();
    }
}

void Endpoint::post(std::span<const Request* const> chain) {
    const std::lock_guard lock(mutex_);
    check_open();
    sends_.check_room(chain.size());
    if (chain.empty()) {
        return;
    }
    send_chain_.assign(chain.size(), {});
    payload_pieces_.resize(chain.size());
    // Half a queue: by the time that the other half is full, the first half is done.
    const auto most_unsignalled = static_cast<uint32_t>(std::max<size_t>(sends_.places.size() / 2, 1));
    uint32_t unsignalled = unsignalled_;
    for (size_t i = 0; i < chain.size(); ++i) {
        const Request& request = *chain[i];
        ibv_send_wr& made = send_chain_[i];
        fill(made, request, payload_pieces_[i]);
        made.wr_id = sends_.posted + i;
        const bool told = (request.flags & IBV_SEND_SIGNALED) != 0;
        if (told || ++unsignalled >= most_unsignalled) {
            made.send_flags |= IBV_SEND_SIGNALED;
            unsignalled = 0;
        }
        sends_.place(made.wr_id) = {request.id, completion_opcode(request.opcode), told, request.nbytes};
    }
    link(send_chain_);
    ibv_send_wr* bad = nullptr;
    const int error = ibv_post_send(pair_->handle(), send_chain_.data(), &bad);
    const size_t posted = accepted(error, bad, send_chain_);
    sends_.posted += posted;
    for (size_t i = 0; i < posted; ++i) {
        unsignalled_ = (send_chain_[i].send_flags & IBV_SEND_SIGNALED) != 0 ? 0 : unsignalled_ + 1;
    }
    check_posted(error, posted, chain.size());
}

void Endpoint::post(std::span<const Receive* const> chain) {
    const std::lock_guard lock(mutex_);
    check_open();
    receives_.check_room(chain.size());
    if (chain.empty()) {
        return;
    }
    receive_chain_.assign(chain.size(), {});
    for (size_t i = 0; i < chain.size(); ++i) {
        ibv_recv_wr& made = receive_chain_[i];
        made.wr_id = (receives_.posted + i) | kReceive;
        made.sg_list = const_cast<ibv_sge*>(chain[i]->pieces.data());
        made.num_sge = static_cast<int>(chain[i]->pieces.size());
        receives_.place(receives_.posted + i) = {chain[i]->id, IBV_WC_RECV, true, 0};
    }
    link(receive_chain_);
    ibv_recv_wr* bad = nullptr;
    const int error = ibv_post_recv(pair_->handle(), receive_chain_.data(), &bad);
    const size_t posted = accepted(error, bad, receive_chain_);
    receives_.posted += posted;
    check_posted(error, posted, chain.size());
}

std::vector<Completion> Endpoint::poll(size_t most) {
    const std::lock_guard lock(mutex_);
    check_open();
    std::vector<Completion> ended;
    std::array<ibv_wc, kBatch> entries;
    while (ended.size() < most) {
        const auto wanted = static_cast<int>(std::min(kBatch, most - ended.size()));
        const int count = ibv_poll_cq(queue_.get(), wanted, entries.data());
        if (count < 0) {
            throw NativeError(Status::device_error, Reason::device_lost,
                              "the completion queue of " + device_->name() + " cannot be read");
        }
        for (int i = 0; i < count; ++i) {
            take(entries[static_cast<size_t>(i)], ended);
        }
        if (count < wanted) {
            break;
        }
    }
    return ended;
}

void Endpoint::take(const ibv_wc& entry, std::vector<Completion>& ended) {
    const bool receive = (entry.wr_id & kReceive) != 0;
    const uint64_t number = entry.wr_id & ~kReceive;
    Queue& queue = receive ? receives_ : sends_;
    const Place& place = queue.place(number);
    queue.ended = number + 1; // each queue is worked through in order: whatever lies before is done, too
    const bool good = entry.status == IBV_WC_SUCCESS;
    if (good && !place.told) {
        return;
    }
    Completion told;
    told.id = place.id;
    told.opcode = receive && good ? entry.opcode : place.opcode;
    told.status = entry.status;
    told.vendor_error = entry.vendor_err;
    if (good) {
        told.nbytes = receive ? entry.byte_len : static_cast<uint32_t>(place.nbytes);
        if (receive && (entry.wc_flags & IBV_WC_WITH_IMM) != 0) {
            told.immediate = ntohl(entry.imm_data);
        }
    }
    ended.push_back(told);
}

void Endpoint::arm() {
    const std::lock_guard lock(mutex_);
    check_open();
    if (ibv_req_notify_cq(queue_.get(), 0) != 0) {
        throw NativeError(Status::device_error, Reason::device_lost,
                          "the completion queue of " + device_->name() + " cannot be armed");
    }
}

void Endpoint::sleep(uint64_t deadline_ns) {
    std::unique_lock lock(mutex_);
    check_open();
    ++inside_;
    if (asleep_) {
        // Of two that wait for one descriptor, the first to wake takes the event away from the other.
        const uint64_t seen = wakes_;
        const auto woken = [&] { return wakes_ != seen || closing_; };
        if (deadline_ns == 0) {
            changed_.wait(lock, woken);
        } else {
            const std::chrono::steady_clock::time_point until{std::chrono::nanoseconds(deadline_ns)};
            changed_.wait_until(lock, until, woken);
        }
    } else {
        asleep_ = true;
        lock.unlock();
        std::array<pollfd, 2> watched{pollfd{channel_->fd, POLLIN, 0}, pollfd{bell_.get(), POLLIN, 0}};
        const uint64_t now = now_ns();
        const uint64_t left = deadline_ns > now ? deadline_ns - now : 0;
        const timespec limit{static_cast<time_t>(left / kSecond), static_cast<long>(left % kSecond)};
        ppoll(watched.data(), watched.size(), deadline_ns == 0 ? nullptr : &limit, nullptr);
        lock.lock();
        take_events();
        asleep_ = false;
        ++wakes_;
    }
    --inside_;
    changed_.notify_all();
}

void Endpoint::take_events() {
    ibv_cq* queue = nullptr;
    void* unused = nullptr;
    while (device_->api().get_cq_event(channel_.get(), &queue, &unused) == 0) {
        device_->api().ack_cq_events(queue, 1);
    }
}

uint64_t Endpoint::sends() const {
    const std::lock_guard lock(mutex_);
    return sends_.taken();
}

uint64_t Endpoint::receives() const {
    const std::lock_guard lock(mutex_);
    return receives_.taken();
}

void Endpoint::close() {
    std::unique_lock lock(mutex_);
    if (closing_) { // by another thread
        changed_.wait(lock, [&] { return closed_; });
        return;
    }
    closing_ = true;
    if (size_.sleeps) {
        bell_.ring();
    }
    changed_.notify_all();
    changed_.wait(lock, [&] { return inside_ == 0; });
    pair_->fail();
    if (direct_) {
        // Destroyed later: otherwise another pair could get the same addresses, by which a GPU still reaches the old
        // memory. Nobody has armed the queue, so that it has no events.
        auto parts = std::make_shared<Parts>();
        *parts = {device_, std::move(channel_), std::move(queue_), std::move(pair_)};
        accel::IdleCalls::of_process().later([parts = std::move(parts)] {});
    } else {
        pair_.reset();
        if (size_.sleeps) {
            take_events(); // destroying a queue waits until all of its events are acknowledged
        }
        queue_.reset();
        channel_.reset();
    }
    sends_.ended = sends_.posted;
    receives_.ended = receives_.posted;
    closed_ = true;
    changed_.notify_all();
}

} // namespace zerohop::fabric
