// The keys that reach a peer's memory over a verbs lane, one for each rail. This needs no headers of RDMA, because
// Python can make such keys in every build.
#pragma once

#include "base/pinned.hpp"
#include "provider/request.hpp"

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace zerohop::verbs {

// The keys that a peer gave out to a share of its memory. close() drains, as for a Mapping.
class RemoteKeys : public Pinnable {
public:
    RemoteKeys(uint64_t remote_address, uint64_t length, uint8_t allowed, std::vector<uint32_t> rail_keys, bool atomic)
        : address(remote_address), nbytes(length), rights(allowed), keys(std::move(rail_keys)), atomics(atomic) {}
    const uint64_t address; // of the share's first byte
    const uint64_t nbytes;
    const uint8_t rights;
    const std::vector<uint32_t> keys;
    const bool atomics; // the NIC at that end carries them out
};

struct KeyedAccess final : RemoteAccess {
    KeyedAccess(std::shared_ptr<RemoteKeys> remote, std::vector<uint32_t> local)
        : RemoteAccess(remote->nbytes, remote->rights, true), keys(std::move(remote)), local_keys(std::move(local)) {}
    const std::shared_ptr<RemoteKeys> keys;
    const std::vector<uint32_t> local_keys; // of the local memory, one for each rail; good while it is open
};

} // namespace zerohop::verbs
