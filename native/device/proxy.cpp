#include "device/proxy.hpp"

#include <algorithm>
#include <thread>
#include <utility>

namespace zerohop::device {

namespace {

constexpr size_t kTakenAtOnce = 256;
// Entries of one peer that are under way at the same time, and those that wait here; beyond that they wait in the FIFO.
constexpr size_t kUnderWay = 256;
constexpr size_t kWaiting = 1 << 16;
// Looks that find nothing until the thread lets others go first.
constexpr uint64_t kLooksPerTurn = 64;

} // namespace

Proxy::Proxy(Engine& engine, std::shared_ptr<Region> control, std::shared_ptr<Region> scratch, uint64_t slots,
             std::vector<LocalFacts> locals, std::vector<PeerFacts> peers, std::vector<Place> places,
             uint64_t timeout_ns)
    : engine_(engine), control_(std::move(control)), scratch_(std::move(scratch)), locals_(std::move(locals)),
      places_(std::move(places)), slots_(slots), timeout_ns_(timeout_ns), memory_(control_->host()),
      layout_(peers.size(), slots), fifo_(reinterpret_cast<Entry*>(memory_ + layout_.fifo), slots),
      targets_(peers.size()), published_ns_(slots) {
    for (size_t i = 0; i < peers.size(); ++i) {
        for (const uint64_t id : peers[i].routes) {
            targets_[i].routes.push_back(engine_.route(id));
        }
        if (!targets_[i].routes.empty() && targets_[i].routes.back() && targets_[i].routes.back()->local != scratch_) {
            auto from_scratch = std::make_shared<Route>(*targets_[i].routes.back());
            from_scratch->local = scratch_;
            targets_[i].routes.back() = std::move(from_scratch);
        }
        for (const std::shared_ptr<const Route>& route : targets_[i].routes) {
            if (route && peers[i].needs_flush) {
                targets_[i].visible.add_lane(route->endpoint);
            }
        }
        targets_[i].facts = std::move(peers[i]);
    }
}

bool Proxy::poll() {
    bool moved = false;
    polled_ns_ = now_ns();
    const bool looking = !closed_.load(std::memory_order_relaxed) && looking_.wanted();
    if (looking) {
        moved = take();
    }
    if (left_.load(std::memory_order_relaxed) != 0) {
        for (size_t i = 0; i < targets_.size(); ++i) {
            moved |= advance(i);
        }
    }
    // The kernels of a small host may be threads, which need its processors.
    empty_looks_ = moved || !looking ? 0 : empty_looks_ + 1;
    if (empty_looks_ % kLooksPerTurn == kLooksPerTurn - 1) {
        std::this_thread::yield();
    }
    return moved;
}

bool Proxy::take() {
    const uint64_t ends = looking_.ends();
    bool taken = false;
    bool empty = false;
    for (size_t i = 0; i < kTakenAtOnce; ++i) {
        if (crowded_ != 0) {
            break;
        }
        const uint64_t number = fifo_.taken();
        const std::optional<Decoded> entry = fifo_.take();
        if (!entry) {
            empty = true;
            break;
        }
        taken = true;
        if (entry->peer >= targets_.size() || targets_[entry->peer].routes.empty()) {
            publish(ControlLayout::kState, kFailed); // no kernel of ours writes that: its memory was overwritten
            for (size_t peer = 0; peer < targets_.size(); ++peer) {
                mark_failure(peer);
            }
            continue;
        }
        Item item{.entry = *entry, .number = number, .compare = compare_};
        if (entry->op == Op::compare_swap && !compares_) {
            item.entry.op = Op::none;
        }
        compares_ = entry->op == Op::compare;
        compare_ = entry->value;
        Target& target = targets_[entry->peer];
        // Most small ones end at once, and are never put in a queue.
        const bool begun = target.items.empty() && may_begin(target, item.entry.op) && begin(entry->peer, item);
        if (begun && item.state == Item::State::ended) {
            note_ended(target, number);
        } else {
            target.items.push_back(std::move(item));
            target.begun += begun ? 1 : 0;
            crowded_ += target.items.size() == kWaiting ? 1 : 0;
            left_.fetch_add(1, std::memory_order_release);
        }
    }
    if (taken) {
        publish(ControlLayout::kTaken, fifo_.taken());
        for (size_t i = 0; i < targets_.size(); ++i) {
            publish_ended(i);
        }
    }
    if (empty) {
        looking_.found_all(ends);
    }
    return taken;
}

bool Proxy::advance(size_t number) {
    Target& target = targets_[number];
    if (target.items.empty() && !target.flush_pending) {
        return false;
    }
    bool moved = collect(number);
    moved |= retire(number);
    moved |= flush_lanes(number);
    while (target.begun < std::min(target.items.size(), kUnderWay)) {
        Item& item = target.items[target.begun];
        if (!may_begin(target, item.entry.op) || !begin(number, item)) {
            break;
        }
        ++target.begun;
        moved = true;
    }
    moved |= retire(number);
    return moved;
}

// Tells whether an entry need not wait for earlier ones any longer.
bool Proxy::may_begin(const Target& target, Op op) {
    if (!waits_for_earlier(op) || !target.facts.needs_flush) {
        return !waits_for_earlier(op) || target.open == 0;
    }
    // A flush covers only entries that were retired. While some are not, they may have ended without one.
    return target.begun == 0 && target.visible.count(target.ended) == target.ended;
}

// Forgets the entries that have ended, from the first.
bool Proxy::retire(size_t number) {
    Target& target = targets_[number];
    size_t ended = 0;
    uint64_t last = 0;
    const bool crowded = target.items.size() >= kWaiting;
    while (!target.items.empty() && target.items.front().state == Item::State::ended) {
        last = target.items.front().number;
        target.items.pop_front();
        --target.begun;
        ++ended;
    }
    if (ended != 0) {
        note_ended(target, last);
        publish_ended(number);
        crowded_ -= crowded && target.items.size() < kWaiting ? 1 : 0;
        left_.fetch_sub(ended, std::memory_order_release);
    }
    return ended != 0;
}

void Proxy::note_ended(Target& target, uint64_t index) {
    target.ended = index + 1;
    if (!target.flush_pending && target.visible.count(target.ended) != target.ended) {
        target.flush_pending = true;
        left_.fetch_add(1, std::memory_order_release);
    }
}

// Flushes the lanes to a peer, so that the bytes of entries that have ended become visible there.
bool Proxy::flush_lanes(size_t number) {
    Target& target = targets_[number];
    if (!target.flush_pending) {
        return false;
    }
    const uint64_t now = now_ns();
    const bool moved = target.visible.advance(engine_, target.ended, now, now + timeout_ns_);
    if (!target.visible.outcome().ok() && target.failure.ok()) {
        fail(number, target.visible.outcome());
    }
    publish_ended(number);
    if (target.visible.count(target.ended) == target.ended) {
        target.flush_pending = false;
        left_.fetch_sub(1, std::memory_order_release);
    }
    return moved;
}

void Proxy::publish_ended(size_t number) {
    Target& target = targets_[number];
    const uint64_t visible = target.visible.count(target.ended);
    if (target.published != visible) {
        // Another thread may set kFailure in the same word: lose() does.
        __atomic_fetch_add(word_at(peer_at(number)), visible - target.published, __ATOMIC_RELEASE);
        target.published = visible;
    }
}

void Proxy::fail(size_t number, Outcome outcome) {
    {
        const std::lock_guard lock(failures_);
        if (targets_[number].failure.ok()) {
            targets_[number].failure = outcome;
        }
        outcome = targets_[number].failure;
    }
    publish(peer_at(number) + kWordBytes, outcome.status == Status::peer_lost ? kPeerLost : kFailed);
    mark_failure(number);
}

// Tells kernels that wait for entries of a peer, or will, that its state says why some have failed.
void Proxy::mark_failure(size_t number) {
    __atomic_fetch_or(word_at(peer_at(number)), kFailure, __ATOMIC_RELEASE);
}

void Proxy::lose(size_t peer) {
    targets_[peer].lost.store(true, std::memory_order_release);
    {
        // A failure that was noticed before stays the reason.
        const std::lock_guard lock(failures_);
        if (!targets_[peer].failure.ok() && targets_[peer].failure.status != Status::peer_lost) {
            return;
        }
    }
    publish(peer_at(peer) + kWordBytes, kPeerLost);
    mark_failure(peer);
}

Outcome Proxy::failure(size_t peer) const {
    const std::lock_guard lock(failures_);
    if (targets_[peer].failure.ok() && targets_[peer].lost.load(std::memory_order_acquire)) {
        return {Status::peer_lost, Reason::none};
    }
    return targets_[peer].failure;
}

Backlog Proxy::backlog() const {
    const bool looking = !closed_.load(std::memory_order_acquire) && looking_.wanted();
    // Lanes tell what ends there, except that an operation's time is up.
    return {.ready = looking, .look_in_ns = idle_now() ? UINT64_MAX : kMillisecond};
}

void Proxy::close(Outcome outcome) {
    publish(ControlLayout::kState, kClosed);
    closed_.store(true, std::memory_order_release);
    for (size_t i = 0; i < targets_.size(); ++i) {
        mark_failure(i);
        Target& target = targets_[i];
        for (size_t at = target.begun; at < target.items.size(); ++at) {
            end(i, target.items[at], outcome, 0);
        }
        target.begun = target.items.size();
    }
}

bool Proxy::idle() const {
    return closed_.load(std::memory_order_acquire) && idle_now();
}

} // namespace zerohop::device
