#include "device/proxy.hpp"

#include <algorithm>
#include <cstring>
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
constexpr Outcome kRefused{Status::access_denied, Reason::none}; // by a kernel itself
constexpr Outcome kLost{Status::peer_lost, Reason::none};

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
        const bool begun = target.items.empty() && begin(entry->peer, item);
        if (begun && item.state == Item::State::ended) {
            ++target.ended;
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
            tell_ended(i);
        }
    }
    if (empty) {
        looking_.found_all(ends);
    }
    return taken;
}

bool Proxy::advance(size_t number) {
    Target& target = targets_[number];
    if (target.items.empty()) {
        return false;
    }
    bool moved = collect(number);
    while (target.begun < std::min(target.items.size(), kUnderWay)) {
        Item& item = target.items[target.begun];
        if ((target.open != 0 && waits_for_earlier(item.entry.op)) || !begin(number, item)) {
            break;
        }
        ++target.begun;
        moved = true;
    }
    size_t ended = 0;
    const bool crowded = target.items.size() >= kWaiting;
    while (!target.items.empty() && target.items.front().state == Item::State::ended) {
        target.items.pop_front();
        --target.begun;
        ++ended;
    }
    if (ended != 0) {
        target.ended += ended;
        tell_ended(number);
        crowded_ -= crowded && target.items.size() < kWaiting ? 1 : 0;
        left_.fetch_sub(ended, std::memory_order_release);
    }
    return moved || ended != 0;
}

void Proxy::tell_ended(size_t number) {
    Target& target = targets_[number];
    if (target.told != target.ended) {
        // lose() marks the word, from another thread.
        __atomic_fetch_add(word_at(peer_at(number)), target.ended - target.told, __ATOMIC_RELEASE);
        target.told = target.ended;
    }
}

// Takes the ends of operations that are under way.
bool Proxy::collect(size_t number) {
    Target& target = targets_[number];
    bool found = false;
    for (size_t i = 0; target.open != 0 && i < target.begun; ++i) {
        Item& item = target.items[i];
        if (item.state != Item::State::posted || !item.op->done()) {
            continue;
        }
        const Outcome outcome{item.op->status(), item.op->reason()};
        // A lane that still holds an operation whose time is up may touch its memory. Kernels are told at once.
        if (item.op->holders() == 1) {
            --target.open;
            found = true;
            end(number, item, outcome, item.op->value());
        } else if (!outcome.ok() && target.failure.ok()) {
            fail(number, outcome);
        }
    }
    return found;
}

// Carries an entry out, or begins to; false if the lane is full.
bool Proxy::begin(size_t number, Item& item) {
    Target& target = targets_[number];
    const Decoded& entry = item.entry;
    // A kernel that refuses a call says so there; so does lose(), which may run just now.
    const Word state = __atomic_load_n(word_at(peer_at(number) + kWordBytes), __ATOMIC_ACQUIRE);
    if (target.failure.ok() && state != kOk) {
        fail(number, state == kPeerLost ? kLost : kRefused);
    }
    if (const Outcome outcome = target.failure.ok() ? check(entry, target.facts, locals_) : target.failure;
        !outcome.ok()) {
        end(number, item, outcome, 0);
        return true;
    }
    if (entry.op == Op::fence || entry.op == Op::compare) {
        end(number, item, {}, 0);
        return true;
    }
    if (gives_result(entry.op) && !place_is_free(item.number)) {
        return false;
    }
    const bool transfers = entry.op == Op::put || entry.op == Op::get;
    const std::shared_ptr<const Route>& route = target.routes[transfers ? entry.local : locals_.size()];
    if (!route) {
        end(number, item, {Status::closed, Reason::lane_closed}, 0); // the memory was revoked, or the lane has failed
        return true;
    }
    Request request(polled_ns_);
    request.route = route.get();
    request.remote_offset = target.facts.offset + entry.place;
    request.local_offset = transfers ? locals_[entry.local].offset + entry.source : number * kWordBytes;
    request.nbytes = transfers ? entry.nbytes : kWordBytes;
    request.operand = entry.value;
    request.compare = item.compare;
    request.deadline_ns = request.started_ns + timeout_ns_;
    switch (entry.op) {
    case Op::put:
        request.kind = Kind::write;
        break;
    case Op::get:
        request.kind = Kind::read;
        break;
    case Op::set:
        // Nothing else that is under way reads the word: a signal waits for all that was posted before.
        std::memcpy(scratch_->host() + request.local_offset, &entry.value, kWordBytes);
        request.kind = Kind::write;
        break;
    case Op::compare_swap:
        request.kind = Kind::compare_swap;
        break;
    default:
        request.kind = Kind::fetch_add;
        break;
    }
    const zerohop::Posted posted = engine_.try_post(*route->endpoint, request);
    switch (posted.what) {
    case zerohop::Posted::What::retry:
        return false;
    case zerohop::Posted::What::posted:
        item.op = posted.op;
        item.state = Item::State::posted;
        ++target.open;
        return true;
    default:
        end(number, item, posted.outcome, posted.value);
        return true;
    }
}

void Proxy::end(size_t number, Item& item, Outcome outcome, uint64_t value) {
    item.state = Item::State::ended;
    item.op.reset();
    if (!outcome.ok()) {
        fail(number, outcome);
    }
    if (gives_result(item.entry.op) && outcome.ok()) {
        const uint64_t at = result_at(item.number);
        published_ns_[item.number & (slots_ - 1)] = now_ns();
        __atomic_store_n(word_at(at), value, __ATOMIC_RELAXED);
        publish(at + kWordBytes, item.number + 1);
    }
}

// Tells whether the kernel that waited for the result of an earlier entry has read it. One whose time was up reads
// none.
bool Proxy::place_is_free(uint64_t number) const {
    return __atomic_load_n(word_at(result_at(number) + kWordBytes), __ATOMIC_ACQUIRE) == 0 ||
           now_ns() - published_ns_[number & (slots_ - 1)] > timeout_ns_;
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
        return kLost;
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
