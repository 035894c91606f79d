// Streams of the user's and operations of ours: which waits for which.
#include "accel/idle_calls.hpp"
#include "engine/engine.hpp"

#include <atomic>
#include <mutex>
#include <utility>

namespace zerohop {

namespace {

// Opens a gate when it is told of an end; ends an operation that stands for nothing but that, if there is one.
class GateOpener final : public Listener {
public:
    explicit GateOpener(std::shared_ptr<accel::Gate> gate, OpRef waits = {})
        : gate_(std::move(gate)), waits_(std::move(waits)) {}
    void push(uint64_t /*token*/) override {
        opened_.store(true, std::memory_order_relaxed);
        gate_->open();
        if (waits_) {
            waits_->finish({});
        }
    }
    [[nodiscard]] bool closed() const override { return opened_.load(std::memory_order_relaxed); }

private:
    const std::shared_ptr<accel::Gate> gate_;
    const OpRef waits_;
    std::atomic<bool> opened_{false};
};

} // namespace

OpRef Engine::stream_reached(int device, uint64_t native_stream, uint64_t deadline_ns) {
    const auto& [driver, index] = accelerators().place(device);
    StreamMark mark{driver->mark(index, native_stream), operations().create(deadline_ns)};
    OpRef op = mark.op;
    {
        const std::lock_guard lock(marks_lock_);
        marks_.push_back(std::move(mark));
        marks_pending_.store(marks_.size(), std::memory_order_release);
    }
    poller_.limit_sleep(now_ns(), kDeviceInterval);
    return op;
}

// Poller. Ends the operations of streams that have got there; drops those that ended otherwise.
bool Engine::poll_marks() {
    std::vector<StreamMark> ended;
    {
        const std::lock_guard lock(marks_lock_);
        ended.reserve(marks_.size()); // throws before anything is moved
        std::erase_if(marks_, [&](StreamMark& mark) {
            const bool over = mark.op->done() || mark.event->query() != accel::EventState::pending;
            if (over) {
                ended.push_back(std::move(mark));
            }
            return over;
        });
        marks_pending_.store(marks_.size(), std::memory_order_release);
    }
    for (const StreamMark& mark : ended) {
        mark.op->finish(mark.event->query() == accel::EventState::failed ? mark.event->outcome() : Outcome{});
    }
    return !ended.empty();
}

void Engine::hold_stream(const OpRef& op, Endpoint* lane, int device, uint64_t native_stream) {
    const auto& [driver, index] = accelerators().place(device);
    driver->check_stream(index, native_stream);
    if (!op || op->done()) {
        return;
    }
    const accel::IdleCalls::Hold none_under_way; // which would be waited for under the locks of the lane
    if (lane != nullptr) {
        if (const std::optional<Endpoint::Held> held = lane->hold(op, *driver, native_stream)) {
            if (!held->why.ok() && !op->done()) {
                throw NativeError(held->why, "");
            }
            // The device opens it when all goes well: nobody needs to wait for that here.
            if (held->gate && !op->arm(std::make_shared<GateOpener>(held->gate), 0, Operation::Awaited::no)) {
                held->gate->open();
            }
            return;
        }
    }
    const std::shared_ptr<accel::Gate> gate = driver->gate(index, native_stream);
    if (op->arm(std::make_shared<GateOpener>(gate), 0)) {
        note_awaited();
    } else {
        gate->open();
    }
}

void Engine::hold_stream_for_notification(const OpRef& op, uint16_t queue, int device, uint64_t native_stream) {
    const std::shared_ptr<NotificationQueue> from = notifications_.of(queue);
    const auto& [driver, index] = accelerators().place(device);
    const auto opener = std::make_shared<GateOpener>(driver->gate(index, native_stream), op);
    if (!from || !op->arm(opener, 0, Operation::Awaited::no) || !from->arm(opener, 0)) {
        opener->push(0);
    }
}

} // namespace zerohop
