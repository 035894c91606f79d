// Stands in for NVIDIA's management library, in processes that are started with its folder in LD_LIBRARY_PATH.
//
// FAKE_NVML says in words what it reports. "mismatch" and "none": initialization fails with that. "gpus=N": the number
// of GPUs, of which two neighbours each have NVLink. "apart": GPUs that are no neighbours do not reach each other's
// memory. "mig", "fabric": the first GPU is divided, or its fabric is not started. "old": a driver with CUDA 11.4.
// "bare": a version without the newer functions.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#define FAKE_NVML extern "C" [[gnu::visibility("default")]]

namespace {

constexpr int kSuccess = 0;
constexpr int kDriverNotLoaded = 9;
constexpr int kFunctionNotFound = 13;
constexpr int kMismatch = 18;
constexpr int kNvLink = 2;

struct PciInfo {
    char legacy[16];
    unsigned numbers[5];
    char address[32];
};

struct FabricInfo {
    unsigned char cluster[16];
    int status;
    unsigned clique;
    unsigned char state;
};

const std::string& words() {
    static const std::string told = [] {
        const char* const text = std::getenv("FAKE_NVML");
        return std::string(text == nullptr ? "" : text);
    }();
    return told;
}

bool said(const char* word) {
    return words().find(word) != std::string::npos;
}

unsigned gpus() {
    const size_t at = words().find("gpus=");
    return at == std::string::npos ? 2 : static_cast<unsigned>(std::strtoul(words().c_str() + at + 5, nullptr, 10));
}

uintptr_t number_of(const void* device) {
    return reinterpret_cast<uintptr_t>(device) - 1;
}

} // namespace

FAKE_NVML int nvmlInit_v2() {
    return said("mismatch") ? kMismatch : said("none") ? kDriverNotLoaded : kSuccess;
}

FAKE_NVML const char* nvmlErrorString(int code) {
    return code == kMismatch ? "Driver/library version mismatch" : "Driver Not Loaded";
}

FAKE_NVML int nvmlSystemGetDriverVersion(char* text, unsigned nbytes) {
    std::snprintf(text, nbytes, "%s", said("old") ? "470.82" : "580.95.05");
    return kSuccess;
}

FAKE_NVML int nvmlSystemGetCudaDriverVersion_v2(int* version) {
    *version = said("old") ? 11040 : 13000;
    return kSuccess;
}

FAKE_NVML int nvmlDeviceGetCount_v2(unsigned* count) {
    *count = gpus();
    return kSuccess;
}

FAKE_NVML int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
    *device = reinterpret_cast<void*>(uintptr_t{index} + 1);
    return kSuccess;
}

FAKE_NVML int nvmlDeviceGetHandleByUUID(const char* uuid, void** device) {
    // The last byte of the UUID is the number, as in fake_cuda.
    *device = reinterpret_cast<void*>(std::strtoul(uuid + std::strlen(uuid) - 2, nullptr, 16) + 1);
    return kSuccess;
}

FAKE_NVML int nvmlDeviceGetPciInfo_v3(void* device, PciInfo* info) {
    std::snprintf(info->address, sizeof info->address, "00000000:%02lX:00.0", 0x1aUL + number_of(device));
    return kSuccess;
}

FAKE_NVML int nvmlDeviceGetMigMode(void* device, unsigned* current, unsigned* pending) {
    if (said("bare")) {
        return kFunctionNotFound;
    }
    *current = *pending = said("mig") && number_of(device) == 0 ? 1 : 0;
    return kSuccess;
}

FAKE_NVML int nvmlDeviceGetGpuFabricInfo(void* device, FabricInfo* info) {
    if (said("bare")) {
        return kFunctionNotFound;
    }
    info->state = said("fabric") && number_of(device) == 0 ? 1 : 3;
    return kSuccess;
}

FAKE_NVML int nvmlDeviceGetP2PStatus(void* device, void* other, int what, int* status) {
    if (said("bare")) {
        return kFunctionNotFound;
    }
    const auto [low, high] = std::minmax({number_of(device), number_of(other)});
    const bool near = low / 2 == high / 2;
    *status = what == kNvLink ? (near ? 0 : 5) : said("apart") && !near ? 3 : 0;
    return kSuccess;
}
