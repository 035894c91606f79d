// Defines the contract of an accelerator driver: what the data plane needs from a GPU, and nothing else.
//
// Drivers return errors as values; nothing aborts, exits or throws. Every method may be called from any thread, and
// none waits for work that is queued on streams: drivers leave calls that would wait to IdleCalls. Copies are
// asynchronous: a Stream runs its commands in the order in which they were queued, and different streams run at the
// same time.
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
// Pages of the host: `registers` are those of another device, such as the doorbell of a NIC.
enum class HostPages : uint8_t { writable, read_only, registers };
enum class AllocatedBy : uint8_t { unknown, plain, pool, vmm };

// The result of `describe`. An `allocation_id` is never used twice in a process, so that a cached registration of freed
// memory is recognised even if the address comes back.
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
    std::string identity;    // equal in every process that sees the device, whatever number it has there
    std::string pci_address; // empty if there is none
    std::vector<std::string> capabilities;
    size_t total_bytes = 0;
};

// One piece of a copy. Either address may be a device or a host address; the driver tells them apart.
struct CopySegment {
    uint64_t dst = 0;
    uint64_t src = 0;
    size_t nbytes = 0;
};

// Copies equal pages: number i goes from src_base + src_pages[i] * page_bytes to dst_base + dst_pages[i] * page_bytes.
// Both lists have the same length.
struct PageCopy {
    uint64_t dst_base = 0;
    uint64_t src_base = 0;
    std::span<const uint64_t> dst_pages;
    std::span<const uint64_t> src_pages;
    uint64_t page_bytes = 0;

    [[nodiscard]] CopySegment segment(size_t i) const {
        return {dst_base + dst_pages[i] * page_bytes, src_base + src_pages[i] * page_bytes, page_bytes};
    }
};

// Copies ranges: lengths[i] bytes from src_base + src[i] to dst_base + dst[i], `nbytes` in all. No length is 0, and the
// three lists have the same number of entries.
struct RangeCopy {
    uint64_t dst_base = 0;
    uint64_t src_base = 0;
    std::span<const uint64_t> dst;
    std::span<const uint64_t> src;
    std::span<const uint64_t> lengths;
    uint64_t nbytes = 0;

    [[nodiscard]] CopySegment segment(size_t i) const { return {dst_base + dst[i], src_base + src[i], lengths[i]}; }
};

// A 32-bit word of host or device memory, 4-byte aligned, and the value to be written there.
struct Word {
    uint64_t address = 0;
    uint32_t value = 0;
};

// All that another process needs to map a range of device memory. The receiver of the struct owns the descriptors, and
// must close() them.
struct Exported {
    struct Piece {
        size_t nbytes = 0;  // the mapped size, which may reach past the end of the range
        std::string handle; // in the driver's own form; empty if the descriptor alone is enough
        int fd = -1;
    };
    std::string form;          // how the memory is shared: "cuda-ipc", "cuda-fd", "sim", ...
    std::string device;        // identity of the memory's device
    uint64_t process = 0;      // a number unique to the exporting process
    uint64_t address = 0;      // address of the range in that process
    uint64_t offset = 0;       // offset of the range in the first piece
    size_t nbytes = 0;         // size of the range
    std::vector<Piece> pieces; // they follow one another in memory
};

// A range of another process's device memory, mapped here. The driver keeps the mapping while somebody holds this
// object; drop it only when no copy uses it any more. IdleCalls tells when the range of a dropped one has been
// unmapped.
class Imported {
public:
    virtual ~Imported() = default;
    // Makes the range reachable for copies on streams of the device (by this driver's number), and sets `address` to
    // its start there.
    virtual Outcome open(int device, uint64_t& address) = 0;
};

// One way in which a NIC may register a range of memory.
struct Registrable {
    enum class Kind : uint8_t {
        plain,   // the address itself: host memory, or device memory that NICs know (nvidia_peermem)
        alias,   // another address of the pages, registered under the device address as IO virtual address
        dma_buf, // a descriptor, and an offset in it
    };
    Kind kind = Kind::plain;
    uint64_t address = 0;                               // plain, alias
    std::shared_ptr<const Descriptor> buffer = nullptr; // dma_buf
    uint64_t offset = 0;                                // dma_buf: offset of the range in the buffer
    std::string why_not;                                // if not empty, this way does not exist, for this reason
};

// Holds a stream until the gate is opened, from any thread; the destructor opens it at the latest.
class Gate {
public:
    virtual ~Gate() = default;
    virtual void open() = 0;
};

enum class EventState : uint8_t { pending, done, failed };

// A point in a stream. It is cheap to query, from any thread. `outcome()` is meaningful once `query()` is not pending.
class Event {
public:
    virtual ~Event() = default;
    [[nodiscard]] virtual EventState query() const = 0;
    virtual Outcome outcome() const = 0;
    // Makes another stream of the driver's kind wait, from now on, until this event fires or the gate is opened,
    // whichever comes first; no thread needs to poll for that. The event may fire before work that its own stream
    // queued after it. Returns null if the event has fired, or with the reason in `why`.
    [[nodiscard]] virtual std::shared_ptr<Gate> hold(uint64_t /*native_stream*/, Outcome& why) const {
        why = {Status::unsupported, Reason::none};
        return nullptr;
    }
};

class Stream {
public:
    virtual ~Stream() = default;
    // Queues the copies as one command, which then writes the words of `then`, in their order. Returns the event that
    // fires when all of that has ended. A failed copy fails only its own event, and writes no word; later commands
    // still run unless the device is lost.
    [[nodiscard]] virtual std::shared_ptr<Event> copy(std::span<const CopySegment> segments,
                                                      std::span<const Word> then = {}) = 0;
    [[nodiscard]] virtual std::shared_ptr<Event> copy_pages(const PageCopy& pages, std::span<const Word> then) = 0;
    // True if many small copies take much less time as one command than one by one.
    [[nodiscard]] virtual bool gathers() const { return false; }
    // Like copy(), for non-empty segments, most of them small, of memory that the device reaches by itself.
    [[nodiscard]] virtual std::shared_ptr<Event> copy_many(std::span<const CopySegment> segments,
                                                           std::span<const Word> then) {
        return copy(segments, then);
    }
    // Like copy_many(), of a list that may be very long.
    [[nodiscard]] virtual std::shared_ptr<Event> copy_ranges(const RangeCopy& ranges, std::span<const Word> then) {
        std::vector<CopySegment> segments(ranges.lengths.size());
        for (size_t i = 0; i < segments.size(); ++i) {
            segments[i] = ranges.segment(i);
        }
        return copy_many(segments, then);
    }
    // Writes a 32-bit word (host or device address, 4-byte aligned) after everything queued before it.
    [[nodiscard]] virtual std::shared_ptr<Event> write32(uint64_t address, uint32_t value) = 0;
    // Holds the stream until the word equals `value`.
    [[nodiscard]] virtual std::shared_ptr<Event> wait32(uint64_t address, uint32_t value) = 0;
    // Fires when everything queued so far has ended.
    [[nodiscard]] virtual std::shared_ptr<Event> record() = 0;
    // Makes work that is queued from now on wait for all that is queued by now on another stream of the driver's kind.
    // If that stream is being captured into a graph, returns unsupported/capturing and queues nothing.
    virtual Outcome follow(uint64_t native_stream) = 0;
};

class Device {
public:
    virtual ~Device() = default;
    [[nodiscard]] virtual DeviceFacts facts() const = 0;
    // Allocates memory whose contents are undefined, as on a GPU. `address` is set on success only.
    virtual Outcome alloc(size_t nbytes, uint64_t& address) = 0;
    // Frees memory. To free it with copies in flight is the caller's error, which the engine prevents by its pins. A
    // GPU gets the memory back only once nothing is queued on its streams any more.
    virtual Outcome free(uint64_t address) = 0;
    // Makes a new stream. Returns null, and `why`, if the device is lost or out of memory.
    [[nodiscard]] virtual std::unique_ptr<Stream> stream(Outcome& why) = 0;
    [[nodiscard]] std::unique_ptr<Stream> stream() {
        Outcome unasked;
        return stream(unasked);
    }
    // True if a NIC's writes to the device's memory must be flushed before a thread that is told of them can see them.
    [[nodiscard]] virtual bool needs_flush() const { return false; }
    virtual void flush_inbound() {}
    // Has calls of the vendor's other libraries on this thread mean this device, as long as the object is held, which
    // is to be dropped on this thread. Returns null if the device needs nothing; also, with the reason in `why`, if it
    // is lost.
    [[nodiscard]] virtual std::shared_ptr<const void> enter(Outcome& /*why*/) { return nullptr; }
    // Returns an event that fires when all work has ended that this process has queued on the device by now, on any
    // stream. Throws NativeError unsupported/capturing while one of its streams is being captured into a graph; the
    // call may end that capture.
    [[nodiscard]] virtual std::shared_ptr<Event> mark() = 0;
};

class Driver {
public:
    virtual ~Driver() = default;
    [[nodiscard]] virtual std::string kind() const = 0;
    [[nodiscard]] virtual std::vector<std::shared_ptr<Device>> devices() = 0;
    [[nodiscard]] virtual Description describe(uint64_t address) const = 0;
    // Returns only the `allocation_id`, which takes a fraction of the time; 0 if the driver does not know the address.
    [[nodiscard]] virtual uint64_t allocation_id(uint64_t address) const { return describe(address).allocation_id; }
    // Returns the ways in which a NIC may register [address, address + nbytes) of device memory, best first.
    [[nodiscard]] virtual std::vector<Registrable> registrable(uint64_t address, size_t nbytes) const = 0;
    // Throws NativeError, with the reason in words, if other processes cannot map the memory.
    [[nodiscard]] virtual Exported export_memory(uint64_t address, size_t nbytes) = 0;
    // Throws NativeError. The descriptors stay the caller's.
    [[nodiscard]] virtual std::shared_ptr<Imported> import_memory(const Exported& exported) = 0;
    // The next three take a user's stream, by the vendor library's handle for it, on a device by this driver's number.
    // If the stream is being captured into a graph, they throw NativeError(unsupported, capturing).
    virtual void check_stream(int device, uint64_t native_stream) = 0;
    // Returns an event that fires when all that is queued on the stream by now has ended.
    [[nodiscard]] virtual std::shared_ptr<Event> mark(int device, uint64_t native_stream) = 0;
    // Makes work that is queued on the stream from now on wait until the gate is opened.
    [[nodiscard]] virtual std::shared_ptr<Gate> gate(int device, uint64_t native_stream) = 0;
    // Makes host memory fit for asynchronous copies ("pinned"), and for words that streams write, under the address
    // that it has; the pages must stay until `unregister_host`. Others than writable ones are accepted if the device
    // accepts such pages.
    virtual Outcome register_host(void* address, size_t nbytes, HostPages kind) = 0;
    // Does not wait for the devices, which may still know the memory for a while; IdleCalls tells until when. `pages`
    // stays alive until they no longer do.
    virtual Outcome unregister_host(void* address, std::shared_ptr<void> pages = nullptr) = 0;
};

} // namespace zerohop::accel
