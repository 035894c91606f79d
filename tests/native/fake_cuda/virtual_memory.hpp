// Defines virtual memory: addresses that are reserved without memory (virtual_memory.cpp), memory that is made without
// an address (physical_memory.cpp), and mappings of memory to addresses.
#pragma once

#include "fake_cuda/state.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <unistd.h>

namespace fake {

constexpr size_t kGranularity = 64 * 1024; // 2 MiB on a real device
constexpr int kOnDevice = 1;

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
    int references = 0; // references to the handle
};

struct Reservation {
    size_t nbytes = 0;
    uint64_t alias = 0;
};

struct Mapping {
    std::shared_ptr<Physical> memory;
    std::set<int> access; // devices with access
};

// Guarded by the state's mutex.
struct VirtualMemory {
    std::map<uint64_t, Reservation> reserved;
    std::map<uint64_t, Mapping> mapped;
    std::map<uint64_t, std::shared_ptr<Physical>> handles;
};
[[nodiscard]] VirtualMemory& virtual_memory();
// Returns the memory's handle, with one more reference.
[[nodiscard]] uint64_t handle_of(const std::shared_ptr<Physical>& memory);

} // namespace fake
