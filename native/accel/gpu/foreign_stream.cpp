#include "accel/gpu/foreign_stream.hpp"

#include <atomic>

namespace zerohop::accel::gpu {

namespace {

constexpr unsigned kGreaterOrEqual = 0;

void* handle_of(uint64_t native_stream) {
    return reinterpret_cast<void*>(native_stream);
}

// A word of the pool, whose value only grows: so whoever still waits for an older value of it goes on, too.
class PooledWord {
public:
    explicit PooledWord(std::shared_ptr<DeviceState> device)
        : device_(std::move(device)), word_(device_->words->take(device_->api)) {
        if (word_ == nullptr) {
            throw NativeError(Status::no_memory, Reason::alloc_failed, "no pinned memory for a stream to wait on");
        }
        value_ = word_->load(std::memory_order_relaxed) + 1;
    }
    ~PooledWord() {
        if (ours_) {
            device_->words->give(word_);
        }
    }
    PooledWord(const PooledWord&) = delete;
    PooledWord& operator=(const PooledWord&) = delete;

    [[nodiscard]] uint64_t address() const { return reinterpret_cast<uint64_t>(word_); }
    [[nodiscard]] uint32_t value() const { return value_; }
    [[nodiscard]] bool written() const { return word_->load(std::memory_order_acquire) == value_; }
    void write() { word_->store(value_, std::memory_order_release); }
    // A device may yet write it: nobody else may have it.
    void keep_out(bool out) { ours_ = !out; }

private:
    const std::shared_ptr<DeviceState> device_;
    std::atomic<uint32_t>* word_ = nullptr;
    uint32_t value_ = 0;
    bool ours_ = true;
};

class Marked final : public Event {
public:
    explicit Marked(std::shared_ptr<DeviceState> device) : word(std::move(device)) {}
    ~Marked() override { word.keep_out(!word.written()); }
    Marked(const Marked&) = delete;
    Marked& operator=(const Marked&) = delete;
    [[nodiscard]] EventState query() const override { return word.written() ? EventState::done : EventState::pending; }
    Outcome outcome() const override { return {}; }
    Outcome hold(uint64_t /*native_stream*/) const override { return {Status::unsupported, Reason::none}; }

    PooledWord word;
};

class WordGate final : public Gate {
public:
    explicit WordGate(std::shared_ptr<DeviceState> device) : word(std::move(device)) {}
    ~WordGate() override { WordGate::open(); }
    WordGate(const WordGate&) = delete;
    WordGate& operator=(const WordGate&) = delete;
    void open() override { word.write(); }

    PooledWord word;
};

} // namespace

void check_foreign(DeviceState& device, uint64_t native_stream) {
    const Current current(device);
    current.must();
    int capturing = 0;
    check(device.api, device.api.stream_capturing(handle_of(native_stream), &capturing), "the stream cannot be used");
    if (capturing != 0) {
        throw NativeError(Status::unsupported, Reason::capturing, "");
    }
}

std::shared_ptr<Event> mark_foreign(const std::shared_ptr<DeviceState>& device, uint64_t native_stream) {
    check_foreign(*device, native_stream);
    const Current current(*device);
    auto marked = std::make_shared<Marked>(device);
    check(device->api,
          device->api.stream_write32(handle_of(native_stream), marked->word.address(), marked->word.value(), 0),
          "the stream cannot be used");
    return marked;
}

std::shared_ptr<Gate> gate_foreign(const std::shared_ptr<DeviceState>& device, uint64_t native_stream) {
    check_foreign(*device, native_stream);
    const Current current(*device);
    auto gate = std::make_shared<WordGate>(device);
    check(
        device->api,
        device->api.stream_wait32(handle_of(native_stream), gate->word.address(), gate->word.value(), kGreaterOrEqual),
        "the stream cannot wait");
    return gate;
}

} // namespace zerohop::accel::gpu
