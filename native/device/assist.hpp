// Carries out the requests of a send queue that kernels write, in place of a NIC that reads it by itself: looks at the
// doorbell, reads the requests, has a device do the work, and writes the completions.
#pragma once

#include "device/work_requests.hpp"
#include "zerohop/device/work_queue.hpp"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace zerohop::device::mlx5 {

// Does the work. One thread calls it.
class Executor {
public:
    struct Ended {
        uint64_t index = 0;
        uint8_t syndrome = 0; // of the NIC's completion; 0: it has ended well
    };
    virtual ~Executor() = default;
    // Begins a request; false if there is no room, and it is to be tried again.
    [[nodiscard]] virtual bool begin(const Request& request) = 0;
    // Adds the requests that have ended, in their order.
    virtual void collect(std::vector<Ended>& ended) = 0;
};

// Syndromes of the completions of requests.
constexpr uint8_t kBadRequest = 0x02; // "local queue pair operation error"
constexpr uint8_t kLocalProtection = 0x04;
constexpr uint8_t kFlushed = 0x05;
constexpr uint8_t kRemoteAccess = 0x13;

// Where the parts of the memory lie that kernels and this process share.
struct QueueLayout {
    static constexpr uint64_t kRecord = 0;
    static constexpr uint64_t kDoorbell = 64; // each word in a line of its own
    static constexpr uint64_t kCompletionRecord = 128;
    static constexpr uint64_t kState = 192;
    static constexpr uint64_t kBlocks = 256;
    QueueLayout(uint64_t slots, uint64_t completion_slots)
        : completions(kBlocks + slots * sizeof(Block)), nbytes(completions + completion_slots * sizeof(Completed)) {}
    uint64_t completions;
    uint64_t nbytes;
};

class Assist {
public:
    // `memory`: as QueueLayout says, which is initialized here. `completion_slots`: as many as slots, or 1. Both
    // outlive this.
    Assist(std::byte* memory, uint64_t slots, uint64_t completion_slots, uint32_t queue_pair, Executor& executor);

    // Looks once; tells whether anything has moved. One thread.
    bool poll();
    // Tells kernels that nothing more happens here: their waits end with this status.
    void close(Word status);
    // Requests that have not ended: those that the doorbell has told of; after a failure those that were begun.
    [[nodiscard]] uint64_t left() const { return (failed_ || refused_ ? begun_ : rung_) - ended_; }
    // Any thread. Tells whether a request or a doorbell was not what a NIC takes.
    [[nodiscard]] bool refused() const { return refused_; }

private:
    [[nodiscard]] bool look();
    [[nodiscard]] bool begin();
    void complete(const Executor::Ended& ended);
    [[nodiscard]] Word* word_at(uint64_t offset) const { return reinterpret_cast<Word*>(memory_ + offset); }

    std::byte* const memory_;
    const uint64_t slots_;
    const uint64_t completion_slots_;
    const uint32_t queue_pair_;
    const QueueLayout layout_;
    Executor& executor_;
    uint64_t rung_ = 0;                // index behind the last request that the doorbell told of
    uint64_t begun_ = 0;               // of these, requests that were begun
    uint64_t ended_ = 0;               // of these, requests that have ended
    bool failed_ = false;              // one has failed, and those behind it are flushed
    std::atomic<bool> refused_{false}; // that with the index begun_; it fails when those before it have ended
    std::vector<Executor::Ended> news_;
};

} // namespace zerohop::device::mlx5
