// Streams, events and the copy kernels.
#include "engine/sync.hpp"
#include "fake_cuda/state.hpp"
#include "shim/gpu_api.hpp"

#include <array>
#include <atomic>
#include <cstring>
#include <string>
#include <vector>

using namespace fake;
using zerohop::Outcome;
using zerohop::accel::EventState;

namespace {

// Fires when a word has come to a value or past it.
class WordReached final : public Event {
public:
    WordReached(uint64_t address, uint32_t value, bool equal) : address_(address), value_(value), equal_(equal) {}
    [[nodiscard]] EventState query() const override {
        const uint32_t now = std::atomic_ref<uint32_t>(*reinterpret_cast<uint32_t*>(address_)).load();
        const bool there = equal_ ? now == value_ : static_cast<int32_t>(now - value_) >= 0;
        return there ? EventState::done : EventState::pending;
    }
    Outcome outcome() const override { return {}; }
    Outcome hold(uint64_t) const override { return {}; }

private:
    const uint64_t address_;
    const uint32_t value_;
    const bool equal_;
};

// Where the stream finds the range. As of the real one: it is either within one that the driver knows, or touches none.
bool find(uint64_t& address, size_t nbytes, const Stream& stream) {
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

void wait_for(const Event& event) {
    while (event.query() == EventState::pending) {
        zerohop::nap_shortly();
    }
}

bool on_device(uint64_t address) {
    const std::lock_guard lock(state().mutex);
    const auto found = state().find(address);
    return found != state().ranges.end() && found->second.device >= 0;
}

struct RecordedEvent {
    int device = 0; // of the context that it belongs to
    std::shared_ptr<Event> event;
};

struct Kernel {
    uint32_t width;
};

} // namespace

FAKE_CUDA cuStreamCreateWithPriority(void** stream, unsigned /*flags*/, int /*priority*/) {
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

// Nothing is recorded: the stream only says that it is being captured.
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
    Stream* const found = stream_of(stream);
    if (found == nullptr) {
        return kInvalidContext;
    }
    found->last = found->stream->write32(address, value);
    return kSuccess;
}

FAKE_CUDA cuStreamWaitValue32_v2(void* stream, uint64_t address, uint32_t value, unsigned flags) {
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
    Stream* const found = stream_of(stream);
    if (found == nullptr) {
        return kInvalidContext;
    }
    auto* const recorded = static_cast<RecordedEvent*>(event);
    if (recorded->device != found->device()) { // as of the real one: both are of one context
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
    wait_for(*state().devices.at(static_cast<size_t>(current()->device))->mark());
    return kSuccess;
}

FAKE_CUDA cuStreamWaitEvent(void* stream, void* event, unsigned /*flags*/) {
    Stream* const found = stream_of(stream);
    const auto& recorded = static_cast<RecordedEvent*>(event)->event;
    if (found == nullptr) {
        return kInvalidContext;
    }
    return !recorded || found->core().follow(recorded).ok() ? kSuccess : kOutOfMemory;
}

FAKE_CUDA cuModuleLoadData(void** module, const void* image) {
    static int loaded = 0;
    *module = &loaded;
    return image == nullptr ? kInvalidValue : kSuccess;
}

FAKE_CUDA cuModuleUnload(void* /*module*/) {
    return kSuccess;
}

FAKE_CUDA cuModuleGetFunction(void** function, void* /*module*/, const char* name) {
    static std::array<Kernel, 5> kernels{{{16}, {8}, {4}, {2}, {1}}};
    for (Kernel& kernel : kernels) {
        if (kernel.width == 16 && std::string(name) == "floor_pages") { // the benchmark's own, of bench/floors
            *function = &kernel;
            return kSuccess;
        }
        if (name == "zh_pages_" + std::to_string(kernel.width)) {
            *function = &kernel;
            return kSuccess;
        }
    }
    return kNotFound;
}

// (dst, src, dst_pages, src_pages, count, page_bytes, pieces, batch), as copy.cu has them.
FAKE_CUDA cuLaunchKernel(void* function, unsigned /*grid_x*/, unsigned, unsigned, unsigned /*block_x*/, unsigned,
                         unsigned, unsigned /*shared*/, void* stream, void** arguments, void** /*extra*/) {
    Stream* const found = stream_of(stream);
    if (found == nullptr) {
        return kInvalidContext;
    }
    const auto argument = [&](size_t i) {
        uint64_t value = 0;
        std::memcpy(&value, arguments[i], sizeof value);
        return value;
    };
    const uint64_t width = static_cast<Kernel*>(function)->width;
    if ((argument(0) | argument(1) | argument(5)) % width != 0) {
        return kInvalidValue; // a real one would read and write what is misaligned
    }
    const auto count = static_cast<size_t>(argument(4));
    const auto pages = [&](size_t i) {
        const auto* const list = reinterpret_cast<const uint32_t*>(argument(i));
        if (!on_device(argument(i))) {
            return std::vector<uint64_t>(list, list + count);
        }
        // What the processor cannot read is waited for: nothing that the library launches has its numbers there.
        std::vector<uint32_t> numbers(count);
        uint64_t list_here = argument(i);
        (void)find(list_here, count * sizeof(uint32_t), *found);
        const zerohop::accel::CopySegment all{reinterpret_cast<uint64_t>(numbers.data()), list_here,
                                              count * sizeof(uint32_t)};
        wait_for(*found->stream->copy({&all, 1}));
        return std::vector<uint64_t>(numbers.begin(), numbers.end());
    };
    const std::vector<uint64_t> dst = pages(2);
    const std::vector<uint64_t> src = pages(3);
    // Each page is looked up, for a real kernel faults where there is nothing; the base alone may lie anywhere.
    const auto base_of = [&](size_t i, const std::vector<uint64_t>& list) {
        uint64_t base = argument(i);
        for (const uint64_t page : list) {
            uint64_t here = argument(i) + page * argument(5);
            if (!find(here, argument(5), *found)) {
                return uint64_t{0};
            }
            base = here - page * argument(5); // all of it is in one range
        }
        return base;
    };
    const uint64_t dst_base = base_of(0, dst);
    const uint64_t src_base = base_of(1, src);
    if (dst_base == 0 || src_base == 0) {
        return kInvalidValue;
    }
    found->last = found->stream->copy_pages(
        {.dst_base = dst_base, .src_base = src_base, .dst_pages = dst, .src_pages = src, .page_bytes = argument(5)},
        {});
    return kSuccess;
}
