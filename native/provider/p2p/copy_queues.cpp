#include "provider/p2p/copy_queues.hpp"

#include <algorithm>
#include <functional>
#include <mutex>
#include <sys/types.h>
#include <unistd.h>
#include <vector>

namespace zerohop::p2p {

namespace {

constexpr uint64_t kFollowing = 2; // the first kind of copies that follow a stream of the user's

// Returns how many streams per device follow the user's: every device's two own streams need a ring, too.
uint64_t followers_of_each(size_t devices) {
    const size_t left = kRings > 2 * devices ? kRings - 2 * devices : 0;
    return std::clamp<uint64_t>(left / std::max<size_t>(devices, 1), 1, kFollowers);
}

struct LeftLane {
    std::array<std::unique_ptr<CopyQueue>, kRings> queues;
    std::unique_ptr<NotifyOutbox> outbox;
};

// The lanes that this process has left; a forked child has no part in its parent's copies.
struct Leftovers {
    const pid_t process = ::getpid();
    std::mutex mutex;
    std::vector<LeftLane> lanes;
    std::atomic<size_t> count{0};
};

Leftovers& leftovers() {
    static auto* const all = new Leftovers; // used by destructors at exit
    return *all;
}

} // namespace

uint64_t CopyQueues::kind_of(const Request& request) {
    if (request.after_stream) { // they must not hold up what waits for no stream, nor, mostly, each other
        const uint64_t followers = followers_of_each(accelerators_.devices().size());
        return kFollowing + std::hash<uint64_t>{}(*request.after_stream / 64) % followers;
    }
    return request.nbytes >= kLargeBytes ? kLarge : kSmall;
}

CopyQueue* CopyQueues::of(int device, uint64_t kind, Outcome& outcome) {
    const std::lock_guard lock(lock_);
    CopyQueue*& queue = by_kind_[{device, kind}];
    if (queue != nullptr) {
        return queue;
    }
    const uint32_t index = count_.load(std::memory_order_relaxed);
    if (index == kRings) { // more devices than any machine has: a device that came late has one stream for all
        const auto same =
            std::find_if(queues_.begin(), queues_.end(), [&](const auto& each) { return each->device() == device; });
        queue = same == queues_.end() ? nullptr : same->get();
        outcome = {Status::unsupported, Reason::none};
        return queue;
    }
    const auto& devices = accelerators_.devices();
    std::unique_ptr<accel::Stream> stream = devices.at(static_cast<size_t>(device))->stream(outcome);
    if (!stream) {
        return nullptr;
    }
    queues_[index] = std::make_unique<CopyQueue>(std::move(stream), device, index, kLinkGbps);
    queue = queues_[index].get();
    count_.store(index + 1, std::memory_order_release);
    return queue;
}

bool CopyQueues::any_busy() const {
    bool busy = false;
    each([&](const CopyQueue& queue) { busy = busy || queue.busy(); });
    return busy;
}

uint64_t CopyQueues::look_in_ns(uint64_t now, bool attended, bool peer_sleeps) const {
    uint64_t look_in = UINT64_MAX;
    each([&](const CopyQueue& queue) {
        if (!queue.busy()) {
            return;
        }
        if (const uint64_t due = queue.due_ns(); due != UINT64_MAX) {
            look_in = std::min(look_in, due - std::min(due, now));
        }
        if (!attended && !(queue.announces() && peer_sleeps)) {
            look_in = std::min(look_in, queue.announces() ? kWakeNs : UINT64_MAX);
            return;
        }
        const uint64_t expected = queue.expected_ns();
        if (now > expected + kLateNs) {
            look_in = std::min(look_in, kDeviceInterval);
        } else {
            const uint64_t early = queue.early_ns();
            look_in = std::min(look_in, expected > now + early ? expected - early - now : 0);
        }
    });
    return look_in;
}

void CopyQueues::leave(std::unique_ptr<NotifyOutbox> outbox) {
    Leftovers& all = leftovers();
    const std::lock_guard lock(all.mutex);
    all.lanes.push_back({std::move(queues_), std::move(outbox)});
    all.count.store(all.lanes.size(), std::memory_order_release);
}

void CopyQueues::sweep() {
    Leftovers& all = leftovers();
    if (all.count.load(std::memory_order_acquire) == 0 || all.process != ::getpid()) {
        return;
    }
    std::vector<PeerCopy> ended; // lets go of memory: outside the lock
    std::vector<LeftLane> gone;
    const std::unique_lock lock(all.mutex, std::try_to_lock);
    if (!lock.owns_lock()) {
        return;
    }
    for (auto lane = all.lanes.begin(); lane != all.lanes.end();) {
        bool busy = false;
        for (const std::unique_ptr<CopyQueue>& queue : lane->queues) {
            if (queue) {
                const std::lock_guard queue_lock(queue->lock());
                queue->reap(ended, false);
                busy = busy || queue->size() != 0;
            }
        }
        if (busy) {
            ++lane;
        } else {
            gone.push_back(std::move(*lane));
            lane = all.lanes.erase(lane);
        }
    }
    all.count.store(all.lanes.size(), std::memory_order_release);
}

} // namespace zerohop::p2p
