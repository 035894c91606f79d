#include "memory/region.hpp"

#include "accel/idle_calls.hpp"
#include "base/clock.hpp"
#include "base/guarded.hpp"
#include "base/pages.hpp"
#include "base/status.hpp"
#include "memory/accelerators.hpp"

#include <cerrno>
#include <fcntl.h>
#include <mutex>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>

namespace zerohop {

namespace {

constexpr uint64_t kIdleDeviceNs = 2 * kMillisecond;             // a device that has nothing to do takes less
[[maybe_unused]] constexpr size_t kPopulateBytes = 256ULL << 20; // populating takes some 10 ms

// Takes the page faults of a mapping now, in one call, rather than one by one in the first transfers. An older kernel
// refuses this, and a larger range takes its faults as it goes.
void populate([[maybe_unused]] std::byte* data, [[maybe_unused]] size_t nbytes, [[maybe_unused]] bool writable) {
#ifdef MADV_POPULATE_WRITE
    const size_t lead = reinterpret_cast<uintptr_t>(data) % page_bytes();
    if (nbytes != 0 && nbytes <= kPopulateBytes) {
        madvise(data - lead, lead + nbytes, writable ? MADV_POPULATE_WRITE : MADV_POPULATE_READ);
    }
#endif
}

} // namespace

std::shared_ptr<Region> Region::wrap(uint64_t address, size_t nbytes, int device, int fd, uint64_t fd_offset,
                                     bool readonly, BlockWatch block) {
    std::shared_ptr<Region> region(new Region, Orphan{});
    region->block_ = block;
    region->address_ = address;
    region->nbytes_ = nbytes;
    region->device_ = device;
    region->readonly_ = readonly;
    if (fd >= 0) {
        region->backing_ = Descriptor::duplicate(fd);
        region->fd_offset_ = fd_offset;
    }
    return region;
}

std::shared_ptr<Region> Region::allocate_host(size_t nbytes) {
    std::shared_ptr<Region> region(new Region, Orphan{});
    const size_t mapped = round_to_pages(nbytes == 0 ? 1 : nbytes);
    // Sealed, so that no holder of the descriptor can take pages away under a peer's copy.
    region->backing_ = make_memfd("zerohop-alloc", mapped, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    region->pages_ = map_shared(region->backing_.get(), mapped, PROT_READ | PROT_WRITE,
                                "shared memory of " + std::to_string(nbytes) + " bytes");
    region->address_ = reinterpret_cast<uint64_t>(region->pages_.get());
    region->nbytes_ = nbytes;
    return region;
}

std::shared_ptr<Region> Region::allocate_device(std::shared_ptr<accel::Device> device, int index, size_t nbytes) {
    std::shared_ptr<Region> region(new Region, Orphan{});
    uint64_t address = 0;
    const Outcome outcome = device->alloc(nbytes, address);
    if (!outcome.ok()) {
        throw NativeError(outcome, "cannot allocate " + std::to_string(nbytes) + " bytes on " + device->facts().name);
    }
    region->owner_ = std::move(device);
    region->address_ = address;
    region->nbytes_ = nbytes;
    region->device_ = index;
    return region;
}

std::shared_ptr<Region> Region::part(const std::shared_ptr<Region>& whole, uint64_t offset, size_t nbytes) {
    std::shared_ptr<Region> region(new Region, Orphan{});
    if (!region->whole_.pin(whole)) {
        throw NativeError(Status::closed, Reason::none, "what it would be part of is closed");
    }
    region->address_ = whole->address_ + offset;
    region->nbytes_ = nbytes;
    region->device_ = whole->device_;
    region->readonly_ = whole->readonly_;
    region->fd_offset_ = whole->fd_offset_ + offset;
    return region;
}

std::shared_ptr<Registration> Region::registration(int domain, uint8_t rights, const MakeRegistration& make) {
    // The lock is held while the registration is made, so that nobody makes a second one. The data plane never waits
    // for it.
    const std::lock_guard lock(registrations_mutex_);
    std::erase_if(registrations_, [](const Registered& each) { return each.registration.expired(); });
    for (const Registered& each : registrations_) {
        if (each.domain == domain && each.rights == rights) {
            if (std::shared_ptr<Registration> found = each.registration.lock()) {
                return found;
            }
        }
    }
    std::shared_ptr<Registration> made = make();
    registrations_.push_back({domain, rights, made});
    if (rights == 0) {
        own_registrations_.push_back(made);
    }
    return made;
}

void Region::register_with_devices(Accelerators& accelerators) {
    if (whole_) {
        whole_->register_with_devices(accelerators);
        return;
    }
    const std::lock_guard lock(registrations_mutex_);
    if (closed()) {
        throw NativeError(Status::closed, Reason::none, "the memory is closed");
    }
    if (!device_registration_) {
        device_registration_ = std::make_shared<HostRegistration>(
            accelerators.in_use(), host(), nbytes_,
            readonly_ ? accel::HostPages::read_only : accel::HostPages::writable, pages_);
        known_to_devices_.store(true, std::memory_order_release);
    }
}

bool Region::deregister(bool wait) {
    accel::IdleCalls& calls = accel::IdleCalls::of_process();
    std::vector<std::shared_ptr<Registration>> ended; // destroyed outside the lock
    bool first = false;
    uint64_t release = 0;
    {
        const std::lock_guard lock(registrations_mutex_);
        ended.swap(own_registrations_);
        first = device_registration_ != nullptr;
        if (first) {
            device_registration_.reset();
            known_to_devices_.store(false, std::memory_order_release);
            release_call_ = calls.last();
        }
        release = release_call_;
    }
    if (pages_ != nullptr) {
        return true;
    }
    if (wait) {
        calls.wait(release);
    }
    return calls.done(release, first ? kIdleDeviceNs : 0);
}

Region::~Region() {
    own_registrations_.clear();
    if (owner_) {
        // A lost device has nothing left to free, and a destructor can report nothing.
        [[maybe_unused]] const Outcome outcome = owner_->free(address_);
    }
}

Mapping::Mapping(int fd, uint64_t offset, size_t nbytes, bool writable) : nbytes_(nbytes), writable_(writable) {
    install_fault_handler();
    struct stat info{};
    // The peer says where its memory lies; a touch past the end of the file would be a bus error.
    if (fstat(fd, &info) != 0) {
        raise_if_refused("cannot look at a peer's memory (fstat)", errno);
        raise_errno("cannot look at a peer's memory", errno);
    }
    const auto there = static_cast<uint64_t>(info.st_size);
    if (offset > there || nbytes > there - offset) {
        throw NativeError(Status::protocol, Reason::malformed, "a peer's memory is smaller than it says");
    }
    const uint64_t aligned = offset / page_bytes() * page_bytes();
    const size_t lead = offset - aligned;
    const size_t mapped = round_to_pages(lead + (nbytes == 0 ? 1 : nbytes));
    pages_ = map_shared(fd, mapped, writable ? PROT_READ | PROT_WRITE : PROT_READ,
                        "a peer's memory of " + std::to_string(nbytes) + " bytes", aligned);
    data_ = static_cast<std::byte*>(pages_.get()) + lead;
}

Mapping::Mapping(const std::shared_ptr<Mapping>& whole, uint64_t offset, size_t nbytes, bool writable)
    : whole_(Pin<Mapping>::of(whole)), nbytes_(nbytes), writable_(writable && whole->writable_) {
    if (!whole_) {
        throw NativeError(Status::access_denied, Reason::revoked, "");
    }
    if (offset > whole_->nbytes_ || nbytes > whole_->nbytes_ - offset) {
        throw NativeError(Status::protocol, Reason::malformed, "a peer's memory is smaller than it says");
    }
    data_ = whole_->data_ + offset;
    populate(data_, nbytes, writable_);
}

bool Mapping::unmap() {
    if (!close()) {
        return false;
    }
    whole_.reset();
    pages_.reset();
    return true;
}

} // namespace zerohop
