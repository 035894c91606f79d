// Page lists without kernels: a copy of its own for each page, by the copy engines.
// Batches are not verified on hardware.
#pragma once

#include "accel/gpu/gpu_device.hpp"

namespace zerohop::accel::gpu {

// Thousands at a call where the driver takes batches, which is five times as fast as a call for each. A context must be
// current. After an error, some of the pages may be under way.
[[nodiscard]] GpuResult copy_page_by_page(const GpuApi& api, const PageCopy& pages, void* stream);

} // namespace zerohop::accel::gpu
