// The contract of an accelerator driver: what the data plane needs from a GPU, and nothing else.
//
// Drivers return errors as values; nothing aborts, exits or throws. Every method may be called from any thread, and
// none waits for what is queued on streams: drivers leave calls that do to IdleCalls. Copies are stream-ordered and
// asynchronous: a Stream runs its commands in the order they were queued, and different streams run at the same time.
#pragma once

#include "base/descriptor.hpp"
#include "base/status.hpp"

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
    std::string identity;    // the same for every process that sees it, whatever number it has there
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

// Equal pages: number i goes from src_base + src_pages[i] * page_bytes to dst_base + dst_pages[i] * page_bytes.
// There are as many of the one as of the other.
struct PageCopy {
    uint64_t dst_base = 0;
    uint64_t src_base = 0;
    std::span<const uint64_t> dst_pages;
    std::span<const uint64_t> src_pages;
    uint64_t page_bytes = 0;
};

// A 32-bit word of host or device memory, 4-byte aligned, and what is to be written there.
struct Word {
    uint64_t address = 0;
    uint32_t value = 0;
};

// What another process needs in order to map a range of device memory. Descriptors are owned: close() gives them back.
struct Exported {
    struct Piece {
        size_t nbytes = 0;  // as far as it is mapped, which may be past the end of the range
        std::string handle; // of the driver's own form; empty where the descriptor is all
        int fd = -1;
    };
    std::string form;          // how it is shared: "cuda-ipc", "cuda-fd", "sim", ...
    std::string device;        // identity of the device that it is on
    uint64_t process = 0;      // who exports it: a number of its own for each process
    uint64_t address = 0;      // of the range in that process
    uint64_t offset = 0;       // of the range, in the first piece
    size_t nbytes = 0;         // of the range
    std::vector<Piece> pieces; // they follow one another in memory
};

// A range of another process's device memory, mapped here. The driver keeps it while somebody holds it; drop it only
// when no copy uses it any more. IdleCalls tells when a dropped one is not mapped any more.
class Imported {
public:
    virtual ~Imported() = default;
    // Makes it reachable for copies on streams of the device (of this driver), and tells where the range begins there.
    virtual Outcome open(int device, uint64_t& address) = 0;
};

// One way in which a NIC may take a range of memory.
struct Registrable {
    enum class Kind : uint8_t {
        plain,   // the address itself: host memory, or device memory for a driver that knows it (nvidia_peermem)
        alias,   // another address of the same pages, registered under the device address as IO virtual address
        dma_buf, // a descriptor and an offset in it
    };
    Kind kind = Kind::plain;
    uint64_t address = 0;                               // plain, alias
    std::shared_ptr<const Descriptor> buffer = nullptr; // dma_buf
    uint64_t offset = 0;                                // dma_buf: of the range in it
    std::string why_not;                                // not empty: this way is not there, and why
};

// Holds a stream until it is opened, from any thread; its destructor opens it at the latest.
class Gate {
public:
    virtual ~Gate() = default;
    virtual void open() = 0;
};

enum class EventState : uint8_t { pending, done, failed };

// A point in a stream. Cheap to query, from any thread. `outcome()` is meaningful once `query()` is not pending.
class Event {
public:
    virtual ~Event() = default;
    [[nodiscard]] virtual EventState query() const = 0;
    virtual Outcome outcome() const = 0;
    // Has another stream of the driver's kind wait, from now on, until this fires or the gate is opened, whichever is
    // first; nobody needs to look for that. What was queued on its own stream after this may fire before. Null where
    // this has fired, and where `why` tells why not.
    [[nodiscard]] virtual std::shared_ptr<Gate> hold(uint64_t /*native_stream*/, Outcome& why) const {
        why = {Status::unsupported, Reason::none};
        return nullptr;
    }
};

class Stream {
public:
    virtual ~Stream() = default;
    // Queues the copies as one command, which writes the words of `then` after them, in their order, and returns the
    // event that fires when all of that has ended. A failed copy fails its own event only, and writes no word; later
    // commands still run unless the device is lost.
    [[nodiscard]] virtual std::shared_ptr<Event> copy(std::span<const CopySegment> segments,
                                                      std::span<const Word> then) = 0;
    [[nodiscard]] virtual std::shared_ptr<Event> copy_pages(const PageCopy& pages, std::span<const Word> then) = 0;
    // Whether many small copies take much less time as one command than one by one.
    [[nodiscard]] virtual bool gathers() const { return false; }
    // As copy(), of segments of memory that the device reaches by itself, most of them small; none is empty.
    [[nodiscard]] virtual std::shared_ptr<Event> copy_many(std::span<const CopySegment> segments,
                                                           std::span<const Word> then) {
        return copy(segments, then);
    }
    [[nodiscard]] std::shared_ptr<Event> copy(std::span<const CopySegment> segments) { return copy(segments, {}); }
    // Writes a 32-bit word (host or device address, 4-byte aligned) after everything queued before it.
    [[nodiscard]] virtual std::shared_ptr<Event> write32(uint64_t address, uint32_t value) = 0;
    // Holds the stream until the word equals `value`.
    [[nodiscard]] virtual std::shared_ptr<Event> wait32(uint64_t address, uint32_t value) = 0;
    // Fires when everything queued so far has ended.
    [[nodiscard]] virtual std::shared_ptr<Event> record() = 0;
    // What is queued from now on begins after all that is queued by now on another stream of the driver's kind. A
    // stream that is being captured into a graph gives unsupported/capturing, and nothing is queued.
    virtual Outcome follow(uint64_t native_stream) = 0;
};

class Device {
public:
    virtual ~Device() = default;
    [[nodiscard]] virtual DeviceFacts facts() const = 0;
    // Zero-filled? No: contents are undefined, as on a GPU. `address` is set on success only.
    virtual Outcome alloc(size_t nbytes, uint64_t& address) = 0;
    // Freeing memory with copies in flight is the caller's error, which the engine prevents by its pins. A GPU has the
    // memory back once nothing is queued on its streams any more.
    virtual Outcome free(uint64_t address) = 0;
    // A fresh stream of its own, or nullptr, and why: the device is lost, or out of memory.
    [[nodiscard]] virtual std::unique_ptr<Stream> stream(Outcome& why) = 0;
    [[nodiscard]] std::unique_ptr<Stream> stream() {
        Outcome unasked;
        return stream(unasked);
    }
    // Whether what a NIC has written to its memory must be flushed, so that whoever is told of it sees it.
    [[nodiscard]] virtual bool needs_flush() const { return false; }
    virtual void flush_inbound() {}
    // Fires when all that this process has queued on the device by now, on any stream, has ended. Throws NativeError:
    // unsupported/capturing while one of its streams is being captured into a graph, which may end that capture.
    [[nodiscard]] virtual std::shared_ptr<Event> mark() = 0;
};

class Driver {
public:
    virtual ~Driver() = default;
    [[nodiscard]] virtual std::string kind() const = 0;
    [[nodiscard]] virtual std::vector<std::shared_ptr<Device>> devices() = 0;
    [[nodiscard]] virtual Description describe(uint64_t address) const = 0;
    // Its `allocation_id` alone, which takes a fraction of the time; 0 where the driver does not know the address.
    [[nodiscard]] virtual uint64_t allocation_id(uint64_t address) const { return describe(address).allocation_id; }
    // How a NIC may take [address, address + nbytes) of device memory, best first.
    [[nodiscard]] virtual std::vector<Registrable> registrable(uint64_t address, size_t nbytes) const = 0;
    // Throws NativeError where the memory cannot be mapped by others, with the reason in words.
    [[nodiscard]] virtual Exported export_memory(uint64_t address, size_t nbytes) = 0;
    // Throws NativeError; the descriptors stay the caller's.
    [[nodiscard]] virtual std::shared_ptr<Imported> import_memory(const Exported& exported) = 0;
    // Streams that are not ours, by the number that the vendor's library has for them, of a device by this driver's
    // number. One that is being captured into a graph makes all of these throw NativeError(unsupported, capturing).
    virtual void check_stream(int device, uint64_t native_stream) = 0;
    // Fires when all that is queued there by now has ended.
    [[nodiscard]] virtual std::shared_ptr<Event> mark(int device, uint64_t native_stream) = 0;
    // What is queued there from now on waits until the gate is opened.
    [[nodiscard]] virtual std::shared_ptr<Gate> gate(int device, uint64_t native_stream) = 0;
    // Makes host memory fit for asynchronous copies ("pinned"), and for words that streams write, under the same
    // address; the pages must stay until `unregister_host`. Pages that this process may not write are taken where the
    // device takes such.
    virtual Outcome register_host(void* address, size_t nbytes, bool writable) = 0;
    // Does not wait for the devices: they may know the memory for a while yet, which IdleCalls tells of. `pages`
    // stays alive until they do not.
    virtual Outcome unregister_host(void* address, std::shared_ptr<void> pages) = 0;
    Outcome unregister_host(void* address) { return unregister_host(address, nullptr); }
};

} // namespace zerohop::accel
