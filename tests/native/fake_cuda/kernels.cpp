// Implements the copy kernels, found by their names.
#include "fake_cuda/state.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <map>
#include <string>
#include <vector>

using namespace fake;

namespace {

bool on_device(uint64_t address) {
    const std::lock_guard lock(state().mutex);
    const auto found = state().find(address);
    return found != state().ranges.end() && found->second.device >= 0;
}

enum class Form : uint8_t { pages, ranges, list, floor_ranges };

struct Kernel {
    Form form;
    uint32_t width;      // width of a thread's loads, for a list of pages
    unsigned loaded = 0; // the number of its module; a driver loads a kernel with the first launch, unless told to
};
std::atomic<unsigned> modules{0};

// The layout must match copy.cu.
constexpr size_t kMostRanges = 128;
struct Ranges {
    uint64_t dst[kMostRanges];
    uint64_t src[kMostRanges];
    uint64_t nbytes[kMostRanges];
};

int copy_ranges(Stream& stream, const Ranges& ranges, size_t count, size_t parts) {
    constexpr size_t kPart = 8192;
    std::vector<zerohop::accel::CopySegment> segments;
    for (size_t i = 0; i < count; ++i) {
        uint64_t dst = ranges.dst[i];
        uint64_t src = ranges.src[i];
        // Bytes without a block of their own are not copied, as by a real kernel.
        const uint64_t nbytes = std::min<uint64_t>(ranges.nbytes[i], parts * kPart);
        if (count > kMostRanges || !find(dst, ranges.nbytes[i], stream) || !find(src, ranges.nbytes[i], stream)) {
            return kInvalidValue;
        }
        segments.push_back({dst, src, nbytes});
    }
    stream.last = stream.stream->copy(segments);
    return kSuccess;
}

int copy_list(Stream& stream, const zerohop::accel::CopySegment* entries, uint64_t count) {
    constexpr uint64_t kMost = 16 * 1024; // more has no part in a real kernel's 32-bit lengths and balance
    std::vector<zerohop::accel::CopySegment> segments(entries, entries + count);
    for (zerohop::accel::CopySegment& segment : segments) {
        if (segment.nbytes > kMost || !find(segment.dst, segment.nbytes, stream) ||
            !find(segment.src, segment.nbytes, stream)) {
            return kInvalidValue;
        }
    }
    stream.last = stream.stream->copy(segments);
    return kSuccess;
}

// Reads the numbers of a list: if they are on a device, waits for a copy of them, which the library itself never needs.
template <class T> std::vector<T> numbers_at(uint64_t address, size_t count, Stream& stream) {
    const auto* const list = reinterpret_cast<const T*>(address);
    if (!on_device(address)) {
        return std::vector<T>(list, list + count);
    }
    std::vector<T> numbers(count);
    (void)find(address, count * sizeof(T), stream);
    const zerohop::accel::CopySegment all{reinterpret_cast<uint64_t>(numbers.data()), address, count * sizeof(T)};
    wait_for(*stream.stream->copy({&all, 1}));
    return numbers;
}

// The kernel of bench/floors: (dst, src, dst_offsets, src_offsets, lengths, count).
template <class Argument> int copy_floor_ranges(Stream& stream, Argument&& argument) {
    const auto count = static_cast<size_t>(argument(5));
    const std::vector<uint64_t> to = numbers_at<uint64_t>(argument(2), count, stream);
    const std::vector<uint64_t> from = numbers_at<uint64_t>(argument(3), count, stream);
    const std::vector<uint64_t> lengths = numbers_at<uint64_t>(argument(4), count, stream);
    std::vector<zerohop::accel::CopySegment> segments;
    for (size_t i = 0; i < count; ++i) {
        uint64_t dst = argument(0) + to[i];
        uint64_t src = argument(1) + from[i];
        if (!find(dst, lengths[i], stream) || !find(src, lengths[i], stream)) {
            return kInvalidValue;
        }
        segments.push_back({dst, src, lengths[i] / 16 * 16});
    }
    stream.last = stream.stream->copy(segments);
    return kSuccess;
}

} // namespace

FAKE_CUDA cuModuleLoadData(void** module, const void* image) {
    static int loaded = 0;
    if (current() == nullptr) {
        return kInvalidContext;
    }
    const IdleEntry idle(current()->device);
    ++modules;
    *module = &loaded;
    return image == nullptr ? kInvalidValue : kSuccess;
}

FAKE_CUDA cuModuleUnload(void* /*module*/) {
    if (current() == nullptr) {
        return kInvalidContext;
    }
    const IdleEntry idle(current()->device);
    return kSuccess;
}

FAKE_CUDA cuFuncLoad(void* function) {
    if (current() == nullptr) {
        return kInvalidContext;
    }
    const IdleEntry idle(current()->device);
    static_cast<Kernel*>(function)->loaded = modules;
    return kSuccess;
}

FAKE_CUDA cuModuleGetFunction(void** function, void* /*module*/, const char* name) {
    static std::array<Kernel, 5> kernels{
        {{Form::pages, 16}, {Form::pages, 8}, {Form::pages, 4}, {Form::pages, 2}, {Form::pages, 1}}};
    static Kernel ranges{Form::ranges, 0};
    static Kernel list{Form::list, 0};
    static Kernel floor_ranges{Form::floor_ranges, 0};
    const std::map<std::string, Kernel*> others{
        {"zh_ranges", &ranges}, {"zh_list", &list}, {"floor_ranges", &floor_ranges}};
    if (const auto other = others.find(name); other != others.end()) {
        *function = other->second;
        return kSuccess;
    }
    for (Kernel& kernel : kernels) {
        if (kernel.width == 16 && std::string(name) == "floor_pages") { // the kernel of bench/floors
            *function = &kernel;
            return kSuccess;
        }
        if (name == "zh_pages_" + std::to_string(kernel.width)) {
            *function = &kernel;
            return kSuccess;
        }
    }
    return kNotFound;
}

// Takes the arguments as copy.cu does: (dst, src, dst_pages, src_pages, count, page_bytes, pieces, batch), or
// ranges, or (entries, count).
FAKE_CUDA cuLaunchKernel(void* function, unsigned grid_x, unsigned grid_y, unsigned, unsigned /*block_x*/, unsigned,
                         unsigned, unsigned /*shared*/, void* stream, void** arguments, void** /*extra*/) {
    if (auto* const kernel = static_cast<Kernel*>(function); kernel->loaded != modules && current() != nullptr) {
        const IdleEntry idle(current()->device);
        kernel->loaded = modules;
    }
    Stream* const found = stream_of(stream);
    if (found == nullptr) {
        return kInvalidContext;
    }
    const auto argument = [&](size_t i) {
        uint64_t value = 0;
        std::memcpy(&value, arguments[i], sizeof value);
        return value;
    };
    if (static_cast<Kernel*>(function)->form == Form::ranges) {
        return copy_ranges(*found, *static_cast<const Ranges*>(arguments[0]), grid_x, grid_y);
    }
    if (static_cast<Kernel*>(function)->form == Form::list) {
        return copy_list(*found, reinterpret_cast<const zerohop::accel::CopySegment*>(argument(0)), argument(1));
    }
    if (static_cast<Kernel*>(function)->form == Form::floor_ranges) {
        return copy_floor_ranges(*found, argument);
    }
    const uint64_t width = static_cast<Kernel*>(function)->width;
    if ((argument(0) | argument(1) | argument(5)) % width != 0) {
        return kInvalidValue; // a real kernel would read and write misaligned addresses
    }
    const auto count = static_cast<size_t>(argument(4));
    const auto pages = [&](size_t i) {
        const std::vector<uint32_t> numbers = numbers_at<uint32_t>(argument(i), count, *found);
        return std::vector<uint64_t>(numbers.begin(), numbers.end());
    };
    const std::vector<uint64_t> dst = pages(2);
    const std::vector<uint64_t> src = pages(3);
    // Each page is looked up, because a real kernel faults on an unmapped one; the base alone may lie anywhere.
    const auto base_of = [&](size_t i, const std::vector<uint64_t>& list) {
        uint64_t base = argument(i);
        for (const uint64_t page : list) {
            uint64_t here = argument(i) + page * argument(5);
            if (!find(here, argument(5), *found)) {
                return uint64_t{0};
            }
            base = here - page * argument(5); // all pages are in one range
        }
        return base;
    };
    const uint64_t dst_base = base_of(0, dst);
    const uint64_t src_base = base_of(1, src);
    if (dst_base == 0 || src_base == 0) {
        return kInvalidValue;
    }
    found->last = found->stream->copy_pages(
        {.dst_base = dst_base, .src_base = src_base, .dst_pages = dst, .src_pages = src, .page_bytes = argument(5)},
        {});
    return kSuccess;
}
