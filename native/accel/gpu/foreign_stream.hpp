// Synchronizes with the user's streams: such a stream writes a word to tell how far it is, and waits for a word that we
// write.
#pragma once

#include "accel/gpu/gpu_device.hpp"

#include <cstdint>
#include <memory>

namespace zerohop::accel::gpu {

// Tells whether the stream may be used: unsupported/capturing while it, or a stream that the default stream waits for,
// is captured.
[[nodiscard]] Outcome capturing(const GpuApi& api, void* stream);
// Throws NativeError if the stream is being captured, or is no stream.
void check_foreign(DeviceState& device, uint64_t native_stream);
[[nodiscard]] std::shared_ptr<Event> mark_foreign(const std::shared_ptr<DeviceState>& device, uint64_t native_stream);
[[nodiscard]] std::shared_ptr<Gate> gate_foreign(const std::shared_ptr<DeviceState>& device, uint64_t native_stream);

} // namespace zerohop::accel::gpu
