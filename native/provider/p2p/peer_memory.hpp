// A peer's memory that devices of this process read and write by themselves: memory of a device, or host memory that is
// mapped here and known to the devices. close() drains, as for a Mapping.
#pragma once

#include "memory/accelerators.hpp"
#include "memory/region.hpp"
#include "provider/request.hpp"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

namespace zerohop::p2p {

class PeerMemory : public Pinnable {
public:
    // Imports memory of a device. Throws NativeError, with what the driver says.
    PeerMemory(Accelerators& accelerators, const accel::Exported& exported, bool writable);
    // Takes host memory.
    PeerMemory(Accelerators& accelerators, std::unique_ptr<Mapping> mapping);
    // Makes a part of another one, for these rights. It is pinned and closed by itself; the whole is in use until
    // leave_whole(). Throws NativeError if the whole is closed or does not contain the part.
    PeerMemory(const std::shared_ptr<PeerMemory>& whole, uint64_t offset, size_t nbytes, bool writable);

    // Lets a part go of its whole; call it once close() has returned true. Returns false if this is no part.
    bool leave_whole();
    size_t nbytes() const { return nbytes_; }
    uint8_t rights() const { return writable_ ? kRightRead | kRightWrite : kRightRead; }

    // The device of this process that copies between it and some local memory, and where it begins for that device.
    struct Reach {
        int device = -1;
        uint64_t address = 0;
    };
    // Makes `local` fit for the copies. Throws NativeError if no device reaches both.
    [[nodiscard]] Reach reach(Accelerators& accelerators, Region& local);

private:
    [[nodiscard]] Outcome open(Accelerators& accelerators, int device, uint64_t& address);

    Pin<PeerMemory> whole_; // set for a part
    const uint64_t offset_ = 0;
    const size_t nbytes_;
    const bool writable_;
    const bool part_ = false;
    std::string device_;                    // identity of the peer's; empty: host memory
    std::shared_ptr<accel::Driver> driver_; // of the import
    std::shared_ptr<accel::Imported> import_;
    std::shared_ptr<Mapping> mapping_;
    std::unique_ptr<HostRegistration> registration_; // of the mapping
};

struct DeviceAccess final : RemoteAccess {
    DeviceAccess(std::shared_ptr<PeerMemory> remote, PeerMemory::Reach reached)
        : RemoteAccess(remote->nbytes(), remote->rights(), false), memory(std::move(remote)), reach(reached) {}
    Outcome pin(Place& place) const override {
        Pin<PeerMemory> pin = Pin<PeerMemory>::of(memory);
        if (!pin) {
            return {Status::access_denied, Reason::revoked};
        }
        place = {.pin = std::move(pin),
                 .device = reach.device,
                 .address = reach.address,
                 .nbytes = nbytes,
                 .identity = memory.get(),
                 .foreign = true};
        return {};
    }
    std::shared_ptr<const void> pinned() const override { return memory; }
    const std::shared_ptr<PeerMemory> memory;
    const PeerMemory::Reach reach;
};

} // namespace zerohop::p2p
