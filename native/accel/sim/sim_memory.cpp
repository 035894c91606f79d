#include "accel/sim/sim_memory.hpp"

#include "base/guarded.hpp"
#include "base/pages.hpp"

#include <algorithm>
#include <fcntl.h>
#include <iterator>
#include <mutex>
#include <new>
#include <sys/mman.h>
#include <unistd.h>

namespace zerohop::accel::sim {

namespace {

constexpr Outcome kOutOfBounds{Status::access_denied, Reason::bounds};

// Ids are unique in the process, not only in a driver: an id that a second driver used again would revive a dead
// registration.
uint64_t next_allocation_id() {
    static std::atomic<uint64_t> next{1};
    return next.fetch_add(1, std::memory_order_relaxed);
}

// Tells whether every page can be read. A driver of GPUs pins the pages, and refuses a range with a hole.
bool all_there(uint64_t address, size_t nbytes) {
    install_fault_handler();
    const size_t page = page_bytes();
    for (uint64_t at = address; at < address + nbytes; at = (at / page + 1) * page) {
        std::byte read{};
        if (copy_guarded(&read, reinterpret_cast<const void*>(at), sizeof read) != Gone::nothing) {
            return false;
        }
    }
    return true;
}

} // namespace

bool any_freed(const Pins& pins) {
    return std::any_of(pins.begin(), pins.end(),
                       [](const auto& pin) { return pin->freed.load(std::memory_order_acquire); });
}

SimMemory::SimMemory(int devices)
    : used_(static_cast<size_t>(std::max(devices, 0)), 0),
      total_(static_cast<size_t>(::sysconf(_SC_PHYS_PAGES)) * page_bytes()) {}

Outcome SimMemory::alloc(int device, size_t nbytes, uint64_t& address) {
    if (nbytes == 0) {
        return kOutOfBounds;
    }
    if (nbytes > total_) {
        return {Status::no_memory, Reason::alloc_failed};
    }
    // Sealed, so that no process that gets the descriptor can turn our mappings into a SIGBUS.
    constexpr unsigned kSealed = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    const size_t mapped = round_to_pages(nbytes);
    return place(device, nbytes, mapped, address, [&] { return make_memfd("zerohop-sim", mapped, kSealed); });
}

// Makes an allocation over the first bytes of a file, and gives it an address and an id.
template <class Open>
Outcome SimMemory::place(int device, size_t nbytes, size_t mapped, uint64_t& address, Open&& open) try {
    auto made = std::make_shared<Allocation>();
    made->nbytes = nbytes;
    made->mapped = mapped;
    made->id = next_allocation_id();
    made->device = device;
    made->fd = open();
    made->alias = map_shared(made->fd.get(), mapped, PROT_READ | PROT_WRITE, "memory of a simulated device");
    // The registry's node is made before the address is taken, so that nothing has to be undone.
    decltype(allocations_) fresh;
    auto node = fresh.extract(fresh.emplace(0, made).first);

    const std::unique_lock lock(mutex_);
    size_t* const used = device < 0 ? nullptr : &used_[static_cast<size_t>(device)];
    if (used != nullptr && mapped > total_ - std::min(*used, total_)) {
        return {Status::no_memory, Reason::alloc_failed};
    }
    const uint64_t base = space_.map(made->fd.get(), mapped);
    if (base == 0) {
        return {Status::no_memory, Reason::out_of_shared_memory};
    }
    made->base = base;
    node.key() = base;
    allocations_.insert(std::move(node));
    if (used != nullptr) {
        *used += mapped;
    }
    address = base;
    return {};
} catch (const NativeError& error) {
    if (error.outcome().reason == Reason::not_allowed) {
        throw; // only its text names the call that the system refuses
    }
    return error.outcome();
} catch (const std::bad_alloc&) {
    return {Status::no_memory, Reason::alloc_failed};
}

Outcome SimMemory::export_fd(uint64_t address, size_t nbytes, int& fd, size_t& mapped, uint64_t& offset) const {
    const std::shared_lock lock(mutex_);
    const std::shared_ptr<Allocation> found = find(address);
    if (!found || found->device < 0 || !found->holds(address, nbytes)) {
        return kOutOfBounds;
    }
    fd = ::fcntl(found->fd.get(), F_DUPFD_CLOEXEC, 0);
    mapped = found->mapped;
    offset = address - found->base;
    return fd < 0 ? Outcome{Status::no_memory, Reason::out_of_descriptors} : Outcome{};
}

Outcome SimMemory::import_fd(int fd, size_t mapped, uint64_t& address) {
    if (mapped == 0 || sealed_bytes(fd) < mapped) {
        return {Status::protocol, Reason::malformed};
    }
    return place(kForeign, mapped, mapped, address, [&] { return Descriptor::duplicate(fd); });
}

Outcome SimMemory::free(int device, uint64_t address) {
    std::shared_ptr<Allocation> dropped; // destroyed outside the lock, because releasing many pages takes time
    const std::unique_lock lock(mutex_);
    const auto it = allocations_.find(address);
    if (it == allocations_.end() || it->second->device != device) {
        return kOutOfBounds;
    }
    dropped = std::move(it->second);
    allocations_.erase(it);
    dropped->freed.store(true, std::memory_order_release);
    if (device >= 0) {
        used_[static_cast<size_t>(device)] -= dropped->mapped;
    }
    space_.unmap(address, dropped->mapped);
    return {};
}

std::shared_ptr<Allocation> SimMemory::find(uint64_t address) const {
    const auto after = allocations_.upper_bound(address);
    return after == allocations_.begin() ? nullptr : std::prev(after)->second;
}

uint64_t SimMemory::alias(uint64_t address, size_t nbytes) const {
    const std::shared_lock lock(mutex_);
    const std::shared_ptr<Allocation> found = find(address);
    return found && found->holds(address, nbytes) ? found->alias_of(address) : 0;
}

Description SimMemory::describe(uint64_t address) const {
    const std::shared_lock lock(mutex_);
    if (const auto found = find(address); found && found->device >= 0 && found->holds(address, 1)) {
        return {MemoryKind::device, AllocatedBy::plain, found->device, found->base, found->nbytes, found->id};
    }
    if (const auto after = host_.upper_bound(address); after != host_.begin()) {
        const auto [start, nbytes] = *std::prev(after);
        if (address - start < nbytes) {
            return {MemoryKind::host, AllocatedBy::unknown, -1, start, nbytes, 0};
        }
    }
    return {};
}

Outcome SimMemory::register_host(uint64_t address, size_t nbytes) {
    if (address < page_bytes() || nbytes == 0 || address + nbytes < address) {
        return kOutOfBounds;
    }
    {
        const std::shared_lock lock(mutex_);
        if (space_.touches(address, nbytes)) {
            return kOutOfBounds;
        }
    }
    if (!all_there(address, nbytes)) {
        return kLocalMemoryGone;
    }
    const std::unique_lock lock(mutex_);
    const auto after = host_.upper_bound(address);
    const bool into_next = after != host_.end() && after->first - address < nbytes;
    const bool in_previous = after != host_.begin() && address - std::prev(after)->first < std::prev(after)->second;
    if (into_next || in_previous) {
        return {Status::unsupported, Reason::host_registered};
    }
    try {
        host_.emplace_hint(after, address, nbytes);
    } catch (const std::bad_alloc&) {
        return {Status::no_memory, Reason::alloc_failed};
    }
    return {};
}

Outcome SimMemory::unregister_host(uint64_t address) {
    const std::unique_lock lock(mutex_);
    return host_.erase(address) == 1 ? Outcome{} : kOutOfBounds;
}

bool SimMemory::locate(uint64_t& address, size_t nbytes, Pins& pins) const {
    if (address < page_bytes() || address + nbytes < address) {
        return false; // null, nearly null, or past the end of the address space
    }
    if (!space_.touches(address, nbytes)) {
        return true; // host memory
    }
    // A page list has thousands of segments in two allocations, so the last two pins nearly always match. They are
    // valid, because they were found for this command under the lock that is still held.
    const size_t newest = pins.size();
    for (size_t back = 1; back <= 2 && back <= newest; ++back) {
        if (const Allocation& pin = *pins[newest - back]; pin.holds(address, nbytes)) {
            address = pin.alias_of(address);
            return true;
        }
    }
    auto found = find(address);
    if (!found || !found->holds(address, nbytes)) {
        return false;
    }
    address = found->alias_of(address);
    pins.push_back(std::move(found));
    return true;
}

Outcome SimMemory::resolve(std::span<CopySegment> segments, Pins& pins) const {
    const std::shared_lock lock(mutex_);
    for (CopySegment& segment : segments) {
        if (segment.nbytes != 0 &&
            !(locate(segment.src, segment.nbytes, pins) && locate(segment.dst, segment.nbytes, pins))) {
            return kOutOfBounds;
        }
    }
    return {};
}

Outcome SimMemory::resolve_word(uint64_t& address, Pins& pins) const {
    if (address % sizeof(uint32_t) != 0) {
        return kOutOfBounds;
    }
    const std::shared_lock lock(mutex_);
    return locate(address, sizeof(uint32_t), pins) ? Outcome{} : kOutOfBounds;
}

} // namespace zerohop::accel::sim
