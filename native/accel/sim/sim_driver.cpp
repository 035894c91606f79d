#include "accel/sim/sim.hpp"
#include "accel/sim/sim_stream.hpp"

#include <new>
#include <system_error>

namespace zerohop::accel {

namespace sim {
namespace {

constexpr Outcome kDeviceLost{Status::device_error, Reason::device_lost};

class SimDevice final : public Device {
public:
    explicit SimDevice(std::shared_ptr<DeviceState> state) : state_(std::move(state)) {}

    DeviceFacts facts() const override {
        return {
            .name = "sim:" + std::to_string(state_->index),
            .kind = "sim",
            .pci_address = "",
            .capabilities = {"async-copy", "batch-copy", "stream-write32", "stream-wait32"},
            .total_bytes = state_->shared->memory.total_bytes(),
        };
    }

    Outcome alloc(size_t nbytes, uint64_t& address) override {
        if (state_->lost.load(std::memory_order_acquire)) {
            return kDeviceLost;
        }
        if (DeviceState::take(state_->alloc_faults)) {
            return {Status::no_memory, Reason::alloc_failed};
        }
        return state_->shared->memory.alloc(state_->index, nbytes, address);
    }

    // Works on a lost device as well: what it frees is host memory, and somebody has to.
    Outcome free(uint64_t address) override { return state_->shared->memory.free(state_->index, address); }

    std::unique_ptr<Stream> stream() override {
        if (state_->lost.load(std::memory_order_acquire)) {
            return nullptr;
        }
        try {
            return std::make_unique<SimStream>(state_);
        } catch (const std::bad_alloc&) {
            return nullptr;
        } catch (const std::system_error&) { // no more threads
            return nullptr;
        }
    }

private:
    std::shared_ptr<DeviceState> state_;
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

    Outcome register_host(void* address, size_t nbytes) override {
        return shared_->memory.register_host(reinterpret_cast<uint64_t>(address), nbytes);
    }
    Outcome unregister_host(void* address) override {
        return shared_->memory.unregister_host(reinterpret_cast<uint64_t>(address));
    }

    void inject(int device, SimFault fault, int count) override {
        DeviceState* state = find(device);
        if (state == nullptr) {
            return;
        }
        switch (fault) {
        case SimFault::alloc:
            state->alloc_faults.store(count, std::memory_order_relaxed);
            return;
        case SimFault::copy:
            state->copy_faults.store(count, std::memory_order_relaxed);
            return;
        case SimFault::lost:
            state->lost.store(true, std::memory_order_release);
            shared_->bell.ring(); // ends waits and delays
            return;
        }
    }

    void delay(int device, uint64_t ns_per_copy, uint64_t bytes_per_us) override {
        if (DeviceState* state = find(device); state != nullptr) {
            state->ns_per_copy.store(ns_per_copy, std::memory_order_relaxed);
            state->bytes_per_us.store(bytes_per_us, std::memory_order_relaxed);
        }
    }

private:
    [[nodiscard]] DeviceState* find(int device) const {
        const auto index = static_cast<size_t>(device); // a negative one becomes too large
        return index < states_.size() ? states_[index].get() : nullptr;
    }

    std::shared_ptr<SimState> shared_;
    const bool peermem_;
    std::vector<std::shared_ptr<DeviceState>> states_;
    std::vector<std::shared_ptr<Device>> devices_;
};

} // namespace
} // namespace sim

std::shared_ptr<SimDriver> make_sim_driver(int devices, bool peermem) {
    return std::make_shared<sim::SimDriverImpl>(devices, peermem);
}

} // namespace zerohop::accel
