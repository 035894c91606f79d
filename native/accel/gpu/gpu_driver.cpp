#include "accel/gpu/gpu_driver.hpp"

#include "accel/gpu/copy_kernels.hpp"
#include "accel/gpu/foreign_stream.hpp"
#include "accel/gpu/gpu_memory.hpp"
#include "accel/gpu/host_memory.hpp"
#include "base/once.hpp"

#include <array>
#include <mutex>

namespace zerohop::accel {

namespace gpu {
namespace {

using shim::GpuAttribute;

class Driver final : public GpuDriver {
public:
    explicit Driver(const GpuApi& api) : api_(api) {}

    std::string kind() const override { return api_.kind; }
    std::vector<std::shared_ptr<Device>> devices() override {
        open();
        std::vector<std::shared_ptr<Device>> found;
        found.reserve(states_.size());
        for (const auto& state : states_) {
            found.push_back(std::make_shared<GpuDevice>(state));
        }
        return found;
    }
    std::string why_none() override {
        open();
        return why_none_;
    }
    Description describe(uint64_t address) const override {
        return states_.empty() ? Description{} : gpu::describe(states_, address);
    }
    uint64_t allocation_id(uint64_t address) const override {
        return states_.empty() ? 0 : gpu::allocation_id(states_, address);
    }
    std::vector<Registrable> registrable(uint64_t address, size_t nbytes) const override {
        const Description found = describe(address);
        if (found.device < 0) {
            return {};
        }
        return gpu::registrable(*states_.at(static_cast<size_t>(found.device)), address, nbytes);
    }
    Exported export_memory(uint64_t address, size_t nbytes) override {
        return gpu::export_memory(states_, address, nbytes);
    }
    std::shared_ptr<Imported> import_memory(const Exported& exported) override {
        return gpu::import_memory(states_, exported);
    }
    void check_stream(int device, uint64_t native_stream) override {
        check_foreign(*states_.at(static_cast<size_t>(device)), native_stream);
    }
    std::shared_ptr<Event> mark(int device, uint64_t native_stream) override {
        return mark_foreign(states_.at(static_cast<size_t>(device)), native_stream);
    }
    std::shared_ptr<Gate> gate(int device, uint64_t native_stream) override {
        return gate_foreign(states_.at(static_cast<size_t>(device)), native_stream);
    }
    Outcome register_host(void* address, size_t nbytes, HostPages kind) override {
        return states_.empty() ? Outcome{} : HostMemory::of(api_).add(states_, address, nbytes, kind);
    }
    Outcome unregister_host(void* address, std::shared_ptr<void> pages) override {
        return states_.empty() ? Outcome{} : HostMemory::of(api_).remove(states_.front(), address, std::move(pages));
    }
    void load_kernels(int device, const std::string& image) override {
        DeviceState& state = *states_.at(static_cast<size_t>(device));
        std::shared_ptr<const CopyKernels> loaded = gpu::load_kernels(state, image);
        const std::lock_guard lock(state.kernels_mutex);
        state.kernels = std::move(loaded);
        state.has_kernels.store(true, std::memory_order_release);
    }
    int capability(int device) override {
        const int handle = states_.at(static_cast<size_t>(device))->handle;
        return attribute(handle, GpuAttribute::capability_major) * 10 +
               attribute(handle, GpuAttribute::capability_minor);
    }

private:
    void open() {
        opened_.run([this] {
            const GpuResult result = api_.init(0);
            int count = 0;
            if (result != 0 || api_.device_count(&count) != 0) {
                const bool none = result == shim::kGpuNoDevice || result == shim::kGpuInvalidDevice;
                why_none_ = none ? "the driver sees no device" : "the driver does not start: " + name_of(api_, result);
                return;
            }
            // Kept only once all are there: a call that finds no memory is made again from the beginning.
            std::vector<std::shared_ptr<DeviceState>> states;
            const auto words = std::make_shared<WordPool>();
            for (int index = 0; index < count; ++index) {
                auto state = std::make_shared<DeviceState>(api_, index);
                state->words = words;
                if (api_.device_get(&state->handle, index) == 0) {
                    state->facts = facts_of(*state);
                    state->needs_flush = needs_flush(state->handle);
                }
                states.push_back(std::move(state));
            }
            why_none_ = states.empty() ? "the driver shows no device to this process" : "";
            states_.swap(states);
        });
    }

    [[nodiscard]] int attribute(int handle, GpuAttribute which) const {
        int value = 0;
        return api_.device_attribute(&value, static_cast<int>(which), handle) == 0 ? value : 0;
    }

    // AMD's devices order inbound writes, as far as is known: the library has no flush.
    [[nodiscard]] bool needs_flush(int handle) const {
        constexpr int kOwner = 100;
        constexpr int kByHost = 1;
        return api_.flush_direct != nullptr && attribute(handle, GpuAttribute::direct_ordering) < kOwner &&
               (attribute(handle, GpuAttribute::direct_flush_options) & kByHost) != 0;
    }

    [[nodiscard]] DeviceFacts facts_of(const DeviceState& state) const {
        DeviceFacts facts;
        facts.name = std::string(api_.kind) + ":" + std::to_string(state.index);
        facts.kind = api_.kind;
        std::array<char, 32> bus{};
        if (api_.device_bus_id(bus.data(), bus.size(), state.handle) == 0) {
            facts.pci_address = bus.data();
            for (char& letter : facts.pci_address) { // lower case, as the kernel writes it
                letter = letter >= 'A' && letter <= 'F' ? static_cast<char>(letter - 'A' + 'a') : letter;
            }
        }
        shim::GpuUuid uuid{};
        if (api_.device_uuid(&uuid, state.handle) == 0) {
            facts.identity = "GPU-";
            for (size_t i = 0; i < sizeof uuid.bytes; ++i) {
                constexpr const char* kDigits = "0123456789abcdef";
                facts.identity += i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "";
                facts.identity += kDigits[uuid.bytes[i] >> 4];
                facts.identity += kDigits[uuid.bytes[i] & 15];
            }
        } else { // no other device of the machine has its place
            facts.identity = "GPU-" + facts.pci_address;
        }
        (void)api_.device_memory(&facts.total_bytes, state.handle);
        facts.capabilities = {"async-copy", "stream-write32", "stream-wait32"};
        if (attribute(state.handle, GpuAttribute::virtual_memory) != 0) {
            facts.capabilities.emplace_back("virtual-memory");
        }
        if (attribute(state.handle, GpuAttribute::dma_buf) != 0) {
            facts.capabilities.emplace_back("dma-buf");
        }
        return facts;
    }

    const GpuApi& api_;
    Once opened_;
    std::string why_none_;
    std::vector<std::shared_ptr<DeviceState>> states_;
};

} // namespace
} // namespace gpu

std::shared_ptr<GpuDriver> make_gpu_driver(const shim::GpuApi& api) {
    return std::make_shared<gpu::Driver>(api);
}

} // namespace zerohop::accel
