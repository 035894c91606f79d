#include "accel/gpu/host_memory.hpp"

#include "accel/gpu/gpu_memory.hpp"
#include "accel/idle_calls.hpp"

#include <chrono>
#include <iterator>
#include <string_view>
#include <utility>

namespace zerohop::accel::gpu {

namespace {

constexpr unsigned kPortableMapped = 1 | 2; // usable in all contexts, and for words that streams write
constexpr unsigned kRegisters = 4;          // of another device, such as the doorbell of a NIC
constexpr unsigned kReadOnly = 8;           // for pages that the process may not write; not every device takes such
constexpr auto kUnregisterTimeout = std::chrono::seconds(1);

} // namespace

HostMemory& HostMemory::of(const GpuApi& api) {
    static auto* const cuda = new HostMemory; // never destroyed, because destructors use it at exit
    static auto* const hip = new HostMemory;
    return std::string_view(api.kind) == "cuda" ? *cuda : *hip;
}

Outcome HostMemory::add(const Devices& devices, void* address, size_t nbytes, HostPages kind) {
    // Registers the range alone, not the pages around it. Neighbours on those pages would be registered in part, and
    // the driver refuses to copy such a range, even for code that knows nothing of this library.
    const auto start = reinterpret_cast<uint64_t>(address);
    std::unique_lock lock(mutex_);
    const auto leaves = [&] {
        const auto found = overlapping(start, nbytes);
        const auto& [first, range] = found != ranges_.end() ? *found : Ranges::value_type{};
        const bool covers = first <= start && start + nbytes <= first + range.nbytes;
        return found != ranges_.end() && (range.unregistering || (range.users == 0 && !covers));
    };
    if (leaves() && !unregistered_.wait_for(lock, kUnregisterTimeout, [&] { return !leaves(); })) {
        return {Status::unsupported, Reason::host_registered};
    }
    const auto known = overlapping(start, nbytes);
    if (known != ranges_.end() && known->first <= start && start + nbytes <= known->first + known->second.nbytes) {
        ++known->second.users;
        registered_.emplace(start, known->first);
        return {};
    }
    DeviceState& any = *devices.front();
    const CurrentContext current(any);
    if (!current.ok()) {
        return current.outcome();
    }
    const Description theirs = describe(devices, start);
    if (theirs.kind == MemoryKind::host && start + nbytes <= theirs.base + theirs.size) {
        registered_.emplace(start, 0);
        return {};
    }
    const unsigned flags = kPortableMapped | (kind == HostPages::registers ? kRegisters : 0);
    GpuResult result = any.api.host_register(address, nbytes, flags);
    if (result != 0 && result != shim::kGpuOutOfMemory && kind == HostPages::read_only) {
        result = any.api.host_register(address, nbytes, kPortableMapped | kReadOnly);
    }
    if (result == shim::kGpuOutOfMemory) {
        return {Status::no_memory, Reason::none}; // the host cannot pin so much
    }
    if (result != 0) {
        return outcome_of(result);
    }
    ranges_.emplace(start, Range{nbytes, 1});
    registered_.emplace(start, start);
    return {};
}

HostMemory::Ranges::iterator HostMemory::overlapping(uint64_t start, size_t nbytes) {
    const auto after = ranges_.upper_bound(start);
    if (after != ranges_.begin()) {
        const auto before = std::prev(after);
        if (start < before->first + before->second.nbytes) {
            return before;
        }
    }
    return after != ranges_.end() && after->first < start + nbytes ? after : ranges_.end();
}

Outcome HostMemory::remove(std::shared_ptr<DeviceState> any, void* address, std::shared_ptr<void> pages) {
    const std::lock_guard lock(mutex_);
    const auto found = registered_.find(reinterpret_cast<uint64_t>(address));
    if (found == registered_.end()) {
        return {Status::access_denied, Reason::bounds};
    }
    const auto range = ranges_.find(found->second);
    registered_.erase(found);
    if (range == ranges_.end() || --range->second.users != 0) {
        return {};
    }
    IdleCalls::of_process().later(
        [this, any = std::move(any), first = range->first, pages = std::move(pages)] { unregister(*any, first); });
    return {};
}

void HostMemory::unregister(DeviceState& any, uint64_t first) {
    {
        const std::lock_guard lock(mutex_);
        const auto range = ranges_.find(first);
        if (range == ranges_.end() || range->second.users != 0) {
            return; // add() has taken it again
        }
        range->second.unregistering = true;
    }
    if (const CurrentContext current(any); current.ok()) { // a lost device has no registrations
        (void)any.api.host_unregister(reinterpret_cast<void*>(first));
    }
    const std::lock_guard lock(mutex_);
    ranges_.erase(first);
    unregistered_.notify_all();
}

} // namespace zerohop::accel::gpu
