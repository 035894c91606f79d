#include "accel/gpu/gpu_device.hpp"

#include "accel/gpu/gpu_stream.hpp"
#include "accel/idle_calls.hpp"
#include "base/clock.hpp"

#include <new>

namespace zerohop::accel::gpu {

namespace {

constexpr size_t kLine = 64;
constexpr size_t kSlab = 64 * 1024;
constexpr int kThisContext = 0;
constexpr int kToOwner = 100;

class DeviceMark final : public Event {
public:
    explicit DeviceMark(std::shared_ptr<DeviceState> device) : device_(std::move(device)) {}
    ~DeviceMark() override {
        if (event_ != nullptr) {
            (void)device_->api.event_destroy(event_); // the driver frees it once it has fired
        }
    }
    DeviceMark(const DeviceMark&) = delete;
    DeviceMark& operator=(const DeviceMark&) = delete;

    // The device's context must be current.
    void record(void* context) {
        const GpuApi& api = device_->api;
        if (api.context_record == nullptr) {
            check(api, api.context_synchronize(), "the device cannot be waited for");
            return;
        }
        check(api, api.event_create(&event_, shim::kGpuNoTiming), "no event on the device");
        check(api, api.context_record(context, event_), "the device cannot be waited for");
    }

    [[nodiscard]] EventState query() const override {
        const GpuResult result = event_ == nullptr ? 0 : device_->api.event_query(event_);
        if (result == shim::kGpuNotReady) {
            return EventState::pending;
        }
        return result == 0 ? EventState::done : EventState::failed;
    }
    Outcome outcome() const override {
        return event_ == nullptr ? Outcome{} : outcome_of(device_->api.event_query(event_));
    }

private:
    const std::shared_ptr<DeviceState> device_;
    void* event_ = nullptr; // null: all work had ended when the mark was made
};

} // namespace

std::string name_of(const GpuApi& api, GpuResult result) {
    const char* name = nullptr;
    return api.error_name(result, &name) == 0 && name != nullptr ? name : "error " + std::to_string(result);
}

Outcome outcome_of(GpuResult result) {
    if (result >= shim::kGpuFirstCapture && result <= shim::kGpuLastCapture) {
        return {Status::unsupported, Reason::capturing};
    }
    switch (result) {
    case 0:
        return {};
    case shim::kGpuOutOfMemory:
        return {Status::no_memory, Reason::alloc_failed};
    case shim::kGpuPeerAccessUnsupported:
        return {Status::unsupported, Reason::no_peer_link};
    case shim::kGpuHostRegistered:
        return {Status::unsupported, Reason::host_registered};
    case shim::kGpuInvalidImage:
    case shim::kGpuNoBinary:
    case shim::kGpuUnsupportedPtx:
    case shim::kGpuNotPermitted:
    case shim::kGpuNotSupported:
        return {Status::unsupported, Reason::none};
    case shim::kGpuInvalidValue:
    case shim::kGpuInvalidHandle:
        return {Status::device_error, Reason::copy_failed};
    default: // once a context is in error, or its device is gone, every call fails with an error of this kind
        return {Status::device_error, Reason::device_lost};
    }
}

void check(const GpuApi& api, GpuResult result, const std::string& what) {
    if (result != 0) {
        throw NativeError(outcome_of(result), what + ": " + name_of(api, result));
    }
}

std::atomic<uint32_t>* WordPool::take(const GpuApi& api) {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) {
        void* slab = nullptr;
        if (api.host_alloc(&slab, kSlab, shim::kGpuPortable) != 0) {
            return nullptr;
        }
        for (size_t at = 0; at < kSlab; at += kLine) { // never freed, because a device may write a word late
            free_.push_back(new (static_cast<std::byte*>(slab) + at) std::atomic<uint32_t>(0));
        }
    }
    std::atomic<uint32_t>* const word = free_.back();
    free_.pop_back();
    return word;
}

void WordPool::give(std::atomic<uint32_t>* word) {
    const std::lock_guard lock(mutex_);
    free_.push_back(word);
}

void* DeviceState::context(Outcome& outcome) {
    const std::lock_guard lock(mutex_);
    if (context_ == nullptr) {
        const GpuResult result = api.context_retain(&context_, handle);
        outcome = outcome_of(result);
        if (result != 0) {
            context_ = nullptr;
        }
    }
    return context_;
}

Outcome GpuDevice::alloc(size_t nbytes, uint64_t& address) {
    const CurrentContext current(*state_);
    if (!current.ok()) {
        return current.outcome();
    }
    uint64_t made = 0;
    GpuResult result = state_->api.memory_alloc(&made, nbytes);
    IdleCalls& calls = IdleCalls::of_process();
    if (result == shim::kGpuOutOfMemory && calls.done(calls.last(), kSecond)) { // queued frees may have released memory
        result = state_->api.memory_alloc(&made, nbytes);
    }
    const Outcome outcome = outcome_of(result);
    address = outcome.ok() ? made : address;
    return outcome;
}

Outcome GpuDevice::free(uint64_t address) {
    IdleCalls::of_process().later([state = state_, address] {
        const CurrentContext current(*state);
        if (current.ok()) { // a lost device has nothing left to free
            (void)state->api.memory_free(address);
        }
    });
    return {};
}

std::unique_ptr<Stream> GpuDevice::stream(Outcome& why) {
    if (state_->lost.load(std::memory_order_acquire)) {
        why = {Status::device_error, Reason::device_lost};
        return nullptr;
    }
    return GpuStream::make(state_, why);
}

std::shared_ptr<const void> GpuDevice::enter(Outcome& why) {
    auto current = std::make_shared<CurrentContext>(*state_);
    why = current->outcome();
    return current;
}

void GpuDevice::flush_inbound() {
    const CurrentContext current(*state_);
    if (current.ok()) { // a lost device reports that to the user of its memory
        (void)state_->api.flush_direct(kThisContext, kToOwner);
    }
}

std::shared_ptr<Event> GpuDevice::mark() {
    const CurrentContext current(*state_);
    current.require();
    Outcome outcome;
    auto mark = std::make_shared<DeviceMark>(state_);
    mark->record(state_->context(outcome));
    return mark;
}

} // namespace zerohop::accel::gpu
