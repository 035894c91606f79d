// Grants shares to a peer of this host in memory that both map, so that its first use of one asks nobody.
//
// An owner makes one Grants for each peer and writes each of its shares there. The peer takes a share by one atomic
// step, and gives it back by another. The owner's revocation is one as well, and tells whether the peer has the share.
// So no share is taken once its revocation has begun, and none that is taken goes unnoticed.
//
// Two secrets of a share, both made of its capability, stand for its states. A peer that sees the table alone knows
// one of them, and can neither take a share nor pass for somebody who has.
#pragma once

#include "base/descriptor.hpp"
#include "memory/share.hpp"

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

namespace zerohop {

// Where a share lies: the owner's number of the memory that peers map for it, its address at the owner, and its rights.
struct Granted {
    uint64_t extent = 0;
    uint64_t address = 0;
    uint64_t nbytes = 0;
    uint64_t rights = 0;
};

// The two secrets, neither of which may be 0. Everybody who maps the table sees `open`; both sides make `taken` of the
// capability.
struct GrantKey {
    uint64_t open = 0;
    uint64_t taken = 0;
};

class Grants {
public:
    // The number of places. Where two shares have the same one, the second is not granted, and peers ask for it.
    static constexpr size_t kPlaces = 1 << 16;
    // The ways to reach a share, each of which is taken by itself: its memory is mapped, or reached by devices.
    static constexpr size_t kWays = 2;

    // Makes a table. Throws NativeError if the system gives no memory for it.
    Grants();
    // Maps the table of a peer. Throws NativeError if the descriptor is not that of one.
    explicit Grants(int fd);

    int fd() const { return fd_.get(); }
    // Forgets the descriptor of a table that was made here, once the peer has one.
    void close_fd() { fd_ = Descriptor(); }

    // The owner's: lets the peer take a share. Returns false, and grants nothing, if its place is in use.
    bool grant(ShareId id, const GrantKey& key, const Granted& granted);
    // The owner's: lets the peer take the share no more. Tells, for each way, if it has the share.
    std::array<bool, kWays> revoke(ShareId id, const GrantKey& key);
    // The owner's: tells if the peer has a revoked share still.
    [[nodiscard]] bool kept(ShareId id, const GrantKey& key, size_t way) const;

    // The peer's: takes a share; nothing if it is not granted, or if this side has it already.
    [[nodiscard]] std::optional<Granted> take(ShareId id, const GrantKey& key, size_t way);
    // The peer's: gives back a share that it took.
    void give_back(ShareId id, const GrantKey& key, size_t way);

private:
    // Shared between processes, so its layout is fixed. A place is in use while one of its states is not 0.
    struct alignas(64) Place {
        std::array<std::atomic<uint64_t>, kWays> states;
        std::atomic<uint64_t> extent;
        std::atomic<uint64_t> address;
        std::atomic<uint64_t> nbytes;
        std::atomic<uint64_t> rights;
    };
    static constexpr size_t kBytes = kPlaces * sizeof(Place);
    static_assert(std::atomic<uint64_t>::is_always_lock_free);

    Place& place(ShareId id) const { return places_[id.index % kPlaces]; }

    Descriptor fd_;
    std::shared_ptr<void> pages_;
    Place* places_;
};

} // namespace zerohop
