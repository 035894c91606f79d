// The sim driver: a software GPU, so that the whole library runs and is tested where there is none.
//
// Device memory is a memfd. The address the user holds is mapped PROT_NONE and MAP_SHARED, so that CPU code which
// touches "GPU memory" crashes at once; the driver's own copy threads use a private alias of the same pages.
//
// What a caller may rely on, beyond driver.hpp:
// - Device addresses come from a range that is reserved for the life of the driver. A segment that leaves its
//   allocation, or lies in a freed one, fails its event with access_denied/bounds and the whole copy moves no byte.
//   (A host address that is not mapped still crashes: the driver cannot know what host memory there is.) The range
//   belongs to one driver: an address of another SimDriver counts as host memory, and touching it crashes.
// - A copy during which one of its allocations is freed ends with access_denied/bounds; what it moved is undefined.
// - `wait32` notices a write32 of any stream of this driver at once, and a store of a CPU or another process within
//   about 1 ms. Destroying its stream or losing its device ends the wait with device_error/device_lost. Commands
//   behind a wait that was broken off fail likewise: without the wait their order would be a lie.
// - Destroying a stream runs what is queued (emulated delays are cut short) and joins the thread. In a forked child
//   it touches neither the thread nor its locks.
// - `peermem` decides whether a NIC may register its memory: on, the private alias is registered under the device
//   address; off, only the device address itself is offered, which no NIC can pin, as on a machine without the module.
// - Every allocation holds one descriptor (the memfd, kept because exporting to another process needs it), and so
//   does every imported one.
// - Streams for tests are those of `user_stream`; the number that stands for one is its native().
#pragma once

#include "accel/driver.hpp"

#include <memory>
#include <string_view>

namespace zerohop::accel {

enum class SimFault : uint8_t { alloc, copy, lost, link };

class SimDriver : public Driver {
public:
    // The next `count` allocations or queued copies of `device` fail: no_memory/alloc_failed, device_error/copy_failed
    // (and no byte moves), or the next `count` times that it is to reach another process's memory, for want of a peer
    // link (unsupported/no_peer_link). A second call replaces the count; 0 clears it. `lost` fails everything pending
    // and from now on with device_error/device_lost, except free (count ignored). An unknown device is ignored.
    virtual void inject(int device, SimFault fault, int count) = 0;
    // Every copy (all its segments together) takes at least `ns_per_copy` plus its bytes over `bytes_per_us`
    // (0: unlimited). Bytes move as late as that allows, so that whoever reads before the event fires sees old data.
    virtual void delay(int device, uint64_t ns_per_copy, uint64_t bytes_per_us) = 0;
};

// A stream such as users have, for tests of what follows it and of what it waits for; `native` is the number that
// stands for it. Null when the device is lost or there can be no more threads.
[[nodiscard]] std::unique_ptr<Stream> user_stream(Device& device, uint64_t& native);
// Has the stream look as one that is being captured into a graph.
void set_capturing(uint64_t native, bool capturing);

// `devices` devices named "sim:0" and so on; none for a count below 1. Throws std::bad_alloc.
[[nodiscard]] std::shared_ptr<SimDriver> make_sim_driver(int devices, bool peermem = true);

} // namespace zerohop::accel
