#include "memory/grants.hpp"

#include "base/pages.hpp"
#include "base/status.hpp"

#include <fcntl.h>
#include <sys/mman.h>

namespace zerohop {

namespace {

// The state of a share that is revoked, and that the peer has not given back yet.
uint64_t kept_state(const GrantKey& key) {
    return ~key.taken;
}

std::shared_ptr<void> map_table(int fd, size_t nbytes) {
    // In a file that can shrink, or that is shorter, an access would be a bus error.
    if (sealed_bytes(fd) != nbytes) {
        throw NativeError(Status::protocol, Reason::malformed, "the peer's table of grants is not one");
    }
    return map_shared(fd, nbytes, PROT_READ | PROT_WRITE, "the table of grants");
}

} // namespace

Grants::Grants()
    : fd_(make_memfd("zerohop-grants", kBytes, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)),
      pages_(map_table(fd_.get(), kBytes)), places_(static_cast<Place*>(pages_.get())) {}

Grants::Grants(int fd) : pages_(map_table(fd, kBytes)), places_(static_cast<Place*>(pages_.get())) {}

bool Grants::grant(ShareId id, const GrantKey& key, const Granted& granted) {
    Place& found = place(id);
    // The states must differ. With random keys they do, but for one in 2^62.
    if (key.open == key.taken || key.open == kept_state(key) || kept_state(key) == 0) {
        return false;
    }
    for (const auto& state : found.states) {
        // A peer that has not given back an earlier share of this index holds the place.
        if (state.load(std::memory_order_acquire) != 0) {
            return false;
        }
    }
    found.extent.store(granted.extent, std::memory_order_relaxed);
    found.address.store(granted.address, std::memory_order_relaxed);
    found.nbytes.store(granted.nbytes, std::memory_order_relaxed);
    found.rights.store(granted.rights, std::memory_order_relaxed);
    for (auto& state : found.states) {
        state.store(key.open, std::memory_order_release);
    }
    return true;
}

std::array<bool, Grants::kWays> Grants::revoke(ShareId id, const GrantKey& key) {
    std::array<bool, kWays> has{};
    Place& found = place(id);
    for (size_t way = 0; way < kWays; ++way) {
        std::atomic<uint64_t>& state = found.states[way];
        const uint64_t before = state.load(std::memory_order_acquire);
        if (before != key.open && before != key.taken) {
            has[way] = before == kept_state(key);
            continue; // the place is another share's
        }
        // One step, and no loop: a peer that takes the share and gives it back without end holds nobody up.
        has[way] = state.exchange(kept_state(key), std::memory_order_acq_rel) == key.taken;
        if (!has[way]) {
            state.store(0, std::memory_order_release);
        }
    }
    return has;
}

bool Grants::kept(ShareId id, const GrantKey& key, size_t way) const {
    const Place& found = place(id);
    return found.states.at(way).load(std::memory_order_acquire) == kept_state(key);
}

std::optional<Granted> Grants::take(ShareId id, const GrantKey& key, size_t way) {
    Place& found = place(id);
    if (found.states.at(way).load(std::memory_order_acquire) != key.open) {
        return std::nullopt;
    }
    const Granted granted{
        found.extent.load(std::memory_order_relaxed),
        found.address.load(std::memory_order_relaxed),
        found.nbytes.load(std::memory_order_relaxed),
        found.rights.load(std::memory_order_relaxed),
    };
    // The numbers belong to this share: while a state of the place is this key's, its owner writes no others there.
    uint64_t open = key.open;
    if (!found.states.at(way).compare_exchange_strong(open, key.taken, std::memory_order_acq_rel)) {
        return std::nullopt;
    }
    return granted;
}

void Grants::give_back(ShareId id, const GrantKey& key, size_t way) {
    Place& found = place(id);
    uint64_t taken = key.taken;
    if (!found.states.at(way).compare_exchange_strong(taken, key.open, std::memory_order_acq_rel)) {
        uint64_t kept = kept_state(key);
        found.states.at(way).compare_exchange_strong(kept, 0, std::memory_order_acq_rel);
    }
}

} // namespace zerohop
