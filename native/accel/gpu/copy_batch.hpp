// Makes many copies without kernels, by the copy engines: thousands in one call if the driver takes batches, which is
// five times as fast as a call for each.
#pragma once

#include "accel/gpu/gpu_device.hpp"

#include <span>

namespace zerohop::accel::gpu {

// Copies each page, or each segment, by a copy of its own. A context must be current. After an error, some of the
// copies may be under way.
[[nodiscard]] GpuResult copy_page_by_page(const GpuApi& api, const PageCopy& pages, void* stream);
[[nodiscard]] GpuResult copy_one_by_one(const GpuApi& api, std::span<const CopySegment> segments, void* stream);

} // namespace zerohop::accel::gpu
