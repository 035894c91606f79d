// Implements memory that has no address yet, and passes it to other processes as the descriptor of its file.
#include "fake_cuda/virtual_memory.hpp"

#include <algorithm>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

using namespace fake;

namespace {

constexpr int kPinned = 1;
constexpr int kDescriptor = 1;
constexpr int kInvalidDevice = 101;

struct Properties { // the first fields of CUmemAllocationProp
    int type = 0;
    int handle_types = 0;
    int location = 0;
    int device = 0;
};

// Lies at the end of the file, so that a process that gets the descriptor knows what memory it is.
struct Label {
    uint64_t magic = 0;
    uint64_t nbytes = 0;
    uint64_t number = 0; // the machine's number of the device
};
constexpr uint64_t kMagic = 0x616475635f656b61; // "ake_cuda"
constexpr size_t kLabelBytes = 4096;

} // namespace

uint64_t fake::handle_of(const std::shared_ptr<Physical>& memory) {
    if (memory->handle == 0) {
        memory->handle = state().next_id++;
    }
    ++memory->references;
    virtual_memory().handles[memory->handle] = memory;
    return memory->handle;
}

FAKE_CUDA cuMemGetAllocationGranularity(size_t* granularity, const Properties* /*properties*/, int /*option*/) {
    *granularity = kGranularity;
    return kSuccess;
}

FAKE_CUDA cuMemCreate(uint64_t* handle, size_t nbytes, const Properties* properties, unsigned long long /*flags*/) {
    const std::lock_guard lock(state().mutex);
    if (nbytes == 0 || nbytes % kGranularity != 0 || properties->type != kPinned || properties->location != kOnDevice) {
        return kInvalidValue;
    }
    const int fd = full() ? -1 : ::memfd_create("fake_cuda memory", MFD_CLOEXEC);
    if (fd < 0) {
        return kOutOfMemory;
    }
    const auto made =
        std::make_shared<Physical>(fd, nbytes, properties->device, properties->handle_types == kDescriptor);
    const int number = state().numbers.at(static_cast<size_t>(properties->device));
    const Label label{kMagic, nbytes, static_cast<uint64_t>(number)};
    if (::ftruncate(fd, static_cast<off_t>(nbytes + kLabelBytes)) != 0 ||
        ::pwrite(fd, &label, sizeof label, static_cast<off_t>(nbytes)) != sizeof label) {
        return kOutOfMemory;
    }
    *handle = handle_of(made);
    return kSuccess;
}

FAKE_CUDA cuMemRelease(uint64_t handle) {
    const std::lock_guard lock(state().mutex);
    const auto found = virtual_memory().handles.find(handle);
    if (found == virtual_memory().handles.end()) {
        return kInvalidValue;
    }
    if (--found->second->references == 0) {
        virtual_memory().handles.erase(found);
    }
    return kSuccess;
}

FAKE_CUDA cuMemExportToShareableHandle(void* out, uint64_t handle, int kind, unsigned long long /*flags*/) {
    const std::lock_guard lock(state().mutex);
    const auto found = virtual_memory().handles.find(handle);
    if (found == virtual_memory().handles.end() || kind != kDescriptor || !found->second->shareable) {
        return kInvalidValue;
    }
    const int fd = ::fcntl(found->second->fd, F_DUPFD_CLOEXEC, 0);
    std::memcpy(out, &fd, sizeof fd);
    return fd < 0 ? kOutOfMemory : kSuccess;
}

FAKE_CUDA cuMemImportFromShareableHandle(uint64_t* handle, void* descriptor, int kind) {
    const std::lock_guard lock(state().mutex);
    const int theirs = static_cast<int>(reinterpret_cast<intptr_t>(descriptor));
    struct stat info{};
    Label label;
    if (kind != kDescriptor || ::fstat(theirs, &info) != 0 || info.st_size < static_cast<off_t>(kLabelBytes) ||
        ::pread(theirs, &label, sizeof label, info.st_size - static_cast<off_t>(kLabelBytes)) != sizeof label ||
        label.magic != kMagic || label.nbytes + kLabelBytes != static_cast<uint64_t>(info.st_size)) {
        return kInvalidValue;
    }
    const auto& numbers = state().numbers;
    const auto device = std::find(numbers.begin(), numbers.end(), static_cast<int>(label.number));
    if (device == numbers.end()) {
        return kInvalidDevice;
    }
    const int fd = ::fcntl(theirs, F_DUPFD_CLOEXEC, 0);
    if (fd < 0) {
        return kOutOfMemory;
    }
    *handle = handle_of(std::make_shared<Physical>(fd, label.nbytes, static_cast<int>(device - numbers.begin()), true));
    return kSuccess;
}
