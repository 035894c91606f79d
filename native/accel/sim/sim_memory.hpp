// Holds the memory of all devices of one sim driver: allocations, the registry that finds them by address, and the host
// ranges that were registered.
#pragma once

#include "accel/driver.hpp"
#include "accel/sim/sim_address_space.hpp"

#include <atomic>
#include <map>
#include <shared_mutex>

namespace zerohop::accel::sim {

inline constexpr int kForeign = -1; // in place of a device: the memory is another process's

// One allocation of device memory. The registry and the copies that use it share it, so that the alias stays mapped
// under a copy whose memory is freed meanwhile.
struct Allocation {
    uint64_t base = 0; // the device address
    size_t nbytes = 0; // the size asked for, against which bounds are checked
    size_t mapped = 0; // whole pages
    uint64_t id = 0;   // never used twice in a process
    int device = kForeign;
    Descriptor fd; // kept open, because export hands it to another process
    std::shared_ptr<void> alias;
    std::atomic<bool> freed = false;

    [[nodiscard]] bool holds(uint64_t address, size_t bytes) const {
        return address >= base && address - base <= nbytes && bytes <= nbytes - (address - base);
    }
    [[nodiscard]] uint64_t alias_of(uint64_t address) const {
        return reinterpret_cast<uint64_t>(alias.get()) + (address - base);
    }
};

// The allocations that a running command uses. The vector's owner reuses it, so that the usual copy allocates nothing.
using Pins = std::vector<std::shared_ptr<const Allocation>>;

[[nodiscard]] bool any_freed(const Pins& pins);

// Thread-safe.
class SimMemory {
public:
    explicit SimMemory(int devices);

    [[nodiscard]] size_t total_bytes() const { return total_; }

    // Allocates without touching the memory, so that a large allocation costs nothing until it is used. Outcomes:
    // access_denied/bounds for 0 bytes; no_memory with alloc_failed (the device is full), out_of_descriptors, or
    // out_of_shared_memory (the kernel refused).
    Outcome alloc(int device, size_t nbytes, uint64_t& address);
    // Returns access_denied/bounds unless `address` comes from `alloc` of this device, or with kForeign from
    // import_fd(), and is not freed yet.
    Outcome free(int device, uint64_t address);
    // Duplicates the descriptor behind a range, and tells how much of it is mapped, and where in it the range begins.
    Outcome export_fd(uint64_t address, size_t nbytes, int& fd, size_t& mapped, uint64_t& offset) const;
    // Maps another process's allocation under an address of this process, until free(); malformed if it is no memfd, or
    // could still shrink.
    Outcome import_fd(int fd, size_t mapped, uint64_t& address);
    [[nodiscard]] Description describe(uint64_t address) const;
    // Returns the address that the CPU, and a NIC, may use for a range of device memory until it is freed; 0 if it is
    // none.
    [[nodiscard]] uint64_t alias(uint64_t address, size_t nbytes) const;

    // Returns access_denied/bounds for a range that is empty, wraps, or is device memory; unsupported/host_registered
    // if it overlaps a registered one; kLocalMemoryGone if not all of its pages are there.
    Outcome register_host(uint64_t address, size_t nbytes);
    // Returns access_denied/bounds unless `address` is the start of a registered range.
    Outcome unregister_host(uint64_t address);

    // Replaces device addresses by addresses that the CPU can use. After access_denied/bounds the segments must not be
    // used. `pins` keeps the memory until it is cleared. Throws std::bad_alloc.
    Outcome resolve(std::span<CopySegment> segments, Pins& pins) const;
    // Like resolve(), for one 32-bit word, which must be aligned.
    Outcome resolve_word(uint64_t& address, Pins& pins) const;

private:
    template <class Open>
    Outcome place(int device, size_t nbytes, size_t mapped, uint64_t& address, Open&& open);
    [[nodiscard]] bool locate(uint64_t& address, size_t nbytes, Pins& pins) const;
    [[nodiscard]] std::shared_ptr<Allocation> find(uint64_t address) const;

    mutable std::shared_mutex mutex_;
    AddressSpace space_;
    std::map<uint64_t, std::shared_ptr<Allocation>> allocations_; // by base address
    std::map<uint64_t, size_t> host_;                             // by start address
    std::vector<size_t> used_;                                    // by device
    size_t total_;
};

} // namespace zerohop::accel::sim
