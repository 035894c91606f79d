// Posts one entry of a Proxy to a lane, and records its end.
#include "device/proxy.hpp"

#include <cstring>

namespace zerohop::device {

namespace {

constexpr Outcome kRefused{Status::access_denied, Reason::none}; // by a kernel, before it posted
constexpr uint64_t kClockedBytes = 4096;
constexpr Outcome kLost{Status::peer_lost, Reason::none};

} // namespace

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
    // refuse() of a kernel writes the reason there, and lose() from another thread.
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
    if (entry.nbytes > kClockedBytes) { // those before may have taken long
        polled_ns_ = now_ns();
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

} // namespace zerohop::device
