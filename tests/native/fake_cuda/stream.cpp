// Implements streams and events.
#include "base/sync.hpp"
#include "fake_cuda/state.hpp"
#include "shim/gpu_api.hpp"

#include <atomic>

using namespace fake;
using zerohop::Outcome;
using zerohop::accel::EventState;

namespace {

// Fires when a word has reached a value, or passed it.
class WordReached final : public Event {
public:
    WordReached(uint64_t address, uint32_t value, bool equal) : address_(address), value_(value), equal_(equal) {}
    [[nodiscard]] EventState query() const override {
        const uint32_t now = std::atomic_ref<uint32_t>(*reinterpret_cast<uint32_t*>(address_)).load();
        const bool there = equal_ ? now == value_ : static_cast<int32_t>(now - value_) >= 0;
        return there ? EventState::done : EventState::pending;
    }
    Outcome outcome() const override { return {}; }

private:
    const uint64_t address_;
    const uint32_t value_;
    const bool equal_;
};

struct RecordedEvent {
    int device = 0; // the device of its context
    std::shared_ptr<Event> event;
};

} // namespace

bool fake::find(uint64_t& address, size_t nbytes, const Stream& stream) {
    const std::lock_guard lock(state().mutex);
    if (const Reach virtual_memory = reach(address, nbytes, stream.device()); virtual_memory != Reach::elsewhere) {
        return virtual_memory == Reach::reached;
    }
    const auto found = state().find(address);
    if (found != state().ranges.end()) {
        return address + nbytes <= found->first + found->second.nbytes;
    }
    const auto after = state().ranges.lower_bound(address);
    return after == state().ranges.end() || after->first >= address + nbytes;
}

void fake::wait_for(const Event& event) {
    while (event.query() == EventState::pending) {
        zerohop::nap_shortly();
    }
}

fake::Entry::Entry() : lock(state().entry) {}

fake::IdleEntry::IdleEntry(int device) : lock(state().entry) {
    for (size_t index = 0; index < state().devices.size(); ++index) {
        if (device >= 0 && static_cast<size_t>(device) != index) {
            continue;
        }
        std::shared_ptr<Event> mark;
        try {
            mark = state().devices[index]->mark();
        } catch (const zerohop::NativeError&) { // a stream is being captured, and runs nothing
            continue;
        }
        wait_for(*mark);
    }
}

FAKE_CUDA cuStreamCreateWithPriority(void** stream, unsigned /*flags*/, int /*priority*/) {
    const Entry entry;
    Context* const context = current();
    if (context == nullptr) {
        return kInvalidContext;
    }
    auto made = std::make_unique<Stream>();
    if (full() || !make_stream(context->device, *made)) {
        return kOutOfMemory;
    }
    *stream = made.release();
    return kSuccess;
}

FAKE_CUDA cuStreamCreate(void** stream, unsigned flags) {
    return cuStreamCreateWithPriority(stream, flags, 0);
}

FAKE_CUDA cuStreamSynchronize(void* stream) {
    Stream* const found = stream_of(stream);
    if (found == nullptr) {
        return kInvalidContext;
    }
    wait_for(*found->stream->record());
    return kSuccess;
}

FAKE_CUDA cuStreamDestroy_v2(void* stream) {
    delete static_cast<Stream*>(stream);
    return kSuccess;
}

FAKE_CUDA cuStreamQuery(void* stream) {
    Stream* const found = stream_of(stream);
    if (found == nullptr) {
        return kInvalidContext;
    }
    return !found->last || found->last->query() != EventState::pending ? kSuccess : kNotReady;
}

FAKE_CUDA cuStreamGetCtx(void* stream, void** context) {
    Stream* const found = stream_of(stream);
    if (found == nullptr) {
        return kInvalidContext;
    }
    *context = state().contexts.at(static_cast<size_t>(found->device())).get();
    return kSuccess;
}

// Records nothing: the stream only reports that it is being captured.
FAKE_CUDA cuStreamBeginCapture_v2(void* stream, int /*mode*/) {
    Stream* const found = stream_of(stream);
    if (found == nullptr) {
        return kInvalidContext;
    }
    found->core().capturing.store(true);
    return kSuccess;
}

FAKE_CUDA cuStreamEndCapture(void* stream, void** graph) {
    Stream* const found = stream_of(stream);
    *graph = nullptr;
    return found != nullptr && found->core().capturing.exchange(false) ? kSuccess : kInvalidValue;
}

FAKE_CUDA cuStreamIsCapturing(void* stream, int* capturing) {
    Stream* const found = stream_of(stream);
    if (found == nullptr) {
        return kInvalidContext;
    }
    *capturing = found->core().capturing.load() ? 1 : 0;
    return kSuccess;
}

FAKE_CUDA cuMemcpyAsync(uint64_t dst, uint64_t src, size_t nbytes, void* stream) {
    const Entry entry;
    Stream* const found = stream_of(stream);
    if (found == nullptr) {
        return kInvalidContext;
    }
    if (!find(dst, nbytes, *found) || !find(src, nbytes, *found)) {
        return kInvalidValue;
    }
    const zerohop::accel::CopySegment segment{dst, src, nbytes};
    found->last = found->stream->copy({&segment, 1});
    return kSuccess;
}

FAKE_CUDA cuMemcpyBatchAsync(const uint64_t* dst, const uint64_t* src, const size_t* sizes, size_t count,
                             const zerohop::shim::GpuCopyAttributes* attributes, const size_t* starts, size_t kinds,
                             size_t* failed, void* stream) {
    if (stream == nullptr || count == 0 || kinds != 1 || starts[0] != 0 || attributes->order != 1) {
        return kInvalidValue;
    }
    for (size_t i = 0; i < count; ++i) {
        if (const int result = cuMemcpyAsync(dst[i], src[i], sizes[i], stream); result != kSuccess) {
            *failed = i;
            return result;
        }
    }
    return kSuccess;
}

FAKE_CUDA cuStreamWriteValue32_v2(void* stream, uint64_t address, uint32_t value, unsigned /*flags*/) {
    const Entry entry;
    Stream* const found = stream_of(stream);
    if (found == nullptr) {
        return kInvalidContext;
    }
    found->last = found->stream->write32(address, value);
    return kSuccess;
}

FAKE_CUDA cuStreamWaitValue32_v2(void* stream, uint64_t address, uint32_t value, unsigned flags) {
    const Entry entry;
    Stream* const found = stream_of(stream);
    if (found == nullptr) {
        return kInvalidContext;
    }
    return found->core().follow(std::make_shared<WordReached>(address, value, flags == 1)).ok() ? kSuccess
                                                                                                : kOutOfMemory;
}

FAKE_CUDA cuEventCreate(void** event, unsigned /*flags*/) {
    if (current() == nullptr) {
        return kInvalidContext;
    }
    *event = new RecordedEvent{current()->device, nullptr};
    return kSuccess;
}

FAKE_CUDA cuEventDestroy_v2(void* event) {
    delete static_cast<RecordedEvent*>(event);
    return kSuccess;
}

FAKE_CUDA cuEventRecord(void* event, void* stream) {
    const Entry entry;
    Stream* const found = stream_of(stream);
    if (found == nullptr) {
        return kInvalidContext;
    }
    auto* const recorded = static_cast<RecordedEvent*>(event);
    if (recorded->device != found->device()) { // as with the real driver, both must be of one context
        return kInvalidHandle;
    }
    recorded->event = found->stream->record();
    return kSuccess;
}

FAKE_CUDA cuEventQuery(void* event) {
    const auto& recorded = static_cast<RecordedEvent*>(event)->event;
    return !recorded || recorded->query() != EventState::pending ? kSuccess : kNotReady;
}

FAKE_CUDA cuCtxRecordEvent(void* context, void* event) {
    const Entry entry;
    const auto& device = state().devices.at(static_cast<size_t>(static_cast<Context*>(context)->device));
    try {
        static_cast<RecordedEvent*>(event)->event = device->mark();
    } catch (const zerohop::NativeError&) {
        return kCaptureUnsupported;
    }
    return kSuccess;
}

FAKE_CUDA cuCtxSynchronize() {
    if (current() == nullptr) {
        return kInvalidContext;
    }
    try {
        wait_for(*state().devices.at(static_cast<size_t>(current()->device))->mark());
    } catch (const zerohop::NativeError&) {
        return kCaptureUnsupported;
    }
    return kSuccess;
}

FAKE_CUDA cuStreamWaitEvent(void* stream, void* event, unsigned /*flags*/) {
    const Entry entry;
    Stream* const found = stream_of(stream);
    const auto& recorded = static_cast<RecordedEvent*>(event)->event;
    if (found == nullptr) {
        return kInvalidContext;
    }
    return !recorded || found->core().follow(recorded).ok() ? kSuccess : kOutOfMemory;
}
