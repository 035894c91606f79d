// Carries out the transfers that a process of this host asks for, in memory of its own that this process reaches: the
// server's half of file_asking.hpp.
#pragma once

#include "base/sync.hpp"
#include "engine/engine.hpp"
#include "engine/work.hpp"
#include "provider/request.hpp"
#include "storage/file_messages.hpp"
#include "storage/file_queue.hpp"
#include "storage/open_file.hpp"

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace zerohop::storage {

// The bytes that a server has moved for clients of its host.
struct ServedBytes {
    std::atomic<uint64_t> read{0};
    std::atomic<uint64_t> written{0};
};

class FileServing final : public Work {
public:
    // Serves one client, over a lane to it: `answers` is its queue of notifications. Counts into `bytes`. Throws
    // NativeError.
    FileServing(Engine& engine, std::shared_ptr<FileQueue> files, std::shared_ptr<Endpoint> lane, uint16_t answers,
                std::shared_ptr<ServedBytes> bytes);
    ~FileServing() override;
    FileServing(const FileServing&) = delete;
    FileServing& operator=(const FileServing&) = delete;

    // Returns the queue of notifications that the client asks by.
    [[nodiscard]] uint16_t queue() const { return queue_; }
    // Both give out a number, which is used again only after the client has forgotten it; none if there are too many.
    // Any thread.
    [[nodiscard]] std::optional<uint16_t> add_file(std::shared_ptr<OpenFile> file, bool reads, bool writes);
    // `start`: where the memory begins in what the access reaches.
    [[nodiscard]] std::optional<uint16_t> add_memory(std::shared_ptr<const RemoteAccess> access, uint64_t start,
                                                     uint64_t nbytes, uint8_t rights);

    bool poll() override;
    int fd() const override { return -1; }
    Backlog backlog() const override;
    void close(Outcome outcome) override;
    bool idle() const override;
    void abandon() override {}

private:
    // The transfers that are under way by their slots, and the answers that were not sent yet. The queue of files holds
    // it as long as transfers are under way. Needs no memory once it is made, so that every transfer has its answer.
    class Answers final : public Sink {
    public:
        Answers(Host& host, std::shared_ptr<ServedBytes> moved);
        // Returns false if the slot is taken, or is none.
        [[nodiscard]] bool begin(const Ask& ask, bool write);
        void ended(const Range& range, const Ended& ended) override;
        bool wanted() const override { return !closed.load(std::memory_order_acquire); }
        [[nodiscard]] size_t under_way() const { return under_way_.load(std::memory_order_acquire); }
        [[nodiscard]] uint64_t bytes_under_way() const { return bytes_.load(std::memory_order_acquire); }
        [[nodiscard]] bool empty() const { return waiting_.load(std::memory_order_acquire) == 0; }
        [[nodiscard]] size_t look(std::span<Answer> into) const; // the first ones, which stay
        void drop(size_t count);
        std::atomic<bool> closed{false};

    private:
        struct Slot {
            bool taken = false;
            bool write = false;
            uint64_t nbytes = 0;
        };
        Host& host_;
        const std::shared_ptr<ServedBytes> moved_;
        mutable SpinLock lock_;
        std::vector<Slot> slots_;
        std::vector<Answer> answers_;
        std::atomic<size_t> waiting_{0};
        std::atomic<size_t> under_way_{0};
        std::atomic<uint64_t> bytes_{0};
    };
    struct File {
        std::shared_ptr<OpenFile> file;
        bool reads = false;
        bool writes = false;
    };
    struct Memory {
        std::shared_ptr<const RemoteAccess> access;
        uint64_t start = 0;
        uint64_t nbytes = 0;
        uint8_t rights = 0;
    };
    // Transfers of one purpose, file and memory, which one call begins.
    struct Gathered {
        Purpose purpose;
        uint16_t file = 0;
        uint16_t memory = 0;
        std::vector<Range> ranges;
    };

    [[nodiscard]] bool has_room() const { return answers_->bytes_under_way() < kMostBytesUnderWay; }
    [[nodiscard]] bool take_asks();
    [[nodiscard]] bool take(const Notification& note);
    [[nodiscard]] bool add(const Purpose& purpose, const Ask& ask);
    void forget(const Purpose& purpose, const Ask& ask);
    void begin_gathered();
    [[nodiscard]] Outcome begin(Gathered& gathered);
    [[nodiscard]] bool send_answers();
    [[nodiscard]] bool send(std::span<const Answer> answers);
    [[nodiscard]] Outcome lane_state() const {
        const Outcome peer = lane_->peer().state();
        return peer.ok() ? lane_->state() : peer;
    }

    Engine& engine_;
    const std::shared_ptr<FileQueue> queue_of_files_;
    const std::shared_ptr<Endpoint> lane_;
    const uint16_t answers_queue_;
    const uint16_t queue_;
    const std::shared_ptr<NotificationQueue> asked_;
    const std::shared_ptr<Answers> answers_;
    mutable SpinLock tables_lock_;
    std::vector<File> files_;
    std::vector<Memory> memories_;
    Gathered gathered_;
    std::atomic<bool> has_parted_{false}; // the client knows that there is no answer more, or is gone
    std::atomic<bool> stuck_{false};      // the lane takes no answer before the client has taken some
};

} // namespace zerohop::storage
