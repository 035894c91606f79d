#include "accel/sim/sim_stream.hpp"

#include "accel/sim/sim_stream_core.hpp"
#include "base/signals_blocked.hpp"
#include "base/thread_start.hpp"

#include <memory>
#include <mutex>
#include <new>
#include <pthread.h>
#include <string>
#include <unistd.h>

namespace zerohop::accel::sim {

namespace {

template <typename Fill>
std::shared_ptr<Event> queue(StreamCore& core, Command::Kind kind, Fill fill) {
    try {
        auto command = std::make_shared<Command>(kind);
        fill(*command);
        return core.submit(std::move(command));
    } catch (const std::bad_alloc&) {
        return core.no_memory();
    }
}

template <typename What>
std::shared_ptr<Event> queue_copy(StreamCore& core, const What& what, std::span<const Word> then) {
    return queue(core, Command::Kind::copy, [&](Command& command) {
        command.assign(what);
        command.then.assign(then.begin(), then.end());
        // Taken now, not when the copy runs, so that "the next copy" is the next one that the caller queues.
        command.fault = core.device->take(SimFault::copy);
    });
}

std::shared_ptr<Event> queue_word(StreamCore& core, Command::Kind kind, uint64_t address, uint32_t value) {
    return queue(core, kind, [&](Command& command) {
        command.address = address;
        command.value = value;
    });
}

} // namespace

SimStream::SimStream(std::shared_ptr<DeviceState> device)
    : core_(std::make_shared<StreamCore>(std::move(device))), owner_(::getpid()) {
    const std::string name = "zh-sim" + std::to_string(core_->device->index);
    const std::lock_guard lock(core_->device->streams_mutex);
    core_->device->streams.reserve(core_->device->streams.size() + 1); // nothing may fail once the thread runs
    const SignalsBlocked blocked;                                      // the new thread inherits the mask
    thread_ = std::make_unique<std::thread>([core = core_] {
        prepare_for_exceptions();
        core->work();
    });
    pthread_setname_np(thread_->native_handle(), name.c_str());
    core_->device->streams.push_back(core_.get());
}

SimStream::~SimStream() {
    if (::getpid() != owner_) {
        // The thread does not exist in a forked child: joining would hang, and so might its locks. The thread's
        // reference keeps the core, so the child leaks it instead of destroying a condition variable in use. The
        // std::thread is leaked as well, because the child's C library must not be asked to detach it.
        [[maybe_unused]] const std::thread* leaked = thread_.release();
        return;
    }
    {
        const std::lock_guard lock(core_->device->streams_mutex);
        std::erase(core_->device->streams, core_.get());
    }
    core_->stop();
    thread_->join();
}

std::shared_ptr<Event> SimStream::copy(std::span<const CopySegment> segments, std::span<const Word> then) {
    return queue_copy(*core_, segments, then);
}

std::shared_ptr<Event> SimStream::copy_pages(const PageCopy& pages, std::span<const Word> then) {
    return queue_copy(*core_, pages, then);
}

Outcome SimStream::follow(uint64_t native_stream) {
    auto* const other = reinterpret_cast<StreamCore*>(native_stream);
    if (other->capturing.load(std::memory_order_relaxed)) {
        return {Status::unsupported, Reason::capturing};
    }
    return core_->follow(queue(*other, Command::Kind::record, [](Command&) {}));
}

std::shared_ptr<Event> SimStream::write32(uint64_t address, uint32_t value) {
    return queue_word(*core_, Command::Kind::write32, address, value);
}

std::shared_ptr<Event> SimStream::wait32(uint64_t address, uint32_t value) {
    return queue_word(*core_, Command::Kind::wait32, address, value);
}

std::shared_ptr<Event> SimStream::record() {
    return queue(*core_, Command::Kind::record, [](Command&) {});
}

} // namespace zerohop::accel::sim
