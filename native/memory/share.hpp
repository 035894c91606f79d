// Keeps the shares of this process's memory: what a peer may reach, checked at the target before any byte moves.
#pragma once

#include "base/status.hpp"
#include "base/sync.hpp"
#include "memory/region.hpp"

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <queue>
#include <utility>
#include <vector>

namespace zerohop {

using Capability = std::array<uint8_t, 16>;

inline constexpr uint8_t kRightRead = 1;
inline constexpr uint8_t kRightWrite = 2;

struct ShareId {
    uint32_t index = 0;
    uint32_t generation = 0;

    uint64_t packed() const { return static_cast<uint64_t>(index) << 32 | generation; }
    static ShareId unpack(uint64_t id) { return {static_cast<uint32_t>(id >> 32), static_cast<uint32_t>(id)}; }
};

// Holds what one handle lets peers reach.
struct Share {
    std::shared_ptr<Region> region;
    uint64_t offset = 0; // into the region
    uint64_t nbytes = 0;
    uint8_t rights = 0;
    Capability capability{};
    // Set once; every thread that moves bytes checks it before each piece.
    std::atomic<bool> revoked{false};
    // Copies that a device still runs for this share; revocation waits for them.
    std::atomic<uint64_t> device_copies{0};

    // Returns the share's registration with a domain, made if there is none; null if the share is revoked.
    [[nodiscard]] std::shared_ptr<Registration> registration(int domain, const Region::MakeRegistration& make);
    // Ends the registrations, and with them all access of NICs under their keys. Call it after revocation.
    void deregister();

private:
    std::mutex registrations_mutex_;
    std::vector<std::pair<int, std::shared_ptr<Registration>>> registrations_; // domain, registration
};

class ShareTable {
public:
    [[nodiscard]] ShareId add(std::shared_ptr<Region> region, uint64_t offset, uint64_t nbytes, uint8_t rights,
                              const Capability& capability);
    // Marks the share revoked and forgets it: its id is never valid again. Returns null if there is no such share.
    std::shared_ptr<Share> remove(ShareId id);
    [[nodiscard]] std::shared_ptr<Share> find(ShareId id);
    // Checks if the peer may access [offset, offset + nbytes) of the share with this right. Sets `share`, or returns
    // why not.
    [[nodiscard]] Outcome check(ShareId id, const Capability& capability, uint8_t right, uint64_t offset,
                                uint64_t nbytes, std::shared_ptr<Share>& share);

private:
    struct Entry {
        uint32_t generation = 1;
        std::shared_ptr<Share> share;
    };
    SpinLock lock_;
    std::vector<Entry> entries_;
    // The lowest one is used next: tables of grants have places for low indices.
    std::priority_queue<uint32_t, std::vector<uint32_t>, std::greater<>> free_;
};

} // namespace zerohop
