#include "accel/sim/sim_stream_core.hpp"

#include "accel/sim/sim_address_space.hpp"
#include "base/guarded.hpp"
#include "base/sync.hpp"

#include <algorithm>
#include <cstring>
#include <new>

namespace zerohop::accel::sim {

namespace {

using namespace std::chrono_literals;

constexpr Outcome kOutOfMemory{Status::no_memory, Reason::alloc_failed};

// The pieces in which a large segment is copied, so that a lost device or a bandwidth limit takes effect in between.
// The first size is large because memcpy bypasses the caches only above some tens of MiB.
constexpr size_t kPieceBytes = size_t{32} << 20;
constexpr size_t kPacedPieceBytes = size_t{1} << 20;

// A sleep ends about this late, so the rest of a delay is spun.
constexpr auto kSpinBelow = 50us;

// The intervals at which a wait32 checks its word if no stream rings the bell: CPUs and other processes write it
// silently.
constexpr auto kFirstNap = 50us;
constexpr auto kLongestNap = 1000us;

std::atomic_ref<uint32_t> word_at(uint64_t address) {
    return std::atomic_ref<uint32_t>(*static_cast<uint32_t*>(pointer(address)));
}

std::chrono::nanoseconds duration_of(uint64_t nbytes, uint64_t ns_per_copy, uint64_t bytes_per_us) {
    constexpr double longest = 1e18; // about 30 years: added to a time point it does not overflow
    double ns = static_cast<double>(ns_per_copy);
    if (bytes_per_us != 0) {
        ns += static_cast<double>(nbytes) * 1e3 / static_cast<double>(bytes_per_us);
    }
    return std::chrono::nanoseconds(static_cast<int64_t>(std::min(ns, longest)));
}

// Fires when either event does.
class FirstOf final : public Event {
public:
    FirstOf(std::shared_ptr<const Event> one, std::shared_ptr<const Event> other)
        : one_(std::move(one)), other_(std::move(other)) {}
    [[nodiscard]] EventState query() const override {
        const bool both_pend = one_->query() == EventState::pending && other_->query() == EventState::pending;
        return both_pend ? EventState::pending : EventState::done;
    }
    Outcome outcome() const override { return {}; }

private:
    const std::shared_ptr<const Event> one_;
    const std::shared_ptr<const Event> other_;
};

} // namespace

void Command::assign(std::span<const CopySegment> segments) {
    if (segments.size() > few_.size()) {
        many_ = std::make_unique_for_overwrite<CopySegment[]>(segments.size());
    }
    count_ = segments.size();
    std::copy(segments.begin(), segments.end(), this->segments().begin());
}

void Command::assign(const PageCopy& pages) {
    many_ = std::make_unique_for_overwrite<CopySegment[]>(pages.dst_pages.size());
    count_ = pages.dst_pages.size();
    for (size_t i = 0; i < count_; ++i) {
        many_[i] = pages.segment(i);
    }
}

std::shared_ptr<Gate> Command::hold(uint64_t native_stream, Outcome& why) const {
    auto& other = *reinterpret_cast<StreamCore*>(native_stream);
    if (other.capturing.load(std::memory_order_relaxed)) {
        why = {Status::unsupported, Reason::capturing};
        return nullptr;
    }
    auto gate = std::make_shared<SimGate>(other.device->shared);
    why = other.follow(std::make_shared<FirstOf>(shared_from_this(), gate->event));
    return why.ok() ? gate : nullptr;
}

StreamCore::StreamCore(std::shared_ptr<DeviceState> owner) : device(std::move(owner)) {
    const auto event = std::make_shared<Command>(Command::Kind::record);
    event->finish(kOutOfMemory);
    no_memory_ = event;
}

std::shared_ptr<Event> StreamCore::submit(std::shared_ptr<Command> command) {
    if (lost()) {
        command->finish(kDeviceLost);
        return command;
    }
    bool wake = false;
    {
        const std::lock_guard lock(mutex_);
        incoming_.push_back(command);
        wake = asleep_;
    }
    if (wake) {
        queued_.notify_one();
    }
    return command;
}

Outcome StreamCore::follow(std::shared_ptr<const Event> other) {
    try {
        auto command = std::make_shared<Command>(Command::Kind::follow);
        command->other = std::move(other);
        (void)submit(std::move(command)); // the event may be dropped, because the other one ends in any case
        return {};
    } catch (const std::bad_alloc&) {
        return kOutOfMemory;
    }
}

void StreamCore::stop() {
    {
        const std::lock_guard lock(mutex_);
        stopping_.store(true, std::memory_order_release);
    }
    queued_.notify_one();
    device->shared->bell.ring();
}

void StreamCore::work() {
    std::vector<std::shared_ptr<Command>> batch; // swapped with incoming_, so that both keep their capacity
    for (;;) {
        {
            std::unique_lock lock(mutex_);
            while (incoming_.empty()) {
                if (stopping()) {
                    return;
                }
                asleep_ = true;
                queued_.wait(lock);
                asleep_ = false;
            }
            batch.swap(incoming_);
        }
        for (auto& command : batch) {
            const Outcome outcome = run(*command);
            pins_.clear(); // before the event fires, because then the memory may be freed for good
            command->finish(outcome);
            command.reset();
        }
        batch.clear();
    }
}

Outcome StreamCore::run(Command& command) {
    if (lost() || broken_off_) {
        return kDeviceLost;
    }
    try {
        switch (command.kind) {
        case Command::Kind::copy:
            return run_copy(command);
        case Command::Kind::write32:
            return store(command.address, command.value);
        case Command::Kind::wait32:
            return run_wait(command);
        case Command::Kind::follow:
            return run_follow(command);
        case Command::Kind::record:
            break;
        }
        return {};
    } catch (const std::bad_alloc&) { // by pinning a list of very many allocations
        return kOutOfMemory;
    }
}

Outcome StreamCore::run_copy(Command& command) {
    const std::span<CopySegment> segments = command.segments();
    if (command.fault) {
        return {Status::device_error, Reason::copy_failed};
    }
    // All segments are checked before the first one moves, so that a wrong page list does not do half of its work.
    if (const Outcome resolved = device->shared->memory.resolve(segments, pins_); !resolved.ok()) {
        return resolved;
    }
    if (const Outcome moved = move_bytes(segments); !moved.ok()) {
        return moved;
    }
    if (any_freed(pins_)) {
        return {Status::access_denied, Reason::bounds};
    }
    for (const Word& word : command.then) {
        if (const Outcome stored = store(word.address, word.value); !stored.ok()) {
            return stored;
        }
    }
    return {};
}

Outcome StreamCore::move_bytes(std::span<const CopySegment> segments) {
    const uint64_t ns_per_copy = device->ns_per_copy.load(std::memory_order_relaxed);
    const uint64_t bytes_per_us = device->bytes_per_us.load(std::memory_order_relaxed);
    const bool paced = ns_per_copy != 0 || bytes_per_us != 0;
    const size_t piece = paced ? kPacedPieceBytes : kPieceBytes;
    const auto start = paced ? Clock::now() : Clock::time_point{};
    uint64_t reached = 0;
    for (const CopySegment& segment : segments) {
        for (size_t at = 0; at < segment.nbytes; at += piece) {
            const size_t nbytes = std::min(piece, segment.nbytes - at);
            reached += nbytes;
            if (paced && !pace(start + duration_of(reached, ns_per_copy, bytes_per_us), false)) {
                return kDeviceLost;
            }
            if (lost()) {
                return kDeviceLost;
            }
            if (copy_guarded(pointer(segment.dst + at), pointer(segment.src + at), nbytes) != Gone::nothing) {
                return kMemoryGone;
            }
        }
    }
    if (paced && !pace(start + duration_of(reached, ns_per_copy, bytes_per_us), true)) {
        return kDeviceLost;
    }
    return {};
}

// Sleeps until the deadline; unless it is the last one, a few microseconds too early are good enough. False: device
// lost.
bool StreamCore::pace(Clock::time_point deadline, bool last) {
    const auto ended = [this] { return lost() || stopping(); };
    while (!ended()) {
        const auto left = deadline - Clock::now();
        if (left > kSpinBelow) {
            device->shared->bell.sleep_until(deadline - kSpinBelow, ended);
        } else if (last && left > 0ns) {
            cpu_pause();
        } else {
            break;
        }
    }
    return !lost();
}

Outcome StreamCore::store(uint64_t address, uint32_t value) {
    SimState& shared = *device->shared;
    if (const Outcome resolved = shared.memory.resolve_word(address, pins_); !resolved.ok()) {
        return resolved;
    }
    word_at(address).store(value, std::memory_order_release);
    shared.bell.ring();
    return {};
}

// Waits until an event of another stream fires. That stream does not ring our bell if it is another driver's, or if the
// event is that of a copy. Destroying this stream ends the wait.
Outcome StreamCore::run_follow(const Command& command) {
    const auto ended = [&] { return command.other->query() != EventState::pending || lost() || stopping(); };
    for (auto nap = kFirstNap; !ended(); nap = std::min(nap * 2, kLongestNap)) {
        device->shared->bell.sleep_until(Clock::now() + nap, ended);
    }
    if (command.other->query() == EventState::pending) {
        broken_off_ = true;
    }
    return broken_off_ || lost() ? kDeviceLost : Outcome{};
}

Outcome StreamCore::run_wait(Command& command) {
    SimState& shared = *device->shared;
    uint64_t address = command.address;
    if (const Outcome resolved = shared.memory.resolve_word(address, pins_); !resolved.ok()) {
        return resolved;
    }
    const auto word = word_at(address);
    const auto arrived = [&] { return word.load(std::memory_order_acquire) == command.value; };
    const auto ended = [&] { return arrived() || lost() || stopping() || any_freed(pins_); };
    for (auto nap = kFirstNap; !ended(); nap = std::min(nap * 2, kLongestNap)) {
        shared.bell.sleep_until(Clock::now() + nap, ended);
    }
    if (lost()) {
        return kDeviceLost;
    }
    if (any_freed(pins_)) {
        return {Status::access_denied, Reason::bounds};
    }
    if (!arrived()) {
        broken_off_ = true;
        return kDeviceLost;
    }
    return {};
}

} // namespace zerohop::accel::sim
