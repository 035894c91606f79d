// Streams of the user's: what they have done is seen by a word that they write, and they wait by one that we write.
#pragma once

#include "accel/gpu/gpu_device.hpp"

#include <cstdint>
#include <memory>

namespace zerohop::accel::gpu {

// Whether it may be used: unsupported/capturing while it, or one that the default stream waits for, is captured.
[[nodiscard]] Outcome capturing(const GpuApi& api, void* stream);
// Throws NativeError: it is being captured, or is no stream.
void check_foreign(DeviceState& device, uint64_t native_stream);
[[nodiscard]] std::shared_ptr<Event> mark_foreign(const std::shared_ptr<DeviceState>& device, uint64_t native_stream);
[[nodiscard]] std::shared_ptr<Gate> gate_foreign(const std::shared_ptr<DeviceState>& device, uint64_t native_stream);

} // namespace zerohop::accel::gpu
