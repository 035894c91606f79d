// Implements memory: allocation, description, and sharing with other processes.
#include "fake_cuda/state.hpp"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <optional>
#include <string>
#include <unistd.h>

using namespace fake;
using zerohop::NativeError;
using zerohop::accel::Exported;

namespace {

struct AnyHandle {
    char bytes[64];
};

// True if the kernel lets the process write all pages of the range.
bool writable(uint64_t start, size_t nbytes) {
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
        unsigned long long first = 0;
        unsigned long long end = 0;
        char rights[5] = {};
        if (std::sscanf(line.c_str(), "%llx-%llx %4s", &first, &end, rights) == 3 && first < start + nbytes &&
            start < end && rights[1] != 'w') {
            return false;
        }
    }
    return true;
}

int close_opened(uint64_t address) {
    const std::lock_guard lock(state().mutex);
    state().ranges.erase(address);
    return state().opened.erase(address) == 1 ? kSuccess : kInvalidValue;
}

} // namespace

int fake::give(uint64_t address, const Range& range, SharedHandle& handle) {
    // The descriptor stays open as long as the memory exists, because a holder of the handle may open it at any time.
    auto& made = state().given[range.id];
    if (made.pid == 0) {
        const Exported exported = state().driver->export_memory(address, range.nbytes);
        made = {::getpid(), exported.pieces[0].fd, exported.pieces[0].nbytes, range.nbytes, {}};
    }
    handle = made;
    return kSuccess;
}

int fake::take(const SharedHandle& handle, int device, uint64_t& address) {
    const std::string path = "/proc/" + std::to_string(handle.pid) + "/fd/" + std::to_string(handle.fd);
    const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0) {
        return kInvalidValue;
    }
    const std::lock_guard lock(state().mutex);
    int result = kSuccess;
    try {
        Exported exported{.form = "sim", .device = "", .offset = 0, .nbytes = handle.nbytes, .pieces = {}};
        exported.pieces.push_back({.nbytes = handle.mapped, .handle = "", .fd = fd});
        auto imported = state().driver->import_memory(exported);
        if (imported->open(device, address).ok()) {
            state().opened[address] = {std::move(imported), 1};
            state().ranges[address] = {handle.nbytes, device, state().next_id++, false, nullptr};
        } else {
            result = kInvalidValue;
        }
    } catch (const NativeError&) {
        result = kInvalidValue;
    }
    ::close(fd);
    return result;
}

FAKE_CUDA cuMemAlloc_v2(uint64_t* address, size_t nbytes) {
    const Entry entry;
    Context* const context = current();
    if (context == nullptr) {
        return kInvalidContext;
    }
    const std::lock_guard lock(state().mutex);
    if (full() || !state().devices.at(static_cast<size_t>(context->device))->alloc(nbytes, *address).ok()) {
        return kOutOfMemory;
    }
    state().ranges[*address] = {nbytes, context->device, state().next_id++, true, nullptr};
    return kSuccess;
}

// A real driver moves these pages to the processor or device that touches them; here they stay with the host.
FAKE_CUDA cuMemAllocManaged(uint64_t* address, size_t nbytes, unsigned /*flags*/) {
    const Context* const context = current();
    if (context == nullptr) {
        return kInvalidContext;
    }
    void* const made = full() ? nullptr : std::aligned_alloc(4096, (nbytes + 4095) / 4096 * 4096);
    if (made == nullptr) {
        return kOutOfMemory;
    }
    *address = reinterpret_cast<uint64_t>(made);
    const std::lock_guard lock(state().mutex);
    state().ranges[*address] = {nbytes, context->device, state().next_id++, false, nullptr, true};
    return kSuccess;
}

FAKE_CUDA cuMemGetInfo_v2(size_t* free, size_t* total) {
    const Context* const context = current();
    if (context == nullptr) {
        return kInvalidContext;
    }
    const std::lock_guard lock(state().mutex);
    *free = *total = state().devices.at(static_cast<size_t>(context->device))->facts().total_bytes;
    for (const auto& [address, range] : state().ranges) {
        *free -= range.device == context->device && range.ours ? range.nbytes : 0;
    }
    return kSuccess;
}

FAKE_CUDA cuIpcCloseMemHandle(uint64_t address) {
    if (current() == nullptr) {
        return kInvalidContext;
    }
    const IdleEntry idle(current()->device);
    return close_opened(address);
}

FAKE_CUDA cuMemFree_v2(uint64_t address) {
    std::optional<IdleEntry> idle;
    std::unique_lock lock(state().mutex);
    if (state().opened.contains(address)) { // another process's pool: closing it waits for nothing
        return close_opened(address);
    }
    if (const auto range = state().find(address); range != state().ranges.end()) {
        const int device = range->second.device;
        lock.unlock();
        idle.emplace(device);
        lock.lock();
    }
    const auto found = state().ranges.find(address);
    if (found != state().ranges.end() && found->second.managed) {
        state().ranges.erase(found);
        std::free(reinterpret_cast<void*>(address));
        return kSuccess;
    }
    if (found == state().ranges.end() || !found->second.ours) {
        return kInvalidValue;
    }
    const int device = found->second.device;
    if (const auto given = state().given.find(found->second.id); given != state().given.end()) {
        ::close(given->second.fd);
        state().given.erase(given);
    }
    state().ranges.erase(found);
    return state().devices.at(static_cast<size_t>(device))->free(address).ok() ? kSuccess : kInvalidValue;
}

FAKE_CUDA cuPointerGetAttributes(unsigned count, const int* which, void** values, uint64_t address) {
    const std::lock_guard lock(state().mutex);
    const auto found = state().find(address);
    const bool known = found != state().ranges.end();
    const Range range = known ? found->second : Range{};
    for (unsigned i = 0; i < count; ++i) {
        switch (which[i]) {
        case 2:
            *static_cast<unsigned*>(values[i]) = !known ? 0 : range.device < 0 ? 1 : 2;
            break;
        case 6:
            *static_cast<unsigned*>(values[i]) = range.sync_memops ? 1 : 0;
            break;
        case 7:
            *static_cast<uint64_t*>(values[i]) = range.id;
            break;
        case 8:
            *static_cast<unsigned*>(values[i]) = range.managed ? 1 : 0;
            break;
        case 9:
            *static_cast<int*>(values[i]) = !known ? -2 : range.device < 0 ? 0 : range.device;
            break;
        case 10:
            *static_cast<int*>(values[i]) = range.ours && range.pool == nullptr ? 1 : 0;
            break;
        case 17:
            *static_cast<void**>(values[i]) = range.pool;
            break;
        default:
            return kInvalidValue;
        }
    }
    return kSuccess;
}

// Takes SYNC_MEMOPS only, which virtual memory does not have.
FAKE_CUDA cuPointerSetAttribute(const void* value, int which, uint64_t address) {
    if (current() == nullptr) {
        return kInvalidContext;
    }
    const std::lock_guard lock(state().mutex);
    const auto found = state().find(address);
    if (found == state().ranges.end() || which != 6) {
        return kInvalidValue;
    }
    if (file_of(found->first) >= 0) {
        return kNotSupported;
    }
    found->second.sync_memops = *static_cast<const unsigned*>(value) != 0;
    return kSuccess;
}

// Exports no range that begins after its allocation, although a real driver does: a file begins where its allocation
// does.
FAKE_CUDA cuMemGetHandleForAddressRange(int* fd, uint64_t address, size_t nbytes, int kind, unsigned long long) {
    constexpr uint64_t kPage = 4096;
    const std::lock_guard lock(state().mutex);
    const auto found = state().find(address);
    if (current() == nullptr) {
        return kInvalidContext;
    }
    if (kind != 1 || found == state().ranges.end() || found->second.device < 0 || address % kPage != 0 ||
        nbytes % kPage != 0 || address + nbytes > (found->first + found->second.nbytes + kPage - 1) / kPage * kPage) {
        return kInvalidValue;
    }
    if (!exports_dma_buf() || address != found->first) {
        return kNotSupported;
    }
    const int file = file_of(address);
    *fd = file >= 0 ? ::fcntl(file, F_DUPFD_CLOEXEC, 0)
                    : state().driver->export_memory(address, found->second.nbytes).pieces[0].fd;
    return *fd < 0 ? kOutOfMemory : kSuccess;
}

FAKE_CUDA cuMemGetAddressRange_v2(uint64_t* base, size_t* nbytes, uint64_t address) {
    if (current() == nullptr) {
        return kInvalidContext;
    }
    const std::lock_guard lock(state().mutex);
    const auto found = state().find(address);
    if (found == state().ranges.end()) {
        return kNotFound;
    }
    *base = found->first;
    *nbytes = found->second.nbytes;
    return kSuccess;
}

FAKE_CUDA cuMemHostAlloc(void** address, size_t nbytes, unsigned /*flags*/) {
    const Entry entry;
    if (current() == nullptr) {
        return kInvalidContext;
    }
    *address = std::aligned_alloc(4096, (nbytes + 4095) / 4096 * 4096);
    if (*address == nullptr) {
        return kOutOfMemory;
    }
    const std::lock_guard lock(state().mutex);
    state().ranges[reinterpret_cast<uint64_t>(*address)] = {nbytes, -1, state().next_id++, false, nullptr};
    return kSuccess;
}

FAKE_CUDA cuMemFreeHost(void* address) {
    const IdleEntry idle(-1);
    const std::lock_guard lock(state().mutex);
    if (state().ranges.erase(reinterpret_cast<uint64_t>(address)) == 0) {
        return kInvalidValue;
    }
    std::free(address);
    return kSuccess;
}

FAKE_CUDA cuMemHostRegister_v2(void* address, size_t nbytes, unsigned flags) {
    const Entry entry;
    if (current() == nullptr) {
        return kInvalidContext;
    }
    const auto start = reinterpret_cast<uint64_t>(address);
    constexpr unsigned kReadOnly = 8;
    if ((flags & kReadOnly) == 0 && !writable(start, nbytes)) {
        return kInvalidValue;
    }
    const std::lock_guard lock(state().mutex);
    const auto after = state().ranges.lower_bound(start);
    if (state().find(start) != state().ranges.end() ||
        (after != state().ranges.end() && after->first < start + nbytes)) {
        return kHostRegistered;
    }
    state().ranges[start] = {nbytes, -1, state().next_id++, false, nullptr};
    return kSuccess;
}

FAKE_CUDA cuMemHostUnregister(void* address) {
    const IdleEntry idle(-1);
    const std::lock_guard lock(state().mutex);
    return state().ranges.erase(reinterpret_cast<uint64_t>(address)) == 1 ? kSuccess : kInvalidValue;
}

FAKE_CUDA cuIpcGetMemHandle(SharedHandle* handle, uint64_t address) {
    const std::lock_guard lock(state().mutex);
    const auto found = state().ranges.find(address);
    if (found == state().ranges.end() || !found->second.ours || found->second.pool != nullptr) {
        return kInvalidValue;
    }
    return give(address, found->second, *handle);
}

FAKE_CUDA cuIpcOpenMemHandle_v2(uint64_t* address, AnyHandle bytes, unsigned /*flags*/) {
    const Entry entry;
    Context* const context = current();
    if (context == nullptr) {
        return kInvalidContext;
    }
    SharedHandle handle{};
    std::memcpy(&handle, bytes.bytes, sizeof handle);
    if (handle.pid == ::getpid()) {
        return kInvalidContext; // as the real driver does
    }
    return take(handle, context->device, *address);
}
