// The library's own copy kernels, src/zerohop/core/kernels/copy.cu, on one device.
#pragma once

#include "accel/gpu/gpu_device.hpp"
#include "accel/gpu/page_indices.hpp"

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace zerohop::accel::gpu {

// So many ranges go with one launch, as its argument: the device reads nothing else before it copies.
inline constexpr size_t kMostRanges = 128;

struct CopyKernels {
    static constexpr std::array<uint32_t, 5> kWidths{16, 8, 4, 2, 1}; // how many bytes one thread moves at once
    std::array<void*, kWidths.size()> pages{};
    void* ranges = nullptr;
    unsigned blocks = 0;
};

// The kernels of an image, which the caller has compiled. Loaded once for all of the process, by IdleCalls, and waited
// for, which takes long where a stream waits. Throws NativeError.
[[nodiscard]] std::shared_ptr<const CopyKernels> load_kernels(DeviceState& device, const std::string& image);

// One launch for the whole list. A context must be current.
[[nodiscard]] GpuResult launch_pages(const DeviceState& device, const CopyKernels& kernels, const PageCopy& pages,
                                     const PageIndices& indices, void* stream);
// A launch for each kMostRanges, none of which is empty; those that are large go by the copy engine.
[[nodiscard]] GpuResult launch_ranges(const DeviceState& device, const CopyKernels& kernels,
                                      std::span<const CopySegment> segments, void* stream);

} // namespace zerohop::accel::gpu
