// Implements devices and contexts.
#include "fake_cuda/state.hpp"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>

namespace fake {

namespace {

thread_local std::vector<Context*> stack;

} // namespace

State& state() {
    static auto* const made = new State; // never destroyed: it outlives everything, as a driver's state does
    return *made;
}

bool full() {
    return std::getenv("FAKE_CUDA_FULL") != nullptr;
}

bool exports_dma_buf() {
    return std::getenv("FAKE_CUDA_DMA_BUF") != nullptr;
}

Context* current() {
    if (stack.empty() && kAlwaysHasContext && !state().contexts.empty()) {
        return context_of(0);
    }
    return stack.empty() ? nullptr : stack.back();
}

Context* context_of(int device) {
    const std::lock_guard lock(state().mutex);
    auto& made = state().contexts.at(static_cast<size_t>(device));
    if (!made) {
        made = std::make_unique<Context>();
        made->device = device;
    }
    return made.get();
}

std::map<uint64_t, Range>::iterator State::find(uint64_t address) {
    auto after = ranges.upper_bound(address);
    if (after == ranges.begin()) {
        return ranges.end();
    }
    --after;
    return address < after->first + after->second.nbytes ? after : ranges.end();
}

bool make_stream(int device, Stream& stream) {
    stream.stream = zerohop::accel::user_stream(*state().devices.at(static_cast<size_t>(device)), stream.native);
    return stream.stream != nullptr;
}

Stream* stream_of(void* stream) {
    // The driver's own have small numbers: 0 and 1 for the legacy stream, 2 for a thread's. Here they are one.
    if (reinterpret_cast<uintptr_t>(stream) > 2) {
        return static_cast<Stream*>(stream);
    }
    Context* const context = current();
    if (context == nullptr || (!context->legacy.stream && !make_stream(context->device, context->legacy))) {
        return nullptr;
    }
    return &context->legacy;
}

} // namespace fake

using namespace fake;

FAKE_CUDA cuInit(unsigned /*flags*/) {
    const std::lock_guard lock(state().mutex);
    if (state().driver) {
        return kSuccess;
    }
    const char* const wanted = std::getenv(kCountVariable);
    const int count = wanted != nullptr ? std::atoi(wanted) : 2;
    const char* const visible = std::getenv(kVisibleVariable);
    if (visible == nullptr) {
        for (int number = 0; number < count; ++number) {
            state().numbers.push_back(number);
        }
    } else {
        std::stringstream list(visible);
        for (std::string each; std::getline(list, each, ',');) {
            const int number = std::atoi(each.c_str());
            if (each.empty() || number < 0 || number >= count) {
                break;
            }
            state().numbers.push_back(number);
        }
    }
    if (state().numbers.empty()) {
        return kNoDevice;
    }
    state().driver = zerohop::accel::make_sim_driver(static_cast<int>(state().numbers.size()));
    state().devices = state().driver->devices();
    state().contexts.resize(state().devices.size());
    return kSuccess;
}

FAKE_CUDA cuGetErrorName(int error, const char** name) {
    static const std::map<int, const char*> names{{kInvalidValue, "CUDA_ERROR_INVALID_VALUE"},
                                                  {kOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY"},
                                                  {kNoDevice, "CUDA_ERROR_NO_DEVICE"},
                                                  {kInvalidContext, "CUDA_ERROR_INVALID_CONTEXT"},
                                                  {kNotSupported, "CUDA_ERROR_NOT_SUPPORTED"}};
    const auto found = names.find(error);
    *name = found == names.end() ? "CUDA_ERROR_UNKNOWN" : found->second;
    return kSuccess;
}

FAKE_CUDA cuDriverGetVersion(int* version) {
    *version = 13000;
    return kSuccess;
}

// NVRTC (seen with 13.5) asks a driver that it finds for a table of functions, and assumes that there is one. This
// table has its own length first, as all have, and nothing else.
FAKE_CUDA cuGetExportTable(const void** table, const void* /*which*/) {
    static constexpr size_t kEmpty = sizeof(size_t);
    *table = &kEmpty;
    return kSuccess;
}

FAKE_CUDA cuDeviceGetCount(int* count) {
    *count = static_cast<int>(state().devices.size());
    return kSuccess;
}

FAKE_CUDA cuDeviceGet(int* device, int index) {
    *device = index;
    return kSuccess;
}

FAKE_CUDA cuDeviceGetName(char* name, int nbytes, int device) {
    std::snprintf(name, static_cast<size_t>(nbytes), "Fake GPU %d", state().numbers.at(static_cast<size_t>(device)));
    return kSuccess;
}

FAKE_CUDA cuDeviceGetUuid_v2(unsigned char* uuid, int device) {
    std::memset(uuid, 0xfa, 16);
    uuid[15] = static_cast<unsigned char>(state().numbers.at(static_cast<size_t>(device)));
    return kSuccess;
}

FAKE_CUDA cuDeviceGetPCIBusId(char* text, int nbytes, int device) {
    std::snprintf(text, static_cast<size_t>(nbytes), "0000:F%d:00.0",
                  state().numbers.at(static_cast<size_t>(device)) % 10);
    return kSuccess;
}

FAKE_CUDA cuDeviceTotalMem_v2(size_t* nbytes, int device) {
    *nbytes = state().devices.at(static_cast<size_t>(device))->facts().total_bytes;
    return kSuccess;
}

FAKE_CUDA cuDeviceGetAttribute(int* value, int attribute, int /*device*/) {
    static const std::map<int, int> values{{16, 4}, {41, 1}, {75, 9}, {76, 0}, {91, 1}, {102, 1}, {117, 1}};
    const auto found = values.find(attribute);
    *value = found == values.end() ? 0 : found->second;
    if (attribute == 118) {
        const char* const ordering = std::getenv("FAKE_CUDA_ORDERING");
        *value = ordering == nullptr ? 100 : std::atoi(ordering);
    }
    if (attribute == 124) {
        *value = exports_dma_buf() ? 1 : 0;
    }
    return kSuccess;
}

// Returns how often the driver was asked to flush; for the tests.
FAKE_CUDA fake_cuda_flushes(int more) {
    static std::atomic<int> count{0};
    return count.fetch_add(more) + more;
}

FAKE_CUDA cuFlushGPUDirectRDMAWrites(int target, int scope) {
    if (current() == nullptr || target != 0 || scope != 100) {
        return kInvalidValue;
    }
    fake_cuda_flushes(1);
    return kSuccess;
}

FAKE_CUDA cuDeviceCanAccessPeer(int* can, int /*device*/, int /*peer*/) {
    *can = 1;
    return kSuccess;
}

FAKE_CUDA cuDevicePrimaryCtxRetain(void** context, int device) {
    *context = context_of(device);
    return kSuccess;
}

FAKE_CUDA cuDevicePrimaryCtxRelease_v2(int /*device*/) {
    return kSuccess;
}

FAKE_CUDA cuCtxPushCurrent_v2(void* context) {
    stack.push_back(static_cast<Context*>(context));
    return kSuccess;
}

FAKE_CUDA cuCtxGetCurrent(void** context) {
    *context = current();
    return kSuccess;
}

FAKE_CUDA cuCtxPopCurrent_v2(void** context) {
    if (stack.empty()) {
        return kInvalidContext;
    }
    *context = stack.back();
    stack.pop_back();
    return kSuccess;
}

FAKE_CUDA cuCtxEnablePeerAccess(void* /*context*/, unsigned /*flags*/) {
    return current() == nullptr ? kInvalidContext : kSuccess;
}
