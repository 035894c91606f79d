// The memory of all devices of one sim driver: allocations, the registry that finds them by address, and the host
// ranges that were registered.
#pragma once

#include "accel/driver.hpp"
#include "accel/sim/sim_address_space.hpp"

#include <atomic>
#include <map>
#include <shared_mutex>

namespace zerohop::accel::sim {

// One piece of device memory. Shared between the registry and the copies that use it, so that the alias stays mapped
// under a copy whose memory is freed meanwhile.
struct Allocation {
    uint64_t base = 0; // the device address
    size_t nbytes = 0; // as asked for; bounds are checked against this
    size_t mapped = 0; // whole pages
    uint64_t id = 0;   // never used twice in a process
    int device = -1;   // none: it is another process's
    int fd = -1;       // kept open: export to another process hands it over
    std::byte* alias = nullptr;
    std::atomic<bool> freed = false;

    Allocation() = default;
    ~Allocation();
    Allocation(const Allocation&) = delete;
    Allocation& operator=(const Allocation&) = delete;

    // Makes the memfd and the alias. What was made before a failure goes with the object.
    Outcome back(size_t bytes, size_t page);
    // The same over another process's memfd, which is duplicated; malformed where it is none, or could still shrink.
    Outcome adopt(int theirs, size_t bytes);

    [[nodiscard]] bool holds(uint64_t address, size_t bytes) const {
        return address >= base && address - base <= nbytes && bytes <= nbytes - (address - base);
    }
    [[nodiscard]] uint64_t alias_of(uint64_t address) const {
        return reinterpret_cast<uint64_t>(alias) + (address - base);
    }
};

// What a running command holds on to. A vector that its owner reuses, so that the usual copy allocates nothing.
using Pins = std::vector<std::shared_ptr<const Allocation>>;

[[nodiscard]] bool any_freed(const Pins& pins);

// Thread-safe.
class SimMemory {
public:
    explicit SimMemory(int devices);

    [[nodiscard]] size_t total_bytes() const { return total_; }

    // The memory is not touched, so that a large allocation costs nothing until it is used. Outcomes:
    // access_denied/bounds for 0 bytes; no_memory with alloc_failed (the device is full), out_of_descriptors, or
    // out_of_shared_memory (the kernel refused).
    Outcome alloc(int device, size_t nbytes, uint64_t& address);
    // access_denied/bounds unless `address` is what `alloc` of the same device returned and is not freed yet.
    Outcome free(int device, uint64_t address);
    // The descriptor behind a range, duplicated, how much of it is mapped, and where in it the range begins.
    Outcome lend(uint64_t address, size_t nbytes, int& fd, size_t& mapped, uint64_t& offset) const;
    // Another process's allocation under an address of ours, until give_back().
    Outcome borrow(int fd, size_t mapped, uint64_t& address);
    void give_back(uint64_t address);
    [[nodiscard]] Description describe(uint64_t address) const;
    // The address that the CPU, and a NIC, may use for a range of device memory, until it is freed; 0 if it is none.
    [[nodiscard]] uint64_t alias(uint64_t address, size_t nbytes) const;

    // access_denied/bounds for an empty range, one that wraps, is device memory, or overlaps a registered one.
    Outcome register_host(uint64_t address, size_t nbytes);
    // access_denied/bounds unless `address` is the start of a registered range.
    Outcome unregister_host(uint64_t address);

    // Replaces device addresses by addresses that the CPU can use, all or nothing as far as the caller may tell:
    // on access_denied/bounds the segments must not be used. `pins` keeps the memory until it is cleared. Throws
    // std::bad_alloc.
    Outcome resolve(std::span<CopySegment> segments, Pins& pins) const;
    // The same for one 32-bit word, which must be aligned.
    Outcome resolve_word(uint64_t& address, Pins& pins) const;

private:
    Outcome place(const std::shared_ptr<Allocation>& made);
    [[nodiscard]] bool locate(uint64_t& address, size_t nbytes, Pins& pins) const;
    [[nodiscard]] std::shared_ptr<Allocation> find(uint64_t address) const;

    mutable std::shared_mutex mutex_;
    AddressSpace space_;
    std::map<uint64_t, std::shared_ptr<Allocation>> allocations_; // by base
    std::map<uint64_t, size_t> host_;                             // by start
    std::vector<size_t> used_;                                    // by device
    size_t total_;
};

} // namespace zerohop::accel::sim
