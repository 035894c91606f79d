#include "accel/gpu/page_indices.hpp"

#include "accel/idle_calls.hpp"
#include "memory/page_list.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <exception>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

namespace zerohop::accel::gpu {

namespace {

constexpr size_t kLeast = 8192; // numbers in the smallest buffer
constexpr unsigned kPortable = 1;
constexpr unsigned kThreads = 256;
constexpr uint32_t kPieceBytes = 2048; // of a page, for 32 threads at a time
constexpr unsigned kBlocksPerProcessor = 2;
constexpr std::array<uint32_t, 5> kWidths{16, 8, 4, 2, 1};

// Buffers by their size; kept for the life of the process, because a device may read one late.
struct Pool {
    std::mutex mutex;
    std::multimap<size_t, uint32_t*> free;
};

Pool& pool() {
    static auto* const kept = new Pool; // used by destructors at exit
    return *kept;
}

std::shared_ptr<const PageKernels> load(DeviceState& device, const std::string& image) {
    const Current current(device);
    current.must();
    auto kernels = std::make_shared<PageKernels>();
    void* module = nullptr;
    check(device.api, device.api.module_load(&module, image.data()), "the copy kernels cannot be loaded");
    for (size_t i = 0; i < kWidths.size(); ++i) {
        const std::string name = "zh_pages_" + std::to_string(kWidths[i]);
        check(device.api, device.api.module_function(&kernels->functions[i], module, name.c_str()), name);
    }
    int processors = 0;
    check(
        device.api,
        device.api.device_attribute(&processors, static_cast<int>(shim::GpuAttribute::multiprocessors), device.handle),
        "multiprocessors");
    kernels->blocks = kBlocksPerProcessor * static_cast<unsigned>(processors);
    return kernels;
}

} // namespace

std::shared_ptr<PageIndices> PageIndices::of(const GpuApi& api, std::span<const uint64_t> src,
                                             std::span<const uint64_t> dst) {
    const size_t capacity = std::bit_ceil(std::max(kLeast, 2 * src.size()));
    void* data = nullptr;
    {
        const std::lock_guard lock(pool().mutex);
        if (const auto found = pool().free.find(capacity); found != pool().free.end()) {
            data = found->second;
            pool().free.erase(found);
        }
    }
    if (data == nullptr && api.host_alloc(&data, capacity * sizeof(uint32_t), kPortable) != 0) {
        return nullptr;
    }
    auto indices = std::make_shared<PageIndices>(static_cast<uint32_t*>(data), capacity, src.size());
    const bool fit = narrow_numbers(src, indices->data_) && narrow_numbers(dst, indices->data_ + src.size());
    return fit ? indices : nullptr;
}

PageIndices::~PageIndices() {
    const std::lock_guard lock(pool().mutex);
    pool().free.emplace(capacity_, data_);
}

std::shared_ptr<const PageKernels> load_kernels(DeviceState& device, const std::string& image) {
    static std::mutex mutex;
    static auto* const loaded = new std::map<std::tuple<std::string_view, int, std::string>,
                                             std::shared_ptr<const PageKernels>>; // modules are never unloaded
    const std::tuple key{std::string_view(device.api.kind), device.handle, image};
    {
        const std::lock_guard lock(mutex);
        if (const auto found = loaded->find(key); found != loaded->end()) {
            return found->second;
        }
    }
    std::shared_ptr<const PageKernels> made;
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

GpuResult launch_pages(const DeviceState& device, const PageKernels& kernels, const PageCopy& pages,
                       const PageIndices& indices, void* stream) {
    // The widest load that every page begins and ends at on both sides.
    const uint64_t alignment = pages.dst_base | pages.src_base | pages.page_bytes;
    size_t width = 0;
    while (alignment % kWidths[width] != 0) {
        ++width;
    }
    uint64_t dst = pages.dst_base;
    uint64_t src = pages.src_base;
    uint64_t dst_pages = indices.dst();
    uint64_t src_pages = indices.src();
    uint64_t count = pages.dst_pages.size();
    uint64_t page_bytes = pages.page_bytes;
    uint64_t pieces = (page_bytes + kPieceBytes - 1) / kPieceBytes;
    // No more blocks than there are pieces for their warps.
    const uint64_t warps = kThreads / 32;
    const auto blocks =
        static_cast<unsigned>(std::clamp<uint64_t>((count * pieces + warps - 1) / warps, 1, kernels.blocks));
    // Each block reads the numbers of its own pages first, all at once.
    const uint64_t pages_of_one = (count * pieces / blocks + 1) / pieces + 2;
    constexpr uint64_t kMostShared = 40 * 1024;
    uint64_t batch = std::min<uint64_t>(pages_of_one, kMostShared / (2 * sizeof(uint32_t)));
    std::array<void*, 8> arguments{&dst, &src, &dst_pages, &src_pages, &count, &page_bytes, &pieces, &batch};
    return device.api.launch(kernels.functions[width], blocks, 1, 1, kThreads, 1, 1,
                             static_cast<unsigned>(batch * 2 * sizeof(uint32_t)), stream, arguments.data(), nullptr);
}

} // namespace zerohop::accel::gpu
