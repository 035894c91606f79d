#include "provider/p2p/peer_memory.hpp"

#include <string>

namespace zerohop::p2p {

namespace {

// The driver that takes what another of its kind exports: their forms begin with the kind.
std::shared_ptr<accel::Driver> driver_for(Accelerators& accelerators, const std::string& form) {
    for (const auto& driver : accelerators.in_use()) {
        if (form.starts_with(driver->kind())) {
            return driver;
        }
    }
    throw NativeError(Status::unsupported, Reason::no_peer_link,
                      "this process has no device that could reach memory shared as " + form);
}

} // namespace

PeerMemory::PeerMemory(Accelerators& accelerators, const accel::Exported& exported, bool writable)
    : nbytes_(exported.nbytes), writable_(writable), device_(exported.device),
      driver_(driver_for(accelerators, exported.form)), import_(driver_->import_memory(exported)) {}

PeerMemory::PeerMemory(Accelerators& accelerators, std::unique_ptr<Mapping> mapping)
    : nbytes_(mapping->nbytes()), writable_(mapping->writable()), mapping_(std::move(mapping)),
      registration_(std::make_unique<HostRegistration>(
          accelerators.in_use(), mapping_->data(), mapping_->nbytes(),
          mapping_->writable() ? accel::HostPages::writable : accel::HostPages::read_only, mapping_)) {}

PeerMemory::PeerMemory(const std::shared_ptr<PeerMemory>& whole, uint64_t offset, size_t nbytes, bool writable)
    : whole_(Pin<PeerMemory>::of(whole)), offset_(offset), nbytes_(nbytes), writable_(writable && whole->writable_),
      part_(true), device_(whole->device_) {
    if (!whole_) {
        throw NativeError(Status::access_denied, Reason::revoked, "");
    }
    if (offset > whole_->nbytes_ || nbytes > whole_->nbytes_ - offset) {
        throw NativeError(Status::protocol, Reason::malformed, "a peer's memory is smaller than it says");
    }
}

bool PeerMemory::leave_whole() {
    whole_.reset();
    return part_;
}

Outcome PeerMemory::open(Accelerators& accelerators, int device, uint64_t& address) {
    if (mapping_) {
        address = reinterpret_cast<uint64_t>(mapping_->data());
        return {};
    }
    const auto& [driver, index] = accelerators.place(device);
    if (driver != driver_) {
        return {Status::unsupported, Reason::no_peer_link};
    }
    return import_->open(index, address);
}

PeerMemory::Reach PeerMemory::reach(Accelerators& accelerators, Region& local) {
    if (whole_) {
        Reach found = whole_->reach(accelerators, local);
        found.address += offset_;
        return found;
    }
    Reach found;
    Outcome outcome{Status::unsupported, Reason::no_peer_link};
    if (!local.is_host()) {
        found.device = local.device();
        outcome = open(accelerators, found.device, found.address);
    } else {
        local.register_with_devices(accelerators);
        // The device that has the memory copies fastest; any other goes over its link to that one, too.
        const auto& devices = accelerators.devices();
        const auto is_its_own = [&](size_t device) { return devices[device]->facts().identity == device_; };
        for (const bool own : {true, false}) {
            for (size_t device = 0; device < devices.size() && !outcome.ok(); ++device) {
                if (is_its_own(device) == own) {
                    found.device = static_cast<int>(device);
                    outcome = open(accelerators, found.device, found.address);
                }
            }
        }
    }
    if (!outcome.ok()) {
        throw NativeError(outcome, "");
    }
    return found;
}

} // namespace zerohop::p2p
