#include "accel/gpu/foreign_stream.hpp"

#include "accel/gpu/pooled_word.hpp"

namespace zerohop::accel::gpu {

namespace {

void* handle_of(uint64_t native_stream) {
    return reinterpret_cast<void*>(native_stream);
}

class Marked final : public Event {
public:
    explicit Marked(std::shared_ptr<DeviceState> device) : word(std::move(device)) {}
    [[nodiscard]] EventState query() const override {
        return word.written_by_device() ? EventState::done : EventState::pending;
    }
    Outcome outcome() const override { return {}; }

    PooledWord word;
};

} // namespace

Outcome capturing(const GpuApi& api, void* stream) {
    int captures = 0;
    const GpuResult result = api.stream_capturing(stream, &captures);
    return captures != 0 ? Outcome{Status::unsupported, Reason::capturing} : outcome_of(result);
}

void check_foreign(DeviceState& device, uint64_t native_stream) {
    const CurrentContext current(device);
    current.require();
    if (const Outcome outcome = capturing(device.api, handle_of(native_stream)); !outcome.ok()) {
        throw NativeError(outcome, outcome.reason == Reason::capturing ? "" : "the stream cannot be used");
    }
}

std::shared_ptr<Event> mark_foreign(const std::shared_ptr<DeviceState>& device, uint64_t native_stream) {
    check_foreign(*device, native_stream);
    const CurrentContext current(*device);
    auto marked = std::make_shared<Marked>(device);
    check(device->api,
          device->api.stream_write32(handle_of(native_stream), marked->word.address(), marked->word.value(), 0),
          "the stream cannot be used");
    marked->word.expect_device();
    return marked;
}

std::shared_ptr<Gate> gate_foreign(const std::shared_ptr<DeviceState>& device, uint64_t native_stream) {
    check_foreign(*device, native_stream);
    const CurrentContext current(*device);
    auto gate = std::make_shared<WordGate>(device);
    check(device->api,
          device->api.stream_wait32(handle_of(native_stream), gate->word.address(), gate->word.value(),
                                    shim::kGpuGreaterOrEqual),
          "the stream cannot wait");
    return gate;
}

} // namespace zerohop::accel::gpu
