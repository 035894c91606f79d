// The sim driver: a software GPU that lets the whole library run and be tested without a GPU.
//
// Device memory is a memfd. The address that the user holds is mapped PROT_NONE and MAP_SHARED, so that CPU code that
// touches "GPU memory" crashes at once; the driver's own copy threads use a private alias of the pages.
//
// What a caller may rely on, beyond driver.hpp:
// - Device addresses come from a range that is reserved for the life of the driver. A segment that leaves its
//   allocation, or lies in a freed one, fails its event with access_denied/bounds, and the whole copy moves no byte. (A
//   host address that is not mapped still crashes: the driver cannot know what host memory there is.) The range belongs
//   to one driver: an address of another SimDriver counts as host memory, and touching it crashes.
// - A copy during which one of its allocations is freed ends with access_denied/bounds; what it moved is undefined.
// - `wait32` notices a write32 of any stream of this driver at once, and a store of a CPU or another process within
//   about 1 ms. Destroying its stream or losing its device ends the wait with device_error/device_lost. Commands behind
//   a wait that was broken off fail likewise, because they relied on its order.
// - Destroying a stream runs what is queued (emulated delays are cut short) and joins the thread. In a forked child it
//   touches neither the thread nor its locks.
// - `peermem` decides whether a NIC may register the memory. On: the private alias is registered under the device
//   address. Off: only the device address itself is offered, which no NIC can pin, as on a machine without the module.
// - Every allocation, own or imported, holds one descriptor: the memfd, which exporting to another process needs.
// - Streams for tests come from `user_stream`; native() is the number of such a stream.
#pragma once

#include "accel/driver.hpp"

#include <memory>

namespace zerohop::accel {

enum class SimFault : uint8_t { alloc, copy, link, lost };

class SimDriver : public Driver {
public:
    // Injects faults. alloc, copy: the next `count` allocations or queued copies of `device` fail with
    // no_memory/alloc_failed or device_error/copy_failed (and no byte moves). link: the next `count` times that the
    // device is to reach another process's memory fail with unsupported/no_peer_link. A second call replaces the count;
    // 0 clears it. lost: everything pending, and from now on, fails with device_error/device_lost, except free (count
    // is ignored). An unknown device is ignored.
    virtual void inject(int device, SimFault fault, int count) = 0;
    // Makes every copy (all its segments together) take at least `ns_per_copy` plus its bytes over `bytes_per_us` (0:
    // unlimited). Bytes move as late as that allows, so that a reader that does not wait for the event sees old data.
    virtual void delay(int device, uint64_t ns_per_copy, uint64_t bytes_per_us) = 0;
};

// Makes a stream as users have them, for tests of work that follows it or that it waits for; `native` is its number.
// Null if the device is lost or there can be no more threads.
[[nodiscard]] std::unique_ptr<Stream> user_stream(Device& device, uint64_t& native);
// Makes the stream look as if it were being captured into a graph.
void set_capturing(uint64_t native, bool capturing);

// Makes a driver with `devices` devices, "sim:0" and so on; none for a count below 1. Throws std::bad_alloc.
[[nodiscard]] std::shared_ptr<SimDriver> make_sim_driver(int devices, bool peermem = true);

} // namespace zerohop::accel
