#include "accel/gpu/copy_kernels.hpp"

#include "accel/idle_calls.hpp"

#include <algorithm>
#include <exception>
#include <map>
#include <mutex>
#include <numeric>
#include <string_view>
#include <tuple>

namespace zerohop::accel::gpu {

namespace {

constexpr unsigned kThreads = 256;
constexpr uint32_t kPieceBytes = 2048; // the part of a page for 32 threads at a time
constexpr unsigned kBlocksPerProcessor = 2;
constexpr uint64_t kPartBytes = 8192; // the part of a range for one block
constexpr uint64_t kMostByKernel = 256 * 1024;
constexpr uint64_t kEntryBytes = 16 * 1024; // the most that 32 threads copy for one entry of a list
// A long list is launched in parts: the device copies one while the processor writes the next, which has twice as many
// ranges. The first has one in so many of all.
constexpr size_t kFirstPart = 32;
constexpr size_t kWorthParts = 8192; // ranges

// The layout must match copy.cu.
struct Ranges {
    std::array<uint64_t, kMostRanges> dst;
    std::array<uint64_t, kMostRanges> src;
    std::array<uint64_t, kMostRanges> nbytes;
};

// Finds a kernel, and has the driver load it now: with its first launch the driver might wait for running kernels.
void find(const GpuApi& api, void* module, const std::string& name, void*& kernel) {
    check(api, api.module_function(&kernel, module, name.c_str()), name);
    if (api.function_load != nullptr) {
        check(api, api.function_load(kernel), name);
    }
}

std::shared_ptr<const CopyKernels> load(DeviceState& device, const std::string& image) {
    const CurrentContext current(device);
    current.require();
    auto kernels = std::make_shared<CopyKernels>();
    void* module = nullptr;
    check(device.api, device.api.module_load(&module, image.data()), "the copy kernels cannot be loaded");
    for (size_t i = 0; i < CopyKernels::kWidths.size(); ++i) {
        find(device.api, module, "zh_pages_" + std::to_string(CopyKernels::kWidths[i]), kernels->pages[i]);
    }
    find(device.api, module, "zh_ranges", kernels->ranges);
    find(device.api, module, "zh_list", kernels->list);
    int processors = 0;
    check(
        device.api,
        device.api.device_attribute(&processors, static_cast<int>(shim::GpuAttribute::multiprocessors), device.handle),
        "multiprocessors");
    kernels->blocks = kBlocksPerProcessor * static_cast<unsigned>(processors);
    return kernels;
}

} // namespace

std::shared_ptr<const CopyKernels> load_kernels(DeviceState& device, const std::string& image) {
    static std::mutex mutex;
    static auto* const loaded = new std::map<std::tuple<std::string_view, int, std::string>,
                                             std::shared_ptr<const CopyKernels>>; // modules are never unloaded
    const std::tuple key{std::string_view(device.api.kind), device.handle, image};
    {
        const std::lock_guard lock(mutex);
        if (const auto found = loaded->find(key); found != loaded->end()) {
            return found->second;
        }
    }
    std::shared_ptr<const CopyKernels> made;
    std::exception_ptr failure;
    IdleCalls& calls = IdleCalls::of_process();
    calls.wait(calls.later([&] {
        try {
            made = load(device, image);
        } catch (const NativeError&) {
            failure = std::current_exception();
        }
    }));
    if (failure) {
        std::rethrow_exception(failure);
    }
    const std::lock_guard lock(mutex);
    return loaded->emplace(key, std::move(made)).first->second;
}

GpuResult launch_pages(const DeviceState& device, const CopyKernels& kernels, const PageCopy& pages,
                       const PinnedList& numbers, void* stream) {
    // Picks the widest load to which the start and end of every page are aligned on both sides.
    const uint64_t alignment = pages.dst_base | pages.src_base | pages.page_bytes;
    size_t width = 0;
    while (alignment % CopyKernels::kWidths[width] != 0) {
        ++width;
    }
    uint64_t dst = pages.dst_base;
    uint64_t src = pages.src_base;
    uint64_t count = pages.dst_pages.size();
    auto src_pages = reinterpret_cast<uint64_t>(numbers.data<uint32_t>());
    uint64_t dst_pages = src_pages + count * sizeof(uint32_t);
    uint64_t page_bytes = pages.page_bytes;
    uint64_t pieces = (page_bytes + kPieceBytes - 1) / kPieceBytes;
    // More blocks than there are pieces for their warps would be idle.
    const uint64_t warps = kThreads / 32;
    const auto blocks =
        static_cast<unsigned>(std::clamp<uint64_t>((count * pieces + warps - 1) / warps, 1, kernels.blocks));
    // Each block first reads the numbers of its own pages, all at once.
    const uint64_t pages_of_one = (count * pieces / blocks + 1) / pieces + 2;
    constexpr uint64_t kMostShared = 40 * 1024;
    uint64_t batch = std::min<uint64_t>(pages_of_one, kMostShared / (2 * sizeof(uint32_t)));
    std::array<void*, 8> arguments{&dst, &src, &dst_pages, &src_pages, &count, &page_bytes, &pieces, &batch};
    return device.api.launch(kernels.pages[width], blocks, 1, 1, kThreads, 1, 1,
                             static_cast<unsigned>(batch * 2 * sizeof(uint32_t)), stream, arguments.data(), nullptr);
}

GpuResult launch_ranges(const DeviceState& device, const CopyKernels& kernels, std::span<const CopySegment> segments,
                        void* stream) {
    GpuResult result = 0;
    Ranges ranges; // filled only as far as the device reads it
    size_t count = 0;
    uint64_t longest = 0;
    const auto launch = [&] {
        const auto parts = static_cast<unsigned>((longest + kPartBytes - 1) / kPartBytes);
        void* argument = &ranges;
        result = device.api.launch(kernels.ranges, static_cast<unsigned>(count), parts, 1, kThreads, 1, 1, 0, stream,
                                   &argument, nullptr);
        count = 0;
        longest = 0;
    };
    for (const CopySegment& segment : segments) {
        if (segment.nbytes > kMostByKernel) {
            result = device.api.copy(segment.dst, segment.src, segment.nbytes, stream);
        } else {
            ranges.dst[count] = segment.dst;
            ranges.src[count] = segment.src;
            ranges.nbytes[count] = segment.nbytes;
            longest = std::max<uint64_t>(longest, segment.nbytes);
            if (++count == kMostRanges) {
                launch();
            }
        }
        if (result != 0) {
            return result;
        }
    }
    if (count != 0) {
        launch();
    }
    return result;
}

std::shared_ptr<PinnedList> room_for(const GpuApi& api, const RangeCopy& ranges) {
    const uint64_t count = ranges.lengths.size();
    uint64_t entries = count + ranges.nbytes / kEntryBytes;
    if (entries > 2 * count) { // long ranges, of which some need no entries
        entries =
            std::accumulate(ranges.lengths.begin(), ranges.lengths.end(), count, [](uint64_t sum, uint64_t nbytes) {
                return sum + (nbytes > kMostByKernel ? 0 : nbytes / kEntryBytes);
            });
    }
    return PinnedList::of(api, entries * sizeof(CopySegment));
}

GpuResult launch_list(const DeviceState& device, const CopyKernels& kernels, const RangeCopy& ranges,
                      const PinnedList& room, void* stream) {
    GpuResult result = 0;
    auto* const entries = room.data<CopySegment>();
    size_t launched = 0;
    size_t written = 0;
    const auto launch = [&] {
        const CopySegment* first = entries + launched;
        uint64_t count = written - launched;
        constexpr uint64_t kWarps = kThreads / 32;
        const auto blocks =
            static_cast<unsigned>(std::clamp<uint64_t>((count + kWarps - 1) / kWarps, 1, kernels.blocks));
        std::array<void*, 2> arguments{static_cast<void*>(&first), &count};
        launched = written;
        return device.api.launch(kernels.list, blocks, 1, 1, kThreads, 1, 1, 0, stream, arguments.data(), nullptr);
    };
    const size_t all = ranges.lengths.size();
    size_t part = all < kWorthParts ? all : all / kFirstPart;
    size_t part_end = part;
    for (size_t i = 0; i < all && result == 0; ++i) {
        const CopySegment segment = ranges.segment(i);
        if (segment.nbytes > kMostByKernel) {
            result = device.api.copy(segment.dst, segment.src, segment.nbytes, stream);
        } else {
            for (uint64_t at = 0; at < segment.nbytes; at += kEntryBytes) {
                entries[written++] = {segment.dst + at, segment.src + at, std::min(segment.nbytes - at, kEntryBytes)};
            }
        }
        if (i + 1 == part_end) {
            part *= 2;
            part_end += part;
            result = result == 0 && written != launched ? launch() : result;
        }
    }
    return result == 0 && written != launched ? launch() : result;
}

} // namespace zerohop::accel::gpu
