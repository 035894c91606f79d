// Virtual memory: addresses that are reserved without memory (virtual_memory.cpp), memory that is made without an
// address (physical_memory.cpp), and mappings of the one to the other.
#pragma once

#include "fake_cuda/state.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <unistd.h>

namespace fake {

constexpr size_t kGranularity = 64 * 1024; // of a real one: 2 MiB
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
struct VirtualMemory {
    std::map<uint64_t, Reservation> reserved;
    std::map<uint64_t, Mapping> mapped;
    std::map<uint64_t, std::shared_ptr<Physical>> handles;
};
[[nodiscard]] VirtualMemory& virtual_memory();
// One more reference to its handle.
[[nodiscard]] uint64_t handle_of(const std::shared_ptr<Physical>& memory);

} // namespace fake
