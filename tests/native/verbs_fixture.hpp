// Connects two engines in one process by a verbs lane, over RDMA devices in software (fake_ibverbs).
#pragma once

#include "engine_fixture.hpp"
#include "fake_ibverbs/control.hpp"
#include "provider/verbs/queue_pair.hpp"
#include "provider/verbs/remote_keys.hpp"

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace zerohop::test {

inline constexpr Outcome kLaneReset{Status::peer_lost, Reason::lane_reset};
inline constexpr Outcome kRemoteAccess{Status::access_denied, Reason::remote_access};
inline constexpr Outcome kDeviceLost{Status::peer_lost, Reason::device_lost};

inline const DomainOptions kRoce{{"gid_index", fake::kRoceGid}};

// A route that claims more than the peer gave: the same memory under these keys.
inline Route lie_about(const Route& route, uint64_t nbytes, uint32_t key_error = 0) {
    const auto& access = static_cast<const verbs::KeyedAccess&>(*route.access);
    std::vector<uint32_t> keys = access.keys->keys;
    keys[0] ^= key_error;
    Route lie = route;
    lie.remote_nbytes = nbytes;
    lie.rights = kReadWrite;
    lie.access = std::make_shared<verbs::KeyedAccess>(
        make_pinnable<verbs::RemoteKeys>(access.keys->address, nbytes, kReadWrite, std::move(keys), true),
        access.local_keys);
    return lie;
}

inline DomainOptions with(DomainOptions options, const DomainOptions& more) {
    for (const auto& [name, value] : more) {
        options[name] = value;
    }
    return options;
}

// The devices of both sides, one pair per rail.
struct Rails {
    std::vector<std::string> of_a{fake::kRoce0};
    std::vector<std::string> of_b{fake::kRoce1};
    DomainOptions options_a = kRoce;
    DomainOptions options_b = kRoce;
    int sim_devices = 1;
    Presence* life_of_b = nullptr; // what a sees of b's life; null: b's own presence
};

// One end of a verbs lane, and the numbers of its queue pairs.
struct End {
    std::shared_ptr<Endpoint> lane;
    std::vector<uint32_t> queue_pairs;
};

inline End open_end(const Side& side, std::span<const std::shared_ptr<Domain>> rails) {
    End end{side.engine->add_endpoint("verbs", side.peer->id(), rails), {}};
    const std::string bytes = end.lane->address().bytes;
    for (size_t at = 4; at < bytes.size(); at += sizeof(verbs::QueuePairAddress)) {
        verbs::QueuePairAddress address;
        std::memcpy(&address, bytes.data() + at, sizeof address);
        end.queue_pairs.push_back(address.number);
    }
    return end;
}

struct VerbsPair {
    explicit VerbsPair(const Rails& rails = {}) : a(rails.sim_devices), b(rails.sim_devices) {
        introduce(a, b);
        if (rails.life_of_b != nullptr) {
            a.peer = a.engine->add_peer(rails.life_of_b->page_fd(), rails.life_of_b->make_doorbell().theirs.get());
        }
        for (const std::string& device : rails.of_a) {
            domains_a.push_back(a.engine->open_domain("verbs", device, 1, rails.options_a));
        }
        for (const std::string& device : rails.of_b) {
            domains_b.push_back(b.engine->open_domain("verbs", device, 1, rails.options_b));
        }
        connect();
    }
    ~VerbsPair() {
        fake::reset(); // a failed test may have left something held
        domains_a.clear();
        domains_b.clear();
        a.close();
        b.close();
    }
    VerbsPair(const VerbsPair&) = delete;
    VerbsPair& operator=(const VerbsPair&) = delete;

    // Connects a new lane, in addition to those that exist.
    void connect() {
        end_a = open_end(a, domains_a);
        end_b = open_end(b, domains_b);
        a.lane = end_a.lane;
        b.lane = end_b.lane;
        const Address of_a = a.lane->address();
        const Address of_b = b.lane->address();
        a.lane->connect(of_b);
        b.lane->connect(of_a);
    }

    // Allocates memory of b that a's NICs reach from memory of a.
    Reach reach(size_t nbytes, int local = kHostDevice, int remote = kHostDevice, uint8_t rights = kReadWrite) {
        Reach reach;
        reach.local = a.alloc(nbytes, local);
        reach.remote = b.alloc(nbytes, remote);
        reach.share = b.engine->shares().add(reach.remote, 0, nbytes, rights, kCapability);
        route(reach, rights);
        return reach;
    }
    // Adds a route over the newest lane; `rights` are those that a believes to have.
    void route(Reach& reach, uint8_t rights = kReadWrite) {
        Route route;
        route.endpoint = a.lane;
        route.local = reach.local;
        route.share = reach.share;
        route.capability = kCapability;
        route.remote_nbytes = reach.remote->nbytes();
        route.rights = rights;
        uint64_t address = 0;
        std::vector<uint32_t> keys;
        for (const auto& domain : domains_b) {
            const auto registration = b.engine->reach(*domain, reach.share, false, address);
            REQUIRE(registration);
            keys.push_back(registration->remote_key());
        }
        std::vector<uint32_t> local_keys;
        for (const auto& domain : domains_a) {
            local_keys.push_back(a.engine->register_local(*domain, reach.local)->local_key());
        }
        route.access = std::make_shared<verbs::KeyedAccess>(
            make_pinnable<verbs::RemoteKeys>(address, route.remote_nbytes, rights, keys, true), local_keys);
        reach.route = a.engine->add_route(std::move(route));
    }

    // Returns the number of requests that a's NIC has carried out.
    [[nodiscard]] size_t carried() const {
        size_t requests = 0;
        for (const uint32_t number : end_a.queue_pairs) {
            requests += fake::carried(number).requests;
        }
        return requests;
    }
    [[nodiscard]] size_t waiting() const {
        size_t requests = 0;
        for (const uint32_t number : end_a.queue_pairs) {
            requests += fake::waiting(number);
        }
        return requests;
    }

    Side a;
    Side b;
    std::vector<std::shared_ptr<Domain>> domains_a;
    std::vector<std::shared_ptr<Domain>> domains_b;
    End end_a;
    End end_b;
};

} // namespace zerohop::test
