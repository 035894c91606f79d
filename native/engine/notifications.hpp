// Notifications that have arrived and nobody has taken yet. Bounded by the credits that each lane has for a queue, and
// for all lanes that have ever been by kMost.
#pragma once

#include "base/sync.hpp"
#include "operation/completion_queue.hpp"
#include "provider/notify.hpp"

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

namespace zerohop {

// Decides between the thread that waits for a notification and one that cancels the wait: what has been cancelled takes
// none.
class WaitOutcome {
public:
    // Both return false if the other came first.
    [[nodiscard]] bool take() { return become(State::taken); }
    [[nodiscard]] bool cancel() { return become(State::cancelled); }
    [[nodiscard]] bool cancelled() const { return state_.load(std::memory_order_acquire) == State::cancelled; }

private:
    enum class State : uint8_t { waiting, taken, cancelled };
    bool become(State state) {
        State expected = State::waiting;
        return state_.compare_exchange_strong(expected, state, std::memory_order_acq_rel) || expected == state;
    }
    std::atomic<State> state_{State::waiting};
};

class NotificationQueue {
public:
    static constexpr size_t kMost = 1 << 20;
    static constexpr int kAnybody = -1;
    static constexpr int kNobody = -2;
    // `from`: id of the only peer whose notifications it takes, or one of these.
    explicit NotificationQueue(int from) : from_(from) {}
    void take_from(int peer) { from_.store(peer, std::memory_order_release); }
    [[nodiscard]] bool takes_from(int peer) const {
        const int from = from_.load(std::memory_order_acquire);
        return from == kAnybody || from == peer;
    }

    // Returns false if the queue is full.
    [[nodiscard]] bool push(Notification note) {
        bool fits = false;
        tell_waiting([&] {
            fits = notes_.size() < kMost;
            if (fits) {
                notes_.push_back(std::move(note));
                size_.store(notes_.size(), std::memory_order_seq_cst); // before the look at who waits
            }
        });
        return fits;
    }

    [[nodiscard]] std::optional<Notification> pop() {
        if (empty()) {
            return std::nullopt;
        }
        const std::lock_guard lock(lock_);
        if (notes_.empty()) {
            return std::nullopt;
        }
        Notification note = std::move(notes_.front());
        notes_.pop_front();
        size_.store(notes_.size(), std::memory_order_release);
        return note;
    }

    // Puts the one back that was popped last; it is the next one again.
    void put_back(Notification note) {
        tell_waiting([&] {
            notes_.push_front(std::move(note));
            size_.store(notes_.size(), std::memory_order_seq_cst);
        });
    }

    // Drops everything of one peer. Of a queue without credits only: they are not given back.
    void forget(int peer) {
        const std::lock_guard lock(lock_);
        std::erase_if(notes_, [&](const Notification& note) { return note.peer == peer; });
        size_.store(notes_.size(), std::memory_order_release);
    }

    [[nodiscard]] bool ended() const { return ended_.load(std::memory_order_acquire); }
    [[nodiscard]] bool empty() const { return size_.load(std::memory_order_acquire) == 0; }

    // Asks for a token when the next notification arrives; false (and no token) if one is here, or none will come.
    [[nodiscard]] bool arm(std::shared_ptr<Listener> queue, uint64_t token) {
        const std::lock_guard lock(lock_);
        if (!notes_.empty() || ended()) {
            return false;
        }
        std::erase_if(waiting_, [](const auto& each) { return each.first->closed(); });
        waiting_.emplace_back(std::move(queue), token);
        return true;
    }

    // Tells those who wait that no notification will come any more.
    void end() {
        tell_waiting([&] { ended_.store(true, std::memory_order_release); });
    }

    // Takes the endpoints that the queued notifications have come from; the caller gives their credits back.
    [[nodiscard]] std::vector<std::weak_ptr<Endpoint>> take_endpoints() {
        const std::lock_guard lock(lock_);
        std::vector<std::weak_ptr<Endpoint>> endpoints;
        endpoints.reserve(notes_.size());
        for (Notification& note : notes_) {
            endpoints.push_back(std::exchange(note.endpoint, {}));
        }
        return endpoints;
    }

    // Undoes arm().
    void disarm(const Listener& queue, uint64_t token) {
        const std::lock_guard lock(lock_);
        std::erase_if(waiting_, [&](const auto& each) { return each.first.get() == &queue && each.second == token; });
    }

private:
    template <class F> void tell_waiting(F&& change) {
        std::vector<std::pair<std::shared_ptr<Listener>, uint64_t>> waiting;
        {
            const std::lock_guard lock(lock_);
            change();
            waiting.swap(waiting_);
        }
        for (const auto& [listener, token] : waiting) {
            listener->push(token);
        }
    }

    SpinLock lock_;
    std::deque<Notification> notes_;
    std::atomic<size_t> size_{0};
    std::atomic<bool> ended_{false};
    std::atomic<int> from_;
    std::vector<std::pair<std::shared_ptr<Listener>, uint64_t>> waiting_;
};

// The queues of a Context: its own, whose number is 0, and those of the faces that share it.
class NotificationQueues {
public:
    [[nodiscard]] NotificationQueue& own() { return *own_; }
    // Returns null if there is none of that number.
    [[nodiscard]] std::shared_ptr<NotificationQueue> of(uint16_t number) {
        if (number == 0) {
            return own_;
        }
        const std::lock_guard lock(lock_);
        const auto found = others_.find(number);
        return found == others_.end() ? nullptr : found->second;
    }
    // Makes a queue and returns its number, last in use long ago. It takes nothing until take_from(). Throws
    // NativeError if all numbers are in use.
    [[nodiscard]] uint16_t open();
    // Takes a queue away; the caller ends it. Null if there is none of that number.
    [[nodiscard]] std::shared_ptr<NotificationQueue> close(uint16_t number);
    void end_all();

private:
    const std::shared_ptr<NotificationQueue> own_ = std::make_shared<NotificationQueue>(NotificationQueue::kAnybody);
    SpinLock lock_;
    std::unordered_map<uint16_t, std::shared_ptr<NotificationQueue>> others_;
    uint16_t last_ = 0;
};

} // namespace zerohop
