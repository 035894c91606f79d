// Implements a stream of a sim device: a FIFO of commands and the thread that runs them.
#pragma once

#include "accel/sim/sim_state.hpp"

#include <memory>
#include <sys/types.h>
#include <thread>

namespace zerohop::accel::sim {

class StreamCore;

class SimStream final : public Stream {
public:
    // Starts the thread. Throws std::system_error if there can be no more threads, and std::bad_alloc.
    explicit SimStream(std::shared_ptr<DeviceState> device);
    // Runs what is queued, without emulated delays, and joins. A wait32 whose word has not come is broken off.
    ~SimStream() override;

    std::shared_ptr<Event> copy(std::span<const CopySegment> segments, std::span<const Word> then) override;
    std::shared_ptr<Event> copy_pages(const PageCopy& pages, std::span<const Word> then) override;
    std::shared_ptr<Event> write32(uint64_t address, uint32_t value) override;
    std::shared_ptr<Event> wait32(uint64_t address, uint32_t value) override;
    std::shared_ptr<Event> record() override;
    // Follows the stream whose native() is given.
    Outcome follow(uint64_t native_stream) override;
    [[nodiscard]] uint64_t native() const { return reinterpret_cast<uint64_t>(core_.get()); }

private:
    std::shared_ptr<StreamCore> core_; // the thread shares it; see the destructor
    std::unique_ptr<std::thread> thread_;
    pid_t owner_;
};

} // namespace zerohop::accel::sim
