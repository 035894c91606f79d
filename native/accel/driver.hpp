// The contract of an accelerator driver: what the data plane needs from a GPU, and nothing else.
//
// Drivers return errors as values; nothing aborts, exits or throws. Every method may be called from any thread.
// Copies are stream-ordered and asynchronous: a Stream runs its commands in the order they were queued, and
// different streams run at the same time.
#pragma once

#include "engine/status.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace zerohop::accel {

enum class MemoryKind : uint8_t { unknown, host, device };
enum class AllocatedBy : uint8_t { unknown, plain, pool, vmm };

// What `describe` knows of an address. `allocation_id` is never used twice in a process, so a cached registration of
// freed memory is recognised even when the address comes back.
struct Description {
    MemoryKind kind = MemoryKind::unknown;
    AllocatedBy allocated_by = AllocatedBy::unknown;
    int device = -1;
    uint64_t base = 0;
    size_t size = 0;
    uint64_t allocation_id = 0;
};

struct DeviceFacts {
    std::string name;        // "sim:0"
    std::string kind;        // "sim", "cuda", "hip"
    std::string pci_address; // empty where there is none
    std::vector<std::string> capabilities;
    size_t total_bytes = 0;
};

// One piece of a copy. Either address may be a device address or a host address; the driver tells them apart.
struct CopySegment {
    uint64_t dst = 0;
    uint64_t src = 0;
    size_t nbytes = 0;
};

// One way in which a NIC may take a range of memory.
struct Registrable {
    enum class Kind : uint8_t {
        plain,   // the address itself: host memory, or device memory for a driver that knows it (nvidia_peermem)
        alias,   // another address of the same pages, registered under the device address as IO virtual address
        dma_buf, // a descriptor and an offset in it
    };
    Kind kind = Kind::plain;
    uint64_t address = 0; // plain, alias
    int fd = -1;          // dma_buf; the driver's, open as long as the memory is
    uint64_t offset = 0;  // dma_buf
    std::string why_not;  // not empty: this way is not there, and why
};

enum class EventState : uint8_t { pending, done, failed };

// A point in a stream. Cheap to query, from any thread. `outcome()` is meaningful once `query()` is not pending.
class Event {
public:
    virtual ~Event() = default;
    [[nodiscard]] virtual EventState query() const = 0;
    virtual Outcome outcome() const = 0;
};

class Stream {
public:
    virtual ~Stream() = default;
    // Queues the copies as one command and returns the event that fires when all of them have ended. A failed copy
    // fails its own event only; later commands still run unless the device is lost.
    [[nodiscard]] virtual std::shared_ptr<Event> copy(std::span<const CopySegment> segments) = 0;
    // Writes a 32-bit word (host or device address, 4-byte aligned) after everything queued before it.
    [[nodiscard]] virtual std::shared_ptr<Event> write32(uint64_t address, uint32_t value) = 0;
    // Holds the stream until the word equals `value`.
    [[nodiscard]] virtual std::shared_ptr<Event> wait32(uint64_t address, uint32_t value) = 0;
    // Fires when everything queued so far has ended.
    [[nodiscard]] virtual std::shared_ptr<Event> record() = 0;
};

class Device {
public:
    virtual ~Device() = default;
    [[nodiscard]] virtual DeviceFacts facts() const = 0;
    // Zero-filled? No: contents are undefined, as on a GPU. `address` is set on success only.
    virtual Outcome alloc(size_t nbytes, uint64_t& address) = 0;
    // Waits for no copy: freeing memory with copies in flight is the caller's error, which the engine prevents by
    // its pins. Unknown addresses give access_denied.
    virtual Outcome free(uint64_t address) = 0;
    // A fresh stream of its own, or nullptr when the device is lost or out of resources.
    [[nodiscard]] virtual std::unique_ptr<Stream> stream() = 0;
};

class Driver {
public:
    virtual ~Driver() = default;
    [[nodiscard]] virtual std::string kind() const = 0;
    [[nodiscard]] virtual std::vector<std::shared_ptr<Device>> devices() = 0;
    [[nodiscard]] virtual Description describe(uint64_t address) const = 0;
    // How a NIC may take [address, address + nbytes) of device memory, best first.
    [[nodiscard]] virtual std::vector<Registrable> registrable(uint64_t address, size_t nbytes) const = 0;
    // Makes host memory fit for asynchronous copies ("pinned"); the pages must stay until `unregister_host`.
    virtual Outcome register_host(void* address, size_t nbytes) = 0;
    virtual Outcome unregister_host(void* address) = 0;
};

} // namespace zerohop::accel
