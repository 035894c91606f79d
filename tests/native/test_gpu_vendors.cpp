// Tests the drivers of both vendors (fake_cuda, fake_hip) in one engine: devices and memory are told apart, bytes go
// from any place to any other, and a device of one vendor is never given memory of the other.
#include "engine_fixture.hpp"
#include "gpu_fixture.hpp"
#include "provider/p2p/peer_memory.hpp"

#include <doctest/doctest.h>

#include <array>
#include <set>
#include <string>
#include <vector>

namespace test_gpu_vendors {

using namespace zerohop;
using namespace zerohop::test;

namespace {

using Drivers = std::vector<std::shared_ptr<accel::Driver>>;

constexpr int kCuda = 0; // cuda:0, cuda:1, hip:0, hip:1
constexpr int kHip = 2;
constexpr std::array<int, 3> kPlaces{kHostDevice, kCuda, kHip};

Drivers both() {
    return {make_gpu_driver(Cuda::api()), make_gpu_driver(Hip::api())};
}

} // namespace

TEST_CASE("gpu: devices of both vendors are in one engine, and each knows its own memory alone") {
    const Drivers drivers = both();
    Accelerators accelerators(drivers);
    std::vector<std::string> names;
    std::set<std::string> identities;
    for (const auto& device : accelerators.devices()) {
        names.push_back(device->facts().name);
        identities.insert(device->facts().identity);
    }
    CHECK(names == std::vector<std::string>{"cuda:0", "cuda:1", "hip:0", "hip:1"});
    CHECK(identities.size() == 4);
    std::set<uint64_t> ids;
    for (int device = 0; device < 4; ++device) {
        CAPTURE(device);
        const auto& owner = accelerators.devices().at(static_cast<size_t>(device));
        uint64_t address = 0;
        REQUIRE(owner->alloc(kBytes, address).ok());
        const accel::Description found = accelerators.describe(address + 5, 1000);
        CHECK(found.kind == accel::MemoryKind::device);
        CHECK(found.device == device);
        CHECK(found.base == address);
        ids.insert(accelerators.allocation_id(address));
        const auto& other = drivers.at(device < kHip ? 1 : 0);
        CHECK(other->describe(address).kind == accel::MemoryKind::unknown);
        CHECK_THROWS_WITH_AS((void)other->export_memory(address, kBytes), doctest::Contains("no memory of a device"),
                             NativeError);
        CHECK(owner->free(address).ok());
    }
    CHECK(ids.size() == 4); // although each driver counts from its own start
    settle();
}

TEST_CASE("gpu: host memory is registered with the drivers of both vendors, and given back to both") {
    const Drivers drivers = both();
    Accelerators accelerators(drivers);
    REQUIRE(accelerators.in_use().size() == 2);
    std::vector<std::byte> memory(kBytes);
    const auto known = [&](size_t driver) {
        return drivers[driver]->describe(at(memory.data())).kind == accel::MemoryKind::host;
    };
    {
        const HostRegistration registration(accelerators.in_use(), memory.data(), memory.size());
        CHECK(known(0));
        CHECK(known(1));
    }
    settle();
    CHECK_FALSE(known(0));
    CHECK_FALSE(known(1));
    // What one of them refuses is registered with neither.
    REQUIRE(Hip::api().host_register(memory.data(), kBytes / 2, 3) == 0);
    CHECK_THROWS_WITH_AS(HostRegistration(accelerators.in_use(), memory.data() + kBytes / 4, kBytes / 2),
                         doctest::Contains("with the hip driver"), NativeError);
    settle();
    CHECK(drivers[0]->describe(at(memory.data()) + kBytes / 4).kind == accel::MemoryKind::unknown);
    CHECK(Hip::api().host_unregister(memory.data()) == 0);
}

TEST_CASE("gpu: bytes go from each vendor's memory, and the host's, to each") {
    for (const char* const provider : {"shm", "tcp"}) {
        for (const int local : kPlaces) {
            for (const int remote : kPlaces) {
                CAPTURE(std::string(provider));
                CAPTURE(local);
                CAPTURE(remote);
                Pair pair(provider, both());
                const Reach reach = pair.reach(kBytes, local, remote);
                Bytes here = random_bytes(kBytes);
                Bytes there = random_bytes(kBytes);
                pair.a.put(*reach.local, here);
                pair.b.put(*reach.remote, there);
                REQUIRE(run(pair.a, reach.route, request(Kind::write, 100, 7, kBytes / 2)) == kOk);
                std::copy_n(here.begin() + 100, kBytes / 2, there.begin() + 7);
                REQUIRE(run(pair.a, reach.route, request(Kind::read, 3, 1000, kBytes / 2)) == kOk);
                std::copy_n(there.begin() + 1000, kBytes / 2, here.begin() + 3);
                CHECK(same_bytes(pair.b.get(*reach.remote), there));
                CHECK(same_bytes(pair.a.get(*reach.local), here));
            }
        }
    }
}

TEST_CASE("gpu: a device reaches a peer's memory of its own vendor directly, and none of the other's") {
    for (const int remote : {kCuda, kHip}) {
        CAPTURE(remote);
        const Drivers theirs = both();
        Accelerators peer(theirs);
        const auto region = Region::allocate_device(peer.devices().at(static_cast<size_t>(remote)), remote, kBytes);
        const bool of_cuda = remote < kHip;
        const accel::Exported exported = theirs.at(of_cuda ? 0 : 1)->export_memory(region->address(), kBytes);
        Accelerators ours(both());
        const auto memory = make_pinnable<p2p::PeerMemory>(ours, exported, true);
        const auto reach_from = [&](int device) {
            const auto local =
                device == kHostDevice
                    ? Region::allocate_host(kBytes)
                    : Region::allocate_device(ours.devices().at(static_cast<size_t>(device)), device, kBytes);
            return memory->reach(ours, *local);
        };
        CHECK(reach_from(remote).address == region->address());
        CHECK(reach_from(remote + 1).device == remote + 1);
        CHECK(reach_from(kHostDevice).device == remote); // the device that has the memory copies
        try {
            (void)reach_from(of_cuda ? kHip : kCuda);
            FAIL("a device of the other vendor was given the memory");
        } catch (const NativeError& error) {
            CHECK(error.outcome() == Outcome{Status::unsupported, Reason::no_peer_link});
        }
        // A process that has the other vendor's devices alone says that it has none.
        Accelerators others({make_gpu_driver(of_cuda ? Hip::api() : Cuda::api())});
        CHECK_THROWS_WITH_AS((void)make_pinnable<p2p::PeerMemory>(others, exported, true),
                             doctest::Contains(of_cuda ? "shared as cuda-ipc" : "shared as hip-ipc"), NativeError);
    }
    settle();
}

} // namespace test_gpu_vendors
