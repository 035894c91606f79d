// Implements the queue of one sim stream, and the thread that runs its commands.
#pragma once

#include "accel/sim/sim_state.hpp"

#include <array>

namespace zerohop::accel::sim {

// A command is its own event: queueing one costs a single allocation.
class Command final : public Event, public std::enable_shared_from_this<Command> {
public:
    enum class Kind : uint8_t { copy, write32, wait32, record, follow };

    explicit Command(Kind what) : kind(what) {}

    [[nodiscard]] EventState query() const override {
        const Status status = outcome().status;
        return status == Status::pending ? EventState::pending
               : status == Status::ok    ? EventState::done
                                         : EventState::failed;
    }
    Outcome outcome() const override { return ended_.load(std::memory_order_acquire); }
    [[nodiscard]] std::shared_ptr<Gate> hold(uint64_t native_stream, Outcome& why) const override;

    // Release order: a thread that sees the event fired also sees what the command wrote.
    void finish(Outcome outcome) {
        many_.reset(); // freed now, because the event may be kept long after the copy
        other.reset();
        ended_.store(outcome, std::memory_order_release);
    }

    void assign(std::span<const CopySegment> segments);
    void assign(const PageCopy& pages);
    [[nodiscard]] std::span<CopySegment> segments() { return {many_ ? many_.get() : few_.data(), count_}; }

    const Kind kind;
    bool fault = false; // fails with copy_failed
    uint32_t value = 0;
    uint64_t address = 0;
    std::vector<Word> then;             // copy: words written after it, if it has moved all bytes
    std::shared_ptr<const Event> other; // follow: an event of another stream

private:
    std::atomic<Outcome> ended_{Outcome{Status::pending, Reason::none}};
    size_t count_ = 0;
    std::array<CopySegment, 2> few_{};
    std::unique_ptr<CopySegment[]> many_;
};

class SimGate final : public Gate {
public:
    explicit SimGate(std::shared_ptr<SimState> shared) : shared_(std::move(shared)) {}
    ~SimGate() override { SimGate::open(); }
    void open() override {
        if (!opened_.exchange(true)) {
            event->finish({});
            shared_->bell.ring();
        }
    }
    const std::shared_ptr<Command> event = std::make_shared<Command>(Command::Kind::record);

private:
    std::shared_ptr<SimState> shared_;
    std::atomic<bool> opened_{false};
};

class StreamCore {
public:
    explicit StreamCore(std::shared_ptr<DeviceState> owner);

    // Queues the command, or fails it at once if the device is lost.
    std::shared_ptr<Event> submit(std::shared_ptr<Command> command);
    // Makes commands that are submitted from now on run after the event has fired.
    Outcome follow(std::shared_ptr<const Event> other);
    // Returns the event for callers for whose command there is no memory.
    [[nodiscard]] const std::shared_ptr<Event>& no_memory() const { return no_memory_; }

    void work(); // the loop of the stream's thread
    void stop(); // makes work() return once the queue is empty

    const std::shared_ptr<DeviceState> device;
    std::atomic<bool> capturing{false}; // as if under graph capture: nothing may follow the stream

private:
    Outcome run(Command& command);
    Outcome run_copy(Command& command);
    Outcome move_bytes(std::span<const CopySegment> segments);
    Outcome run_wait(Command& command);
    Outcome run_follow(const Command& command);
    Outcome store(uint64_t address, uint32_t value);
    [[nodiscard]] bool pace(Clock::time_point deadline, bool last);
    [[nodiscard]] bool lost() const { return device->lost.load(std::memory_order_acquire); }
    [[nodiscard]] bool stopping() const { return stopping_.load(std::memory_order_acquire); }

    std::shared_ptr<Event> no_memory_;
    std::mutex mutex_;
    std::condition_variable queued_;
    std::vector<std::shared_ptr<Command>> incoming_;
    bool asleep_ = false;
    std::atomic<bool> stopping_{false};

    // Used by the stream's thread only:
    Pins pins_;
    bool broken_off_ = false; // a wait32 was given up; commands behind it must not run
};

} // namespace zerohop::accel::sim
