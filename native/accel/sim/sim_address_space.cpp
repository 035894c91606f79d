#include "accel/sim/sim_address_space.hpp"

#include "base/pages.hpp"

#include <iterator>
#include <new>
#include <sys/mman.h>

namespace zerohop::accel::sim {

namespace {

// Reserving costs no memory, so that one arena is enough for nearly every process. It is smaller if RLIMIT_AS demands
// it.
constexpr size_t kArenaBytes = size_t{64} << 30;

void* reserve(void* at, size_t nbytes, int flags) {
    return ::mmap(at, nbytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags, -1, 0);
}

} // namespace

AddressSpace::~AddressSpace() {
    for (const Extent& arena : arenas_) {
        ::munmap(pointer(arena.address), arena.nbytes);
    }
}

bool AddressSpace::grow(size_t nbytes) {
    arenas_.reserve(arenas_.size() + 1); // throws before anything is mapped
    size_t size = nbytes > kArenaBytes ? nbytes : kArenaBytes;
    void* at = reserve(nullptr, size, 0);
    if (at == MAP_FAILED && size > nbytes) {
        size = nbytes;
        at = reserve(nullptr, size, 0);
    }
    if (at == MAP_FAILED) {
        return false;
    }
    const auto address = reinterpret_cast<uint64_t>(at);
    arenas_.push_back({address, size});
    add_vacant(address, size);
    return true;
}

uint64_t AddressSpace::map(int fd, size_t nbytes) {
    // One page lies between neighbours, so that the address past the end of one allocation is never inside another.
    const size_t wanted = nbytes + page_bytes();
    for (int attempt = 0; attempt < 2; ++attempt) {
        for (auto it = vacant_.begin(); it != vacant_.end(); ++it) {
            const auto [address, size] = *it;
            if (size < wanted) {
                continue;
            }
            if (::mmap(pointer(address), nbytes, PROT_NONE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
                // The kernel may have removed the reservation before it failed. If it cannot be restored, the range is
                // not used again.
                if (reserve(pointer(address), nbytes, MAP_FIXED) == MAP_FAILED) {
                    vacant_.erase(it);
                }
                return 0;
            }
            // The node is moved, not made anew, so that taking a range cannot fail for lack of memory.
            auto node = vacant_.extract(it);
            if (size > wanted) {
                node.key() = address + wanted;
                node.mapped() = size - wanted;
                vacant_.insert(std::move(node));
            }
            return address;
        }
        if (attempt == 0 && !grow(wanted)) {
            return 0;
        }
    }
    return 0;
}

void AddressSpace::unmap(uint64_t address, size_t nbytes) noexcept {
    if (reserve(pointer(address), nbytes, MAP_FIXED) == MAP_FAILED) {
        return; // the range is still mapped or reserved, and ends with its arena
    }
    try {
        add_vacant(address, nbytes + page_bytes());
    } catch (const std::bad_alloc&) {
        return; // the addresses are never used again; nothing else is lost
    }
}

void AddressSpace::add_vacant(uint64_t address, size_t nbytes) {
    auto next = vacant_.upper_bound(address);
    if (next != vacant_.begin()) {
        const auto before = std::prev(next);
        if (before->first + before->second == address) {
            before->second += nbytes;
            if (next != vacant_.end() && before->first + before->second == next->first) {
                before->second += next->second;
                vacant_.erase(next);
            }
            return;
        }
    }
    if (next != vacant_.end() && address + nbytes == next->first) {
        auto node = vacant_.extract(next);
        node.key() = address;
        node.mapped() += nbytes;
        vacant_.insert(std::move(node));
        return;
    }
    vacant_.emplace(address, nbytes);
}

} // namespace zerohop::accel::sim
