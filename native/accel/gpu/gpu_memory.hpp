// Describes GPU memory, and shares it with other processes.
#pragma once

#include "accel/gpu/gpu_device.hpp"

#include <memory>
#include <vector>

namespace zerohop::accel::gpu {

using Devices = std::vector<std::shared_ptr<DeviceState>>;

// These functions take all devices, at least one. Any thread may call them, with or without a current context.
[[nodiscard]] Description describe(const Devices& devices, uint64_t address);
[[nodiscard]] uint64_t allocation_id(const Devices& devices, uint64_t address);
[[nodiscard]] std::vector<Registrable> registrable(DeviceState& device, uint64_t address, size_t nbytes);
// Throws NativeError.
[[nodiscard]] Exported export_memory(const Devices& devices, uint64_t address, size_t nbytes);
[[nodiscard]] std::shared_ptr<Imported> import_memory(const Devices& devices, const Exported& exported);

} // namespace zerohop::accel::gpu
