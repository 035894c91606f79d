// Implements a stream of a GPU. The stream counts its commands, and writes the count to a pinned word: checking
// progress costs a load, and one such write may cover many commands.
#pragma once

#include "accel/gpu/gpu_device.hpp"
#include "base/sync.hpp"

#include <atomic>
#include <memory>
#include <span>

namespace zerohop::accel::gpu {

class StreamState : public std::enable_shared_from_this<StreamState> {
public:
    explicit StreamState(std::shared_ptr<DeviceState> on) : device(std::move(on)) {}
    ~StreamState();
    [[nodiscard]] Outcome open();

    // Queues the calls that `issue` makes as one command, then the words; `nbytes` is the size of what it moves.
    template <class Issue>
    [[nodiscard]] std::shared_ptr<Event> command(uint64_t nbytes, std::span<const Word> then, Issue&& issue,
                                                 std::shared_ptr<const void> keep = nullptr);
    // Compares signed distances, so that the numbers may wrap around.
    [[nodiscard]] bool reached(uint32_t number) const {
        return static_cast<int32_t>(word_->load(std::memory_order_acquire) - number) >= 0;
    }
    // Call for a command that is not reached yet: returns an error if the device has failed. If the stream has not been
    // told to write a number that covers the command, it is told now.
    [[nodiscard]] Outcome pending(uint32_t number);
    // Makes another stream wait for all that is queued here by now.
    [[nodiscard]] std::shared_ptr<Gate> hold(uint32_t number, uint64_t native_stream, Outcome& why);
    Outcome follow(uint64_t native_stream);
    [[nodiscard]] void* native() const { return stream_; }

    const std::shared_ptr<DeviceState> device;

private:
    // Require the lock and a current context.
    [[nodiscard]] GpuResult mark();
    [[nodiscard]] bool worth_marking(uint64_t nbytes);

    SpinLock lock_;
    void* stream_ = nullptr;
    void* event_ = nullptr;
    std::atomic<uint32_t>* word_ = nullptr;
    uint32_t queued_ = 0;             // the number of the last command
    std::atomic<uint32_t> marked_{0}; // the number up to which the stream has been told to write
    uint64_t unmarked_bytes_ = 0;
    std::atomic<uint32_t> checks_{0};
    std::atomic<uint64_t> health_checked_ns_{0}; // when the driver was last asked for the device's health
    std::atomic<bool> failed_{false};
};

class GpuStream final : public Stream {
public:
    [[nodiscard]] static std::unique_ptr<Stream> make(std::shared_ptr<DeviceState> device, Outcome& why);
    explicit GpuStream(std::shared_ptr<StreamState> state) : state_(std::move(state)) {}

    std::shared_ptr<Event> copy(std::span<const CopySegment> segments, std::span<const Word> then) override;
    [[nodiscard]] bool gathers() const override;
    std::shared_ptr<Event> copy_many(std::span<const CopySegment> segments, std::span<const Word> then) override;
    std::shared_ptr<Event> copy_ranges(const RangeCopy& ranges, std::span<const Word> then) override;
    std::shared_ptr<Event> copy_pages(const PageCopy& pages, std::span<const Word> then) override;
    std::shared_ptr<Event> write32(uint64_t address, uint32_t value) override;
    std::shared_ptr<Event> wait32(uint64_t address, uint32_t value) override;
    std::shared_ptr<Event> record() override;
    Outcome follow(uint64_t native_stream) override { return state_->follow(native_stream); }

private:
    std::shared_ptr<StreamState> state_;
};

} // namespace zerohop::accel::gpu
