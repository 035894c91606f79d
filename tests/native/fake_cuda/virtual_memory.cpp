// Implements addresses of virtual memory, and mappings there. The processor cannot touch them, like other memory of a
// device: streams use an alias, and only if their device was given access.
#include "fake_cuda/virtual_memory.hpp"

#include "shim/gpu_api.hpp"

#include <iterator>
#include <sys/mman.h>
#include <vector>

using namespace fake;
using zerohop::shim::GpuAccess;

namespace {

constexpr int kReadWrite = 3;

void* pointer(uint64_t address) {
    return reinterpret_cast<void*>(address);
}

// Reserves addresses with nothing behind them; 0 if there are none.
uint64_t vacate(uint64_t at, size_t nbytes) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (at == 0 ? 0 : MAP_FIXED);
    void* const made = ::mmap(pointer(at), nbytes, PROT_NONE, flags, -1, 0);
    return made == MAP_FAILED ? 0 : reinterpret_cast<uint64_t>(made);
}

template <class Map> auto holder(Map& map, uint64_t address) {
    const auto after = map.upper_bound(address);
    return after == map.begin() ? map.end() : std::prev(after);
}

// Returns the reservation in which all of the range lies, or end().
auto reservation_of(uint64_t address, size_t nbytes) {
    const auto found = holder(virtual_memory().reserved, address);
    const bool inside = found != virtual_memory().reserved.end() && nbytes <= found->second.nbytes &&
                        address - found->first <= found->second.nbytes - nbytes;
    return inside ? found : virtual_memory().reserved.end();
}

// Calls `f` for each mapping under the range, in order; false if part of the range is not mapped.
template <class F> bool each_mapping(uint64_t address, size_t nbytes, F&& f) {
    const uint64_t stop = address + nbytes;
    for (uint64_t at = address; at < stop;) {
        const auto found = holder(virtual_memory().mapped, at);
        if (found == virtual_memory().mapped.end() || at >= found->first + found->second.memory->nbytes) {
            return false;
        }
        f(found->first, found->second);
        at = found->first + found->second.memory->nbytes;
    }
    return true;
}

} // namespace

VirtualMemory& fake::virtual_memory() {
    static auto* const made = new VirtualMemory; // never destroyed: it outlives everything, as the state does
    return *made;
}

Reach fake::reach(uint64_t& address, size_t nbytes, int device) {
    const std::lock_guard lock(state().mutex);
    const auto found = holder(virtual_memory().reserved, address);
    if (found == virtual_memory().reserved.end() || address - found->first >= found->second.nbytes) {
        return Reach::elsewhere;
    }
    bool accessible = reservation_of(address, nbytes) != virtual_memory().reserved.end();
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
    const auto found = virtual_memory().mapped.find(address);
    return found == virtual_memory().mapped.end() ? -1 : found->second.memory->fd;
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
    virtual_memory().reserved[made] = {nbytes, alias};
    *address = made;
    return kSuccess;
}

FAKE_CUDA cuMemAddressFree(uint64_t address, size_t nbytes) {
    const std::lock_guard lock(state().mutex);
    const auto found = virtual_memory().reserved.find(address);
    const auto first = virtual_memory().mapped.lower_bound(address);
    if (found == virtual_memory().reserved.end() || found->second.nbytes != nbytes ||
        (first != virtual_memory().mapped.end() && first->first < address + nbytes)) {
        return kInvalidValue;
    }
    ::munmap(pointer(address), nbytes);
    ::munmap(pointer(found->second.alias), nbytes);
    virtual_memory().reserved.erase(found);
    return kSuccess;
}

FAKE_CUDA cuMemRetainAllocationHandle(uint64_t* handle, void* address) {
    const std::lock_guard lock(state().mutex);
    return each_mapping(reinterpret_cast<uint64_t>(address), 1,
                        [&](uint64_t, const Mapping& mapping) { *handle = handle_of(mapping.memory); })
               ? kSuccess
               : kInvalidValue;
}

FAKE_CUDA cuMemMap(uint64_t address, size_t nbytes, size_t offset, uint64_t handle, unsigned long long /*flags*/) {
    const std::lock_guard lock(state().mutex);
    const auto memory = virtual_memory().handles.find(handle);
    const auto reservation = reservation_of(address, nbytes);
    const auto next = virtual_memory().mapped.lower_bound(address);
    if (memory == virtual_memory().handles.end() || reservation == virtual_memory().reserved.end() || offset != 0 ||
        nbytes != memory->second->nbytes || (next != virtual_memory().mapped.end() && next->first < address + nbytes) ||
        each_mapping(address, 1, [](uint64_t, const Mapping&) {})) {
        return kInvalidValue;
    }
    const uint64_t alias = reservation->second.alias + (address - reservation->first);
    for (const uint64_t place : {address, alias}) {
        if (::mmap(pointer(place), nbytes, PROT_NONE, MAP_SHARED | MAP_FIXED, memory->second->fd, 0) == MAP_FAILED) {
            return kOutOfMemory;
        }
    }
    virtual_memory().mapped[address] = {memory->second, {}};
    state().ranges[address] = {nbytes, memory->second->device, state().next_id++, false, nullptr};
    return kSuccess;
}

FAKE_CUDA cuMemUnmap(uint64_t address, size_t nbytes) {
    const std::lock_guard lock(state().mutex);
    const auto reservation = reservation_of(address, nbytes);
    std::vector<uint64_t> whole; // a mapping is unmapped as a whole
    const bool all = each_mapping(address, nbytes, [&](uint64_t start, const Mapping& mapping) {
        if (start >= address && start + mapping.memory->nbytes <= address + nbytes) {
            whole.push_back(start);
        }
    });
    size_t covered = 0;
    for (const uint64_t start : whole) {
        covered += virtual_memory().mapped.at(start).memory->nbytes;
    }
    if (reservation == virtual_memory().reserved.end() || !all || covered != nbytes) {
        return kInvalidValue;
    }
    for (const uint64_t start : whole) {
        virtual_memory().mapped.erase(start);
        state().ranges.erase(start);
    }
    const uint64_t alias = reservation->second.alias + (address - reservation->first);
    return vacate(address, nbytes) != 0 && vacate(alias, nbytes) != 0 ? kSuccess : kOutOfMemory;
}

FAKE_CUDA cuMemSetAccess(uint64_t address, size_t nbytes, const GpuAccess* access, size_t count) {
    const std::lock_guard lock(state().mutex);
    const auto reservation = reservation_of(address, nbytes);
    if (reservation == virtual_memory().reserved.end() ||
        !each_mapping(address, nbytes, [](uint64_t, const Mapping&) {})) {
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
