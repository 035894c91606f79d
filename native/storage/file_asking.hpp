// Has a server on this host carry out transfers between its files and memory of this side, with the contract of
// FileQueue: the client's half of file_serving.hpp.
#pragma once

#include "base/sync.hpp"
#include "engine/engine.hpp"
#include "engine/work.hpp"
#include "memory/place.hpp"
#include "storage/file_messages.hpp"
#include "storage/file_queue.hpp"
#include "storage/under_way.hpp"

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

namespace zerohop::storage {

class FileAsking;

// The number that the server has given to a file or to memory of this client. It means nothing any more once the last
// reference is dropped: the server is told.
class ServedNumber {
public:
    ServedNumber(const std::shared_ptr<FileAsking>& asking, Purpose::What what, uint16_t number);
    ~ServedNumber();
    ServedNumber(const ServedNumber&) = delete;
    ServedNumber& operator=(const ServedNumber&) = delete;
    [[nodiscard]] uint16_t value() const { return number_; }
    [[nodiscard]] bool is_of(const FileAsking& asking) const { return asking_.lock().get() == &asking; }

private:
    const std::weak_ptr<Engine> engine_;
    const std::weak_ptr<FileAsking> asking_;
    const Purpose::What what_;
    const uint16_t number_;
};

// The file and the memory of all transfers of one call.
struct ServedEnds {
    std::shared_ptr<const ServedNumber> file;
    std::shared_ptr<const ServedNumber> memory;
    bool write = false;
    Priority priority = Priority::normal;
    Place place{}; // keeps the memory until they have ended
};

class FileAsking final : public Work {
public:
    // Throws NativeError.
    FileAsking(Engine& engine, std::shared_ptr<Endpoint> lane);
    ~FileAsking() override;
    FileAsking(const FileAsking&) = delete;
    FileAsking& operator=(const FileAsking&) = delete;

    // Returns the queue of notifications that the server answers by.
    [[nodiscard]] uint16_t queue() const { return queue_; }
    // Names the server's queue. Nothing is sent before.
    void ask_by(uint16_t queue);
    // Tells whether the server has named one, and so may have been asked.
    [[nodiscard]] bool has_asked() const;

    // Begins transfers, which tell the sink when they end. Returns false, and begins none, if the server or the lane
    // takes no more, or a number is another server's. Any thread.
    [[nodiscard]] bool post(ServedEnds ends, std::span<const Range> ranges, std::shared_ptr<Sink> sink);
    // Cancels a sink's transfers that have this userdata, or all of them. Those that the server was asked for end with
    // its answers, when nothing uses their memory any more. Returns their number. Any thread.
    size_t cancel(const Sink& sink, std::optional<uint64_t> userdata);
    // Tells the server that a number means nothing any more. Takes no lock that is held while transfers end.
    void forget(Purpose::What what, uint16_t number);
    // False: the server takes no more, or is lost.
    [[nodiscard]] bool usable() const { return !is_closed_.load(std::memory_order_acquire) && lane_state().ok(); }
    [[nodiscard]] std::weak_ptr<Engine> engine() const { return engine_.weak_from_this(); }

    bool poll() override;
    int fd() const override { return -1; }
    Backlog backlog() const override;
    void close(Outcome outcome) override;
    bool idle() const override { return is_closed_.load(std::memory_order_acquire); }
    OpRef under_way_at(int peer) override;
    void abandon() override { is_closed_.store(true, std::memory_order_release); }

private:
    struct Batch {
        ServedEnds ends;
        std::shared_ptr<Sink> sink;
        std::vector<Range> ranges;
        size_t next = 0;    // the first that the server was not asked for
        uint64_t epoch = 0; // of under_way_
    };
    struct Slot {
        std::shared_ptr<Batch> batch; // null: free
        size_t range = 0;
        bool is_cancelled = false;
    };
    struct Forgotten {
        Purpose::What what;
        uint16_t number;
    };

    // Such a lane goes down together with its peer alone: what is under way ends as with every peer that is lost.
    [[nodiscard]] Outcome lane_state() const {
        const Outcome peer = lane_->peer().state();
        return peer.ok() ? lane_->state() : peer;
    }
    void send();
    [[nodiscard]] bool send_transfers();
    [[nodiscard]] bool send_first(std::deque<std::shared_ptr<Batch>>& waiting);
    [[nodiscard]] bool send_cancelled();
    [[nodiscard]] bool send_forgotten();
    [[nodiscard]] bool send(const Purpose& purpose, std::span<const Ask> asks);
    [[nodiscard]] bool take_answers();
    [[nodiscard]] bool take(const Notification& note);
    [[nodiscard]] bool take(const Answer& answer);
    void free_slot(uint32_t number);
    void end(const Batch& batch, size_t range, const Ended& ended);
    void end_rest(Batch& batch, Outcome outcome);
    void end_all(Outcome outcome);

    Engine& engine_;
    const std::shared_ptr<Endpoint> lane_;
    const uint16_t queue_;
    const std::shared_ptr<NotificationQueue> answered_;
    mutable LaneLock lock_;
    std::optional<uint16_t> asks_queue_;
    // With transfers that the server was not asked for.
    std::array<std::deque<std::shared_ptr<Batch>>, kPriorities> waiting_;
    uint64_t bytes_asked_ = 0; // of transfers in slots
    std::vector<Slot> slots_;
    std::vector<uint32_t> free_;
    std::vector<uint32_t> cancelled_; // slots whose cancelling the server was not told of
    UnderWay under_way_{engine_};
    std::atomic<bool> unsent_{false};
    std::atomic<bool> is_closed_{false};
    mutable SpinLock forgotten_lock_;
    std::deque<Forgotten> forgotten_;
    std::atomic<bool> forgets_{false};
};

} // namespace zerohop::storage
