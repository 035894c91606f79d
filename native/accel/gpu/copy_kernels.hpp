// Launches the library's own copy kernels, src/zerohop/core/kernels/copy.cu, on one device.
#pragma once

#include "accel/gpu/gpu_device.hpp"
#include "accel/gpu/pinned_list.hpp"

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace zerohop::accel::gpu {

// The most ranges per launch. They are arguments of the kernel, so that the device reads nothing else before it copies.
inline constexpr size_t kMostRanges = 128;

struct CopyKernels {
    static constexpr std::array<uint32_t, 5> kWidths{16, 8, 4, 2, 1}; // bytes that one thread moves at once
    std::array<void*, kWidths.size()> pages{};
    void* ranges = nullptr;
    void* list = nullptr;
    unsigned blocks = 0;
};

// Loads the kernels of an image, which the caller has compiled. They are loaded once for the whole process, by
// IdleCalls; this call waits for that, which takes long while a stream waits. Throws NativeError.
[[nodiscard]] std::shared_ptr<const CopyKernels> load_kernels(DeviceState& device, const std::string& image);

// Copies the whole list with one launch; `numbers`: as pinned_pages() makes them. A context must be current.
[[nodiscard]] GpuResult launch_pages(const DeviceState& device, const CopyKernels& kernels, const PageCopy& pages,
                                     const PinnedList& numbers, void* stream);
// Copies with one launch for each kMostRanges segments, none of which is empty; large ones go to the copy engine. A
// context must be current.
[[nodiscard]] GpuResult launch_ranges(const DeviceState& device, const CopyKernels& kernels,
                                      std::span<const CopySegment> segments, void* stream);
// Returns pinned memory for launch_list(); null if there is none. A context must be current.
[[nodiscard]] std::shared_ptr<PinnedList> room_for(const GpuApi& api, const RangeCopy& ranges);
// Copies a list of any length with a few launches, of which the first run while the rest of the list is being written
// to `room`; large ranges go to the copy engine. A context must be current.
[[nodiscard]] GpuResult launch_list(const DeviceState& device, const CopyKernels& kernels, const RangeCopy& ranges,
                                    const PinnedList& room, void* stream);

} // namespace zerohop::accel::gpu
