// A peer's memory that devices here read and write by themselves: memory of a device, or host memory that is mapped
// here and known to the devices. close() drains, as for a Mapping.
#pragma once

#include "memory/accelerators.hpp"
#include "memory/region.hpp"

#include <cstdint>
#include <memory>

namespace zerohop::p2p {

class PeerMemory : public Pinnable {
public:
    // Memory of a device. Throws NativeError, with what the driver says.
    PeerMemory(Accelerators& accelerators, const accel::Exported& exported, bool writable);
    // Host memory.
    PeerMemory(Accelerators& accelerators, std::unique_ptr<Mapping> mapping);

    size_t nbytes() const { return nbytes_; }
    bool writable() const { return writable_; }

    // Which device of ours copies between it and `local`, and where it begins for that one. Makes `local` fit for it.
    // Throws NativeError: no device here reaches both.
    struct Reach {
        int device = -1;
        uint64_t address = 0;
    };
    [[nodiscard]] Reach reach(Accelerators& accelerators, Region& local);

private:
    [[nodiscard]] Outcome open(Accelerators& accelerators, int device, uint64_t& address);

    const size_t nbytes_;
    const bool writable_;
    std::string device_;                    // identity of the peer's; empty: host memory
    std::shared_ptr<accel::Driver> driver_; // of the import
    std::shared_ptr<accel::Imported> import_;
    std::shared_ptr<Mapping> mapping_;
    std::unique_ptr<HostRegistration> registration_; // of the mapping
};

} // namespace zerohop::p2p
