// What GPU memory is, and how it goes to another process.
#pragma once

#include "accel/gpu/gpu_device.hpp"

#include <memory>
#include <vector>

namespace zerohop::accel::gpu {

using Devices = std::vector<std::shared_ptr<DeviceState>>;

// All of them: there is at least one device. Any thread may, with or without a current context.
[[nodiscard]] Description describe(const Devices& devices, uint64_t address);
[[nodiscard]] uint64_t allocation_id(const Devices& devices, uint64_t address);
[[nodiscard]] std::vector<Registrable> registrable(DeviceState& device, uint64_t address, size_t nbytes);
// Throws NativeError.
[[nodiscard]] Exported export_memory(const Devices& devices, uint64_t address, size_t nbytes);
[[nodiscard]] std::shared_ptr<Imported> import_memory(const Devices& devices, const Exported& exported);

} // namespace zerohop::accel::gpu
