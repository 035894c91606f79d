// Implements a device of a GpuDriver: its primary context, retained on first use, and the meaning of its errors.
#pragma once

#include "accel/driver.hpp"
#include "shim/gpu_api.hpp"

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace zerohop::accel::gpu {

using shim::GpuApi;
using shim::GpuResult;

// Return the vendor's name of an error, and the Outcome for it.
[[nodiscard]] std::string name_of(const GpuApi& api, GpuResult result);
[[nodiscard]] Outcome outcome_of(GpuResult result);
// Throws NativeError for anything but success: "WHAT: VENDOR'S NAME".
void check(const GpuApi& api, GpuResult result, const std::string& what);

// Pools pinned words that streams write and processors read, for one process. They stay for its life, one cache line
// apart.
class WordPool {
public:
    // Returns null if the driver gives none. A context must be current.
    [[nodiscard]] std::atomic<uint32_t>* take(const GpuApi& api);
    void give(std::atomic<uint32_t>* word);

private:
    std::mutex mutex_;
    std::vector<std::atomic<uint32_t>*> free_;
};

struct CopyKernels;

struct DeviceState {
    DeviceState(const GpuApi& with, int number) : api(with), index(number) {}

    // Returns the primary context; null, and `outcome`, if there can be none. Once used it is retained until the
    // process ends, as frameworks do: all Contexts share its kernels and pinned memory.
    [[nodiscard]] void* context(Outcome& outcome);

    const GpuApi& api;
    const int index;
    int handle = 0; // the vendor's device handle
    DeviceFacts facts;
    std::shared_ptr<WordPool> words;
    bool needs_flush = false; // true if NICs' writes to the device must be flushed
    std::atomic<bool> lost{false};
    std::mutex kernels_mutex;
    std::shared_ptr<const CopyKernels> kernels; // null: no kernels were given
    std::atomic<bool> has_kernels{false};

private:
    std::mutex mutex_;
    void* context_ = nullptr;
};

// Makes a device's context current on this thread, for the lifetime of this object.
class CurrentContext {
public:
    explicit CurrentContext(DeviceState& device) : api_(device.api) {
        Outcome outcome;
        void* const context = device.context(outcome);
        outcome_ = outcome;
        if (context != nullptr) {
            outcome_ = outcome_of(api_.context_push(context));
            pushed_ = outcome_.ok();
        }
    }
    CurrentContext(const GpuApi& api, void* context) : api_(api), outcome_(outcome_of(api.context_push(context))) {
        pushed_ = outcome_.ok();
    }
    ~CurrentContext() {
        void* popped = nullptr;
        if (pushed_) {
            (void)api_.context_pop(&popped);
        }
    }
    CurrentContext(const CurrentContext&) = delete;
    CurrentContext& operator=(const CurrentContext&) = delete;

    // Throws NativeError if there is no context.
    void require() const {
        if (!outcome_.ok()) {
            throw NativeError(outcome_, "no context on the device");
        }
    }
    [[nodiscard]] bool ok() const { return pushed_; }
    [[nodiscard]] Outcome outcome() const { return outcome_; }

private:
    const GpuApi& api_;
    bool pushed_ = false;
    Outcome outcome_;
};

class GpuDevice final : public Device {
public:
    explicit GpuDevice(std::shared_ptr<DeviceState> state) : state_(std::move(state)) {}
    [[nodiscard]] DeviceFacts facts() const override { return state_->facts; }
    Outcome alloc(size_t nbytes, uint64_t& address) override;
    Outcome free(uint64_t address) override;
    using Device::stream;
    [[nodiscard]] std::unique_ptr<Stream> stream(Outcome& why) override;
    [[nodiscard]] std::shared_ptr<Event> mark() override;
    [[nodiscard]] bool needs_flush() const override { return state_->needs_flush; }
    void flush_inbound() override;
    [[nodiscard]] std::shared_ptr<const void> enter(Outcome& why) override;

private:
    std::shared_ptr<DeviceState> state_;
};

} // namespace zerohop::accel::gpu
