// Implements the functions of HIP that are not CUDA's under other names. They follow AMD's documentation: no device of
// AMD's has been compared with them.
#include "fake_cuda/state.hpp"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>

using namespace fake;

FAKE_CUDA cuDeviceGetAttribute(int* value, int attribute, int device);
FAKE_CUDA cuMemcpyAsync(uint64_t dst, uint64_t src, size_t nbytes, void* stream);
FAKE_CUDA cuStreamWaitValue32_v2(void* stream, uint64_t address, uint32_t value, unsigned flags);

// Returns the name itself, not a status.
extern "C" [[gnu::visibility("default")]] const char* hipGetErrorName(int error) {
    static const std::map<int, const char*> names{{kSuccess, "hipSuccess"},
                                                  {kInvalidValue, "hipErrorInvalidValue"},
                                                  {kOutOfMemory, "hipErrorOutOfMemory"},
                                                  {kNoDevice, "hipErrorNoDevice"},
                                                  {kInvalidContext, "hipErrorInvalidContext"},
                                                  {kInvalidHandle, "hipErrorInvalidHandle"},
                                                  {kHostRegistered, "hipErrorHostMemoryAlreadyRegistered"},
                                                  {kNotSupported, "hipErrorNotSupported"},
                                                  {kCaptureUnsupported, "hipErrorStreamCaptureUnsupported"}};
    const auto found = names.find(error);
    return found == names.end() ? "hipErrorUnknown" : found->second;
}

// Counts in tens of millions for each major version.
FAKE_CUDA hipDriverGetVersion(int* version) {
    *version = 70'000'000;
    return kSuccess;
}

// Gives 16 characters, where CUDA gives 16 bytes of any value. With FAKE_HIP_NO_UUID the devices have none.
FAKE_CUDA hipDeviceGetUuid(char* uuid, int device) {
    char text[17] = "XX";
    if (std::getenv("FAKE_HIP_NO_UUID") != nullptr) {
        std::memcpy(uuid, text, 16);
        return kSuccess;
    }
    std::snprintf(text, sizeof text, "fa%014d", state().numbers.at(static_cast<size_t>(device)));
    std::memcpy(uuid, text, 16);
    return kSuccess;
}

// HIP numbers the attributes in an order of its own. A number that is CUDA's alone means something else here, or
// nothing.
FAKE_CUDA hipDeviceGetAttribute(int* value, int attribute, int device) {
    static const std::map<int, int> cuda_numbers{{23, 75}, {61, 76}, {63, 16}};
    const auto found = cuda_numbers.find(attribute);
    return found == cuda_numbers.end() ? kInvalidValue : cuDeviceGetAttribute(value, found->second, device);
}

// Returns the device itself, not a status.
FAKE_CUDA hipGetStreamDeviceId(void* stream) {
    const Stream* const found = stream_of(stream);
    return found == nullptr ? -1 : found->device();
}

FAKE_CUDA hipMemcpyAsync(uint64_t dst, uint64_t src, size_t nbytes, int kind, void* stream) {
    constexpr int kByAddress = 4; // hipMemcpyDefault
    return kind == kByAddress ? cuMemcpyAsync(dst, src, nbytes, stream) : kInvalidValue;
}

// Compares only the bits of the mask, which must be all of them here.
FAKE_CUDA hipStreamWaitValue32(void* stream, uint64_t address, uint32_t value, unsigned flags, uint32_t mask) {
    return mask == UINT32_MAX ? cuStreamWaitValue32_v2(stream, address, value, flags) : kInvalidValue;
}
