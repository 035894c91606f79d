// Virtual memory: addresses that are reserved without memory, memory that is made without an address, and mappings of
// the one to the other. The processor cannot touch what is mapped, as little as other memory of a device: streams use
// an alias of it, and only where their device was given access.
#include "fake_cuda/state.hpp"
#include "shim/gpu_api.hpp"

#include <algorithm>
#include <cstring>
#include <fcntl.h>
#include <iterator>
#include <set>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

using namespace fake;
using zerohop::shim::GpuAccess;

namespace {

constexpr size_t kGranularity = 64 * 1024; // of a real one: 2 MiB
constexpr int kPinned = 1;
constexpr int kDescriptor = 1;
constexpr int kOnDevice = 1;
constexpr int kReadWrite = 3;
constexpr int kInvalidDevice = 101;

struct Properties { // the first fields of CUmemAllocationProp
    int type = 0;
    int handle_types = 0;
    int location = 0;
    int device = 0;
};

// At the end of the file, so that whoever gets the descriptor knows what it stands for.
struct Label {
    uint64_t magic = 0;
    uint64_t nbytes = 0;
    uint64_t number = 0; // of the device, of the machine
};
constexpr uint64_t kMagic = 0x616475635f656b61; // "ake_cuda"
constexpr size_t kLabelBytes = 4096;

struct Physical {
    Physical(int from, size_t size, int owner, bool exports)
        : fd(from), nbytes(size), device(owner), shareable(exports) {}
    ~Physical() { ::close(fd); }
    Physical(const Physical&) = delete;
    Physical& operator=(const Physical&) = delete;

    const int fd;
    const size_t nbytes;
    const int device;
    const bool shareable;
    uint64_t handle = 0;
    int references = 0; // to the handle
};

struct Reservation {
    size_t nbytes = 0;
    uint64_t alias = 0;
};

struct Mapping {
    std::shared_ptr<Physical> memory;
    std::set<int> access; // devices
};

// With the state's mutex held.
struct Tables {
    std::map<uint64_t, Reservation> reserved;
    std::map<uint64_t, Mapping> mapped;
    std::map<uint64_t, std::shared_ptr<Physical>> handles;
};
auto& [reserved, mapped, handles] = *new Tables; // as the state, they outlive everything

void* pointer(uint64_t address) {
    return reinterpret_cast<void*>(address);
}

// Addresses with nothing behind them; 0: there are none.
uint64_t vacate(uint64_t at, size_t nbytes) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (at == 0 ? 0 : MAP_FIXED);
    void* const made = ::mmap(pointer(at), nbytes, PROT_NONE, flags, -1, 0);
    return made == MAP_FAILED ? 0 : reinterpret_cast<uint64_t>(made);
}

template <class Map> auto holder(Map& map, uint64_t address) {
    const auto after = map.upper_bound(address);
    return after == map.begin() ? map.end() : std::prev(after);
}

// That all of the range lies in; else the end.
auto reservation_of(uint64_t address, size_t nbytes) {
    const auto found = holder(reserved, address);
    const bool inside = found != reserved.end() && nbytes <= found->second.nbytes &&
                        address - found->first <= found->second.nbytes - nbytes;
    return inside ? found : reserved.end();
}

// Calls it for each mapping under the range, in order; false: some of it is not mapped.
template <class F> bool each_mapping(uint64_t address, size_t nbytes, F&& f) {
    const uint64_t stop = address + nbytes;
    for (uint64_t at = address; at < stop;) {
        const auto found = holder(mapped, at);
        if (found == mapped.end() || at >= found->first + found->second.memory->nbytes) {
            return false;
        }
        f(found->first, found->second);
        at = found->first + found->second.memory->nbytes;
    }
    return true;
}

uint64_t handle_of(const std::shared_ptr<Physical>& memory) {
    if (memory->handle == 0) {
        memory->handle = state().next_id++;
    }
    ++memory->references;
    handles[memory->handle] = memory;
    return memory->handle;
}

} // namespace

Reach fake::reach(uint64_t& address, size_t nbytes, int device) {
    const std::lock_guard lock(state().mutex);
    const auto found = holder(reserved, address);
    if (found == reserved.end() || address - found->first >= found->second.nbytes) {
        return Reach::elsewhere;
    }
    bool accessible = reservation_of(address, nbytes) != reserved.end();
    accessible = each_mapping(address, nbytes,
                              [&](uint64_t, const Mapping& mapping) {
                                  accessible = accessible && mapping.access.contains(device);
                              }) &&
                 accessible;
    address = found->second.alias + (address - found->first);
    return accessible ? Reach::reached : Reach::refused;
}

int fake::file_of(uint64_t address) {
    const std::lock_guard lock(state().mutex);
    const auto found = mapped.find(address);
    return found == mapped.end() ? -1 : found->second.memory->fd;
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
    const auto found = handles.find(handle);
    if (found == handles.end()) {
        return kInvalidValue;
    }
    if (--found->second->references == 0) {
        handles.erase(found);
    }
    return kSuccess;
}

FAKE_CUDA cuMemRetainAllocationHandle(uint64_t* handle, void* address) {
    const std::lock_guard lock(state().mutex);
    return each_mapping(reinterpret_cast<uint64_t>(address), 1,
                        [&](uint64_t, const Mapping& mapping) { *handle = handle_of(mapping.memory); })
               ? kSuccess
               : kInvalidValue;
}

FAKE_CUDA cuMemExportToShareableHandle(void* out, uint64_t handle, int kind, unsigned long long /*flags*/) {
    const std::lock_guard lock(state().mutex);
    const auto found = handles.find(handle);
    if (found == handles.end() || kind != kDescriptor || !found->second->shareable) {
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

FAKE_CUDA cuMemAddressReserve(uint64_t* address, size_t nbytes, size_t /*alignment*/, uint64_t /*hint*/,
                              unsigned long long /*flags*/) {
    const std::lock_guard lock(state().mutex);
    if (nbytes == 0 || nbytes % kGranularity != 0) {
        return kInvalidValue;
    }
    const uint64_t made = vacate(0, nbytes);
    const uint64_t alias = made == 0 ? 0 : vacate(0, nbytes);
    if (alias == 0) {
        return kOutOfMemory;
    }
    reserved[made] = {nbytes, alias};
    *address = made;
    return kSuccess;
}

FAKE_CUDA cuMemAddressFree(uint64_t address, size_t nbytes) {
    const std::lock_guard lock(state().mutex);
    const auto found = reserved.find(address);
    const auto first = mapped.lower_bound(address);
    if (found == reserved.end() || found->second.nbytes != nbytes ||
        (first != mapped.end() && first->first < address + nbytes)) {
        return kInvalidValue;
    }
    ::munmap(pointer(address), nbytes);
    ::munmap(pointer(found->second.alias), nbytes);
    reserved.erase(found);
    return kSuccess;
}

FAKE_CUDA cuMemMap(uint64_t address, size_t nbytes, size_t offset, uint64_t handle, unsigned long long /*flags*/) {
    const std::lock_guard lock(state().mutex);
    const auto memory = handles.find(handle);
    const auto reservation = reservation_of(address, nbytes);
    const auto next = mapped.lower_bound(address);
    if (memory == handles.end() || reservation == reserved.end() || offset != 0 || nbytes != memory->second->nbytes ||
        (next != mapped.end() && next->first < address + nbytes) ||
        each_mapping(address, 1, [](uint64_t, const Mapping&) {})) {
        return kInvalidValue;
    }
    const uint64_t alias = reservation->second.alias + (address - reservation->first);
    for (const uint64_t place : {address, alias}) {
        if (::mmap(pointer(place), nbytes, PROT_NONE, MAP_SHARED | MAP_FIXED, memory->second->fd, 0) == MAP_FAILED) {
            return kOutOfMemory;
        }
    }
    mapped[address] = {memory->second, {}};
    state().ranges[address] = {nbytes, memory->second->device, state().next_id++, false, nullptr};
    return kSuccess;
}

FAKE_CUDA cuMemUnmap(uint64_t address, size_t nbytes) {
    const std::lock_guard lock(state().mutex);
    const auto reservation = reservation_of(address, nbytes);
    std::vector<uint64_t> whole; // a mapping goes as one
    const bool all = each_mapping(address, nbytes, [&](uint64_t start, const Mapping& mapping) {
        if (start >= address && start + mapping.memory->nbytes <= address + nbytes) {
            whole.push_back(start);
        }
    });
    size_t covered = 0;
    for (const uint64_t start : whole) {
        covered += mapped.at(start).memory->nbytes;
    }
    if (reservation == reserved.end() || !all || covered != nbytes) {
        return kInvalidValue;
    }
    for (const uint64_t start : whole) {
        mapped.erase(start);
        state().ranges.erase(start);
    }
    const uint64_t alias = reservation->second.alias + (address - reservation->first);
    return vacate(address, nbytes) != 0 && vacate(alias, nbytes) != 0 ? kSuccess : kOutOfMemory;
}

FAKE_CUDA cuMemSetAccess(uint64_t address, size_t nbytes, const GpuAccess* access, size_t count) {
    const std::lock_guard lock(state().mutex);
    const auto reservation = reservation_of(address, nbytes);
    if (reservation == reserved.end() || !each_mapping(address, nbytes, [](uint64_t, const Mapping&) {})) {
        return kInvalidValue;
    }
    const uint64_t alias = reservation->second.alias + (address - reservation->first);
    if (::mprotect(pointer(alias), nbytes, PROT_READ | PROT_WRITE) != 0) {
        return kOutOfMemory;
    }
    for (size_t i = 0; i < count; ++i) {
        if (access[i].location.type != kOnDevice || access[i].flags != kReadWrite) {
            return kInvalidValue;
        }
        (void)each_mapping(address, nbytes,
                           [&](uint64_t, Mapping& mapping) { mapping.access.insert(access[i].location.id); });
    }
    return kSuccess;
}
