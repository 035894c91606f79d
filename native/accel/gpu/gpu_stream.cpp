#include "accel/gpu/gpu_stream.hpp"

#include "accel/gpu/copy_batch.hpp"
#include "accel/gpu/copy_kernels.hpp"
#include "accel/gpu/foreign_stream.hpp"
#include "accel/gpu/pooled_word.hpp"

#include <mutex>
#include <new>

namespace zerohop::accel::gpu {

namespace {

constexpr unsigned kNonBlocking = 1;
// Beyond the range: the driver takes its greatest. Our kernels are short, and another process waits for them: they must
// not queue behind kernels of the user that have not begun.
constexpr int kGreatestPriority = -1000;
// The stream writes its progress after this many commands or bytes, or when somebody asks: a write takes as long as a
// small copy, and a caller that posts many commands waits for none of them yet.
constexpr uint32_t kCommandsPerMark = 16;
constexpr uint64_t kBytesPerMark = 1 << 20;
// Fruitless checks of a word after which the driver is asked for the device's health, and the least time between two
// such questions.
constexpr uint32_t kChecksPerHealthCheck = 64;
constexpr uint64_t kHealthCheckNs = 50 * kMillisecond;

std::shared_ptr<const CopyKernels> kernels_of(DeviceState& device) {
    const std::lock_guard lock(device.kernels_mutex);
    return device.kernels;
}

class FailedEvent final : public Event {
public:
    explicit FailedEvent(Outcome outcome) : outcome_(outcome) {}
    [[nodiscard]] EventState query() const override { return EventState::failed; }
    Outcome outcome() const override { return outcome_; }
    std::shared_ptr<Gate> hold(uint64_t /*native_stream*/, Outcome& why) const override {
        why = {};
        return nullptr;
    }

private:
    const Outcome outcome_;
};

class CommandEvent final : public Event {
public:
    CommandEvent(std::shared_ptr<StreamState> stream, uint32_t number, Outcome issued, std::shared_ptr<const void> keep)
        : stream_(std::move(stream)), number_(number), issued_(issued), keep_(std::move(keep)) {}
    [[nodiscard]] EventState query() const override {
        if (!stream_->reached(number_)) {
            return stream_->pending(number_).ok() ? EventState::pending : EventState::failed;
        }
        return issued_.ok() ? EventState::done : EventState::failed;
    }
    Outcome outcome() const override { return stream_->reached(number_) ? issued_ : stream_->pending(number_); }
    std::shared_ptr<Gate> hold(uint64_t native_stream, Outcome& why) const override {
        return stream_->hold(number_, native_stream, why);
    }

private:
    const std::shared_ptr<StreamState> stream_;
    const uint32_t number_;
    const Outcome issued_;                   // an error: parts of the command may run all the same
    const std::shared_ptr<const void> keep_; // memory that the device still reads
};

} // namespace

Outcome StreamState::open() {
    const CurrentContext current(*device);
    if (!current.ok()) {
        return current.outcome();
    }
    const GpuApi& api = device->api;
    word_ = device->words->take(api);
    if (word_ == nullptr) {
        return {Status::no_memory, Reason::alloc_failed};
    }
    GpuResult result = api.event_create(&event_, shim::kGpuNoTiming);
    if (result == 0) {
        result = api.stream_create(&stream_, kNonBlocking, kGreatestPriority);
    }
    if (result != 0) {
        return outcome_of(result);
    }
    queued_ = word_->load(std::memory_order_relaxed); // the value that its last user left
    marked_.store(queued_, std::memory_order_relaxed);
    return {};
}

// The driver frees a stream once the device is done with what is queued there.
StreamState::~StreamState() {
    const CurrentContext current(*device);
    const GpuApi& api = device->api;
    if (event_ != nullptr && current.ok()) {
        (void)api.event_destroy(event_);
    }
    if (stream_ != nullptr && current.ok()) {
        (void)api.stream_destroy(stream_);
    }
    if (word_ != nullptr && reached(marked_.load(std::memory_order_relaxed))) {
        device->words->give(word_); // otherwise the device has yet to write it
    }
}

template <class Issue>
std::shared_ptr<Event> StreamState::command(uint64_t nbytes, std::span<const Word> then, Issue&& issue,
                                            std::shared_ptr<const void> keep) {
    const CurrentContext current(*device);
    if (!current.ok()) {
        return std::make_shared<FailedEvent>(current.outcome());
    }
    const std::lock_guard lock(lock_);
    const Outcome issued = outcome_of(issue());
    const uint32_t number = ++queued_;
    GpuResult result = 0;
    for (const Word& word : issued.ok() ? then : std::span<const Word>{}) {
        result = result == 0 ? device->api.stream_write32(stream_, word.address, word.value, 0) : result;
    }
    if (result == 0 && worth_marking(nbytes)) {
        result = mark();
    }
    if (result != 0) { // the command may be under way all the same: nothing more can be told about this stream
        failed_.store(true, std::memory_order_release);
    }
    return std::make_shared<CommandEvent>(shared_from_this(), number, issued, std::move(keep));
}

// Counts a command's bytes; true if the stream is to write its progress now.
bool StreamState::worth_marking(uint64_t nbytes) {
    unmarked_bytes_ += nbytes;
    return queued_ - marked_.load(std::memory_order_relaxed) >= kCommandsPerMark || unmarked_bytes_ >= kBytesPerMark;
}

GpuResult StreamState::mark() {
    const GpuResult result = device->api.stream_write32(stream_, reinterpret_cast<uint64_t>(word_), queued_, 0);
    if (result == 0) {
        marked_.store(queued_, std::memory_order_release);
        unmarked_bytes_ = 0;
    }
    return result;
}

Outcome StreamState::pending(uint32_t number) {
    if (failed_.load(std::memory_order_acquire)) {
        return {Status::device_error, Reason::device_lost};
    }
    const auto waits = [&] { return static_cast<int32_t>(number - marked_.load(std::memory_order_acquire)) > 0; };
    bool ask = (checks_.fetch_add(1, std::memory_order_relaxed) + 1) % kChecksPerHealthCheck == 0;
    if (ask) {
        const uint64_t now = now_ns();
        uint64_t asked = health_checked_ns_.load(std::memory_order_relaxed);
        ask = now > asked + kHealthCheckNs &&
              health_checked_ns_.compare_exchange_strong(asked, now, std::memory_order_relaxed);
    }
    if (!waits() && !ask) {
        return {};
    }
    const CurrentContext current(*device);
    GpuResult result = current.ok() ? 0 : 1;
    if (current.ok()) {
        const std::lock_guard lock(lock_);
        if (waits()) {
            result = mark();
        } else {
            result = device->api.stream_query(stream_);
        }
    }
    if (result == 0 || result == shim::kGpuNotReady) {
        return {};
    }
    device->lost.store(true, std::memory_order_release);
    failed_.store(true, std::memory_order_release);
    return {Status::device_error, Reason::device_lost};
}

// Each gate has a word of its own, which this stream writes, or the host: so the other stream can be released even if
// this one never gets there.
std::shared_ptr<Gate> StreamState::hold(uint32_t number, uint64_t native_stream, Outcome& why) {
    void* const other = reinterpret_cast<void*>(native_stream);
    const GpuApi& api = device->api;
    const CurrentContext current(*device);
    why = current.ok() ? capturing(api, other) : current.outcome();
    if (!why.ok() || reached(number)) {
        return nullptr;
    }
    auto gate = std::make_shared<WordGate>(device);
    const uint64_t address = gate->word.address();
    const uint32_t value = gate->word.value();
    {
        const std::lock_guard lock(lock_);
        why = failed_.load(std::memory_order_acquire) ? Outcome{Status::device_error, Reason::device_lost}
                                                      : outcome_of(api.stream_write32(stream_, address, value, 0));
    }
    if (why.ok()) {
        gate->word.expect_device();
        why = outcome_of(api.stream_wait32(other, address, value, shim::kGpuGreaterOrEqual));
    }
    return why.ok() ? gate : nullptr;
}

Outcome StreamState::follow(uint64_t native_stream) {
    void* const other = reinterpret_cast<void*>(native_stream);
    const GpuApi& api = device->api;
    const CurrentContext current(*device);
    if (!current.ok()) {
        return current.outcome();
    }
    if (const Outcome outcome = capturing(api, other); !outcome.ok()) {
        return outcome;
    }
    const std::lock_guard lock(lock_);
    GpuResult result = api.event_record(event_, other);
    if (result == 0) {
        return outcome_of(api.stream_wait_event(stream_, event_, 0));
    }
    // The stream is another device's: an event belongs to one context, which must be that of the stream it is recorded
    // in.
    void* context = nullptr;
    if (result = api.stream_context(other, &context); result != 0) {
        return outcome_of(result);
    }
    const CurrentContext theirs(api, context);
    void* event = nullptr;
    if (!theirs.ok()) {
        return theirs.outcome();
    }
    if (result = api.event_create(&event, shim::kGpuNoTiming); result != 0) {
        return outcome_of(result);
    }
    if (result = api.event_record(event, other); result == 0) {
        result = api.stream_wait_event(stream_, event, 0);
    }
    (void)api.event_destroy(event); // the driver frees it once nothing waits for it any more
    return outcome_of(result);
}

std::unique_ptr<Stream> GpuStream::make(std::shared_ptr<DeviceState> device, Outcome& why) {
    try {
        auto state = std::make_shared<StreamState>(std::move(device));
        why = state->open();
        return why.ok() ? std::make_unique<GpuStream>(std::move(state)) : nullptr;
    } catch (const std::bad_alloc&) {
        why = {Status::no_memory, Reason::alloc_failed};
        return nullptr;
    }
}

std::shared_ptr<Event> GpuStream::copy(std::span<const CopySegment> segments, std::span<const Word> then) {
    const GpuApi& api = state_->device->api;
    uint64_t nbytes = 0;
    for (const CopySegment& segment : segments) {
        nbytes += segment.nbytes;
    }
    return state_->command(nbytes, then, [&] {
        GpuResult result = 0;
        for (const CopySegment& segment : segments) {
            if (result == 0 && segment.nbytes != 0) {
                result = api.copy(segment.dst, segment.src, segment.nbytes, state_->native());
            }
        }
        return result;
    });
}

bool GpuStream::gathers() const {
    const DeviceState& device = *state_->device;
    return device.has_kernels.load(std::memory_order_acquire) || device.api.copy_batch != nullptr;
}

std::shared_ptr<Event> GpuStream::copy_many(std::span<const CopySegment> segments, std::span<const Word> then) {
    const std::shared_ptr<DeviceState>& device = state_->device;
    const std::shared_ptr<const CopyKernels> kernels = kernels_of(*device);
    uint64_t nbytes = 0;
    for (const CopySegment& segment : segments) {
        nbytes += segment.nbytes;
    }
    return state_->command(nbytes, then, [&] {
        return kernels ? launch_ranges(*device, *kernels, segments, state_->native())
                       : copy_one_by_one(device->api, segments, state_->native());
    });
}

std::shared_ptr<Event> GpuStream::copy_ranges(const RangeCopy& ranges, std::span<const Word> then) {
    const std::shared_ptr<DeviceState>& device = state_->device;
    const std::shared_ptr<const CopyKernels> kernels = kernels_of(*device);
    if (kernels && ranges.lengths.size() > kMostRanges) { // a shorter list is an argument of its launch
        const CurrentContext current(*device);
        if (std::shared_ptr<PinnedList> room = current.ok() ? room_for(device->api, ranges) : nullptr) {
            return state_->command(
                ranges.nbytes, then, [&] { return launch_list(*device, *kernels, ranges, *room, state_->native()); },
                room);
        }
    }
    return Stream::copy_ranges(ranges, then);
}

std::shared_ptr<Event> GpuStream::copy_pages(const PageCopy& pages, std::span<const Word> then) {
    const std::shared_ptr<DeviceState>& device = state_->device;
    const uint64_t nbytes = pages.dst_pages.size() * pages.page_bytes;
    if (const std::shared_ptr<const CopyKernels> kernels = kernels_of(*device)) {
        const CurrentContext current(*device);
        std::shared_ptr<PinnedList> numbers =
            current.ok() ? pinned_pages(device->api, pages.src_pages, pages.dst_pages) : nullptr;
        if (numbers) {
            return state_->command(
                nbytes, then, [&] { return launch_pages(*device, *kernels, pages, *numbers, state_->native()); },
                numbers);
        }
    }
    return state_->command(nbytes, then, [&] { return copy_page_by_page(device->api, pages, state_->native()); });
}

std::shared_ptr<Event> GpuStream::write32(uint64_t address, uint32_t value) {
    const Word word{address, value};
    return state_->command(0, {&word, 1}, [] { return 0; });
}

std::shared_ptr<Event> GpuStream::wait32(uint64_t address, uint32_t value) {
    return state_->command(0, {}, [&] {
        constexpr unsigned kEqual = 1;
        return state_->device->api.stream_wait32(state_->native(), address, value, kEqual);
    });
}

std::shared_ptr<Event> GpuStream::record() {
    return state_->command(0, {}, [] { return 0; });
}

} // namespace zerohop::accel::gpu
