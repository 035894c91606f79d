#include "accel/sim/sim.hpp"
#include "accel/sim/sim_stream.hpp"
#include "accel/sim/sim_stream_core.hpp"

#include <algorithm>
#include <new>
#include <system_error>
#include <unistd.h>

namespace zerohop::accel {

namespace sim {
namespace {

constexpr const char* kForm = "sim";

// Fires when all the events have fired.
class AllOf final : public Event {
public:
    explicit AllOf(std::vector<std::shared_ptr<Event>> events) : events_(std::move(events)) {}
    [[nodiscard]] EventState query() const override {
        EventState state = EventState::done;
        for (const auto& event : events_) {
            const EventState its = event->query();
            if (its == EventState::pending) {
                return its;
            }
            state = its == EventState::failed ? its : state;
        }
        return state;
    }
    Outcome outcome() const override {
        const auto failed = std::find_if(events_.begin(), events_.end(),
                                         [](const auto& event) { return event->query() == EventState::failed; });
        return failed == events_.end() ? Outcome{} : (*failed)->outcome();
    }

private:
    const std::vector<std::shared_ptr<Event>> events_;
};

class SimDevice final : public Device {
public:
    explicit SimDevice(std::shared_ptr<DeviceState> state) : state_(std::move(state)) {}

    DeviceFacts facts() const override {
        return {
            .name = "sim:" + std::to_string(state_->index),
            .kind = "sim",
            .identity = "sim:" + std::to_string(state_->index) + " of process " + std::to_string(::getpid()),
            .pci_address = "",
            .capabilities = {"async-copy", "batch-copy", "stream-write32", "stream-wait32"},
            .total_bytes = state_->shared->memory.total_bytes(),
        };
    }

    Outcome alloc(size_t nbytes, uint64_t& address) override {
        if (state_->lost.load(std::memory_order_acquire)) {
            return kDeviceLost;
        }
        if (state_->take(SimFault::alloc)) {
            return {Status::no_memory, Reason::alloc_failed};
        }
        return state_->shared->memory.alloc(state_->index, nbytes, address);
    }

    // Works on a lost device as well, because what it frees is host memory.
    Outcome free(uint64_t address) override { return state_->shared->memory.free(state_->index, address); }

    using Device::stream;
    std::unique_ptr<Stream> stream(Outcome& why) override {
        if (state_->lost.load(std::memory_order_acquire)) {
            why = kDeviceLost;
            return nullptr;
        }
        try {
            return std::make_unique<SimStream>(state_);
        } catch (const std::bad_alloc&) {
            why = {Status::no_memory, Reason::alloc_failed};
        } catch (const std::system_error&) { // no more threads
            why = {Status::no_memory, Reason::alloc_failed};
        }
        return nullptr;
    }

    std::shared_ptr<Event> mark() override {
        std::vector<std::shared_ptr<Event>> ends;
        const std::lock_guard lock(state_->streams_mutex);
        for (StreamCore* const stream : state_->streams) {
            if (stream->capturing.load(std::memory_order_relaxed)) {
                throw NativeError(Status::unsupported, Reason::capturing, "");
            }
            ends.push_back(stream->submit(std::make_shared<Command>(Command::Kind::record)));
        }
        return std::make_shared<AllOf>(std::move(ends));
    }

private:
    std::shared_ptr<DeviceState> state_;
};

class SimImported final : public Imported {
public:
    SimImported(std::shared_ptr<SimState> shared, std::vector<std::shared_ptr<DeviceState>> states, uint64_t base,
                uint64_t offset)
        : shared_(std::move(shared)), states_(std::move(states)), base_(base), offset_(offset) {}
    ~SimImported() override { (void)shared_->memory.free(kForeign, base_); }
    SimImported(const SimImported&) = delete;
    SimImported& operator=(const SimImported&) = delete;

    Outcome open(int device, uint64_t& address) override {
        DeviceState& state = *states_.at(static_cast<size_t>(device));
        if (state.lost.load(std::memory_order_acquire)) {
            return kDeviceLost;
        }
        if (state.take(SimFault::link)) {
            return {Status::unsupported, Reason::no_peer_link};
        }
        address = base_ + offset_;
        return {};
    }

private:
    std::shared_ptr<SimState> shared_;
    std::vector<std::shared_ptr<DeviceState>> states_;
    const uint64_t base_;
    const uint64_t offset_;
};

class SimDriverImpl final : public SimDriver {
public:
    SimDriverImpl(int devices, bool peermem) : shared_(std::make_shared<SimState>(devices)), peermem_(peermem) {
        for (int index = 0; index < devices; ++index) {
            states_.push_back(std::make_shared<DeviceState>(index, shared_));
            devices_.push_back(std::make_shared<SimDevice>(states_.back()));
        }
    }

    std::string kind() const override { return "sim"; }
    std::vector<std::shared_ptr<Device>> devices() override { return devices_; }
    Description describe(uint64_t address) const override { return shared_->memory.describe(address); }

    std::vector<Registrable> registrable(uint64_t address, size_t nbytes) const override {
        using Kind = Registrable::Kind;
        std::vector<Registrable> ways{{.kind = Kind::dma_buf, .why_not = "a simulated device exports none"}};
        const uint64_t alias = peermem_ ? shared_->memory.alias(address, nbytes) : 0;
        if (alias != 0) {
            ways.push_back({.kind = Kind::alias, .address = alias, .why_not = ""});
        } else {
            ways.push_back({.kind = Kind::plain, .address = address, .why_not = ""});
        }
        return ways;
    }

    Exported export_memory(uint64_t address, size_t nbytes) override {
        Exported exported;
        exported.form = kForm;
        exported.process = static_cast<uint64_t>(::getpid());
        exported.address = address;
        Exported::Piece piece;
        const Outcome exported_fd = shared_->memory.export_fd(address, nbytes, piece.fd, piece.nbytes, exported.offset);
        if (!exported_fd.ok()) {
            throw NativeError(exported_fd, "the memory cannot be exported");
        }
        exported.nbytes = nbytes;
        exported.device = devices_.at(static_cast<size_t>(describe(address).device))->facts().identity;
        exported.pieces.push_back(std::move(piece));
        return exported;
    }

    std::shared_ptr<Imported> import_memory(const Exported& exported) override {
        if (exported.form != kForm || exported.pieces.size() != 1 || exported.offset > exported.pieces[0].nbytes ||
            exported.nbytes > exported.pieces[0].nbytes - exported.offset) {
            throw NativeError(Status::protocol, Reason::malformed, "no memory of a simulated device");
        }
        uint64_t base = 0;
        const Outcome imported = shared_->memory.import_fd(exported.pieces[0].fd, exported.pieces[0].nbytes, base);
        if (!imported.ok()) {
            throw NativeError(imported, "the memory cannot be imported");
        }
        return std::make_shared<SimImported>(shared_, states_, base, exported.offset);
    }

    void check_stream(int /*device*/, uint64_t native_stream) override { (void)core_of(native_stream); }
    std::shared_ptr<Event> mark(int /*device*/, uint64_t native_stream) override {
        return core_of(native_stream).submit(std::make_shared<Command>(Command::Kind::record));
    }
    std::shared_ptr<Gate> gate(int /*device*/, uint64_t native_stream) override {
        StreamCore& stream = core_of(native_stream);
        auto gate = std::make_shared<SimGate>(shared_);
        const Outcome followed = stream.follow(gate->event);
        if (!followed.ok()) {
            throw NativeError(followed, "");
        }
        return gate;
    }

    Outcome register_host(void* address, size_t nbytes, HostPages /*kind*/) override {
        return shared_->memory.register_host(reinterpret_cast<uint64_t>(address), nbytes);
    }
    Outcome unregister_host(void* address, std::shared_ptr<void> /*pages*/) override {
        return shared_->memory.unregister_host(reinterpret_cast<uint64_t>(address));
    }

    void inject(int device, SimFault fault, int count) override {
        DeviceState* state = find(device);
        if (state != nullptr && fault == SimFault::lost) {
            state->lost.store(true, std::memory_order_release);
            shared_->bell.ring(); // ends waits and delays
        } else if (state != nullptr) {
            state->faults.at(static_cast<size_t>(fault)).store(count, std::memory_order_relaxed);
        }
    }

    void delay(int device, uint64_t ns_per_copy, uint64_t bytes_per_us) override {
        if (DeviceState* state = find(device); state != nullptr) {
            state->ns_per_copy.store(ns_per_copy, std::memory_order_relaxed);
            state->bytes_per_us.store(bytes_per_us, std::memory_order_relaxed);
        }
    }

private:
    // Returns the stream behind a number that a user gave; throws NativeError if it is none, or is being captured.
    [[nodiscard]] StreamCore& core_of(uint64_t native_stream) const {
        for (const auto& state : states_) {
            const std::lock_guard lock(state->streams_mutex);
            for (StreamCore* const stream : state->streams) {
                if (reinterpret_cast<uint64_t>(stream) != native_stream) {
                    continue;
                }
                if (stream->capturing.load(std::memory_order_relaxed)) {
                    throw NativeError(Status::unsupported, Reason::capturing, "");
                }
                return *stream;
            }
        }
        throw NativeError(Status::unsupported, Reason::none, "no stream of a simulated device has this number");
    }
    [[nodiscard]] DeviceState* find(int device) const {
        const auto index = static_cast<size_t>(device); // a negative number becomes too large
        return index < states_.size() ? states_[index].get() : nullptr;
    }

    std::shared_ptr<SimState> shared_;
    const bool peermem_;
    std::vector<std::shared_ptr<DeviceState>> states_;
    std::vector<std::shared_ptr<Device>> devices_;
};

} // namespace
} // namespace sim

std::unique_ptr<Stream> user_stream(Device& device, uint64_t& native) {
    std::unique_ptr<Stream> stream = device.stream();
    native = stream ? static_cast<sim::SimStream&>(*stream).native() : 0;
    return stream;
}

void set_capturing(uint64_t native, bool capturing) {
    reinterpret_cast<sim::StreamCore*>(native)->capturing.store(capturing);
}

std::shared_ptr<SimDriver> make_sim_driver(int devices, bool peermem) {
    return std::make_shared<sim::SimDriverImpl>(devices, peermem);
}

} // namespace zerohop::accel
