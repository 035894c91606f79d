#include "memory/share.hpp"

#include <mutex>

namespace zerohop {

namespace {

// Compares in constant time, so that the time does not tell where the first difference is.
bool equal_in_constant_time(const Capability& a, const Capability& b) {
    uint8_t difference = 0;
    for (size_t i = 0; i < a.size(); ++i) {
        difference |= static_cast<uint8_t>(a[i] ^ b[i]);
    }
    return difference == 0;
}

} // namespace

std::shared_ptr<Registration> Share::registration(int domain, const Region::MakeRegistration& make) {
    const std::lock_guard lock(registrations_mutex_);
    if (revoked.load(std::memory_order_acquire)) {
        return nullptr;
    }
    for (const auto& [number, found] : registrations_) {
        if (number == domain) {
            return found;
        }
    }
    registrations_.emplace_back(domain, make());
    return registrations_.back().second;
}

void Share::deregister() {
    std::vector<std::pair<int, std::shared_ptr<Registration>>> ended; // destroyed outside the lock
    const std::lock_guard lock(registrations_mutex_);
    ended.swap(registrations_);
}

ShareId ShareTable::add(std::shared_ptr<Region> region, uint64_t offset, uint64_t nbytes, uint8_t rights,
                        const Capability& capability) {
    auto share = std::make_shared<Share>();
    share->region = std::move(region);
    share->offset = offset;
    share->nbytes = nbytes;
    // A peer may not write where this process itself must not.
    share->rights = share->region->readonly() ? rights & kRightRead : rights;
    share->capability = capability;
    const std::lock_guard lock(lock_);
    uint32_t index = 0;
    if (free_.empty()) {
        index = static_cast<uint32_t>(entries_.size());
        entries_.emplace_back();
    } else {
        index = free_.top();
        free_.pop();
    }
    entries_[index].share = std::move(share);
    return {index, entries_[index].generation};
}

std::shared_ptr<Share> ShareTable::remove(ShareId id) {
    const std::lock_guard lock(lock_);
    if (id.index >= entries_.size() || entries_[id.index].generation != id.generation) {
        return nullptr;
    }
    Entry& entry = entries_[id.index];
    std::shared_ptr<Share> share = std::move(entry.share);
    entry.share.reset();
    share->revoked.store(true, std::memory_order_seq_cst);
    // An index whose generations are used up is retired, so that no old handle ever becomes valid.
    if (++entry.generation != 0) {
        free_.push(id.index);
    }
    return share;
}

std::shared_ptr<Share> ShareTable::find(ShareId id) {
    const std::lock_guard lock(lock_);
    const bool there = id.index < entries_.size() && entries_[id.index].generation == id.generation;
    return there ? entries_[id.index].share : nullptr;
}

Outcome ShareTable::check(ShareId id, const Capability& capability, uint8_t right, uint64_t offset, uint64_t nbytes,
                          std::shared_ptr<Share>& share) {
    {
        const std::lock_guard lock(lock_);
        if (id.index >= entries_.size()) {
            return {Status::access_denied, Reason::unknown_share};
        }
        const Entry& entry = entries_[id.index];
        if (entry.generation != id.generation || !entry.share) {
            // An older generation was valid once and has been given back; a newer one never was valid.
            return {Status::access_denied, id.generation < entry.generation ? Reason::revoked : Reason::unknown_share};
        }
        share = entry.share;
    }
    if (!equal_in_constant_time(share->capability, capability)) {
        return {Status::access_denied, Reason::capability};
    }
    if (share->revoked.load(std::memory_order_acquire) || share->region->closed()) {
        return {Status::access_denied, Reason::revoked};
    }
    if ((share->rights & right) != right) {
        return {Status::access_denied, Reason::rights};
    }
    if (offset > share->nbytes || nbytes > share->nbytes - offset) {
        return {Status::access_denied, Reason::bounds};
    }
    return {};
}

} // namespace zerohop
