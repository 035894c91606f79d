// Tests registrations of memory with devices: who keeps them, and when they end. The tests make the registrations,
// without a device.
#include "accel/sim/sim.hpp"
#include "memory/region.hpp"
#include "memory/share.hpp"
#include "provider/provider.hpp"
#include "provider/unbuilt.hpp"
#include "provider/verbs/remote_keys.hpp"

#include <doctest/doctest.h>

#include <array>
#include <memory>
#include <string>

namespace test_registration {

using namespace zerohop;

namespace {

class Counted final : public Registration {
public:
    explicit Counted(int& live) : live_(live) { ++live_; }
    ~Counted() override { --live_; }
    uint32_t local_key() const override { return 1; }
    uint32_t remote_key() const override { return 2; }
    const std::string& how() const override { return how_; }

private:
    int& live_;
    std::string how_ = "counted";
};

struct Memory {
    std::array<std::byte, 64> bytes{};
    std::shared_ptr<Region> region =
        Region::wrap(reinterpret_cast<uint64_t>(bytes.data()), bytes.size(), kHostDevice, -1, 0, false);
};

} // namespace

TEST_CASE("a registration for our own use is made once and kept until the region is given back") {
    Memory memory;
    int live = 0;
    int made = 0;
    const auto make = [&] {
        ++made;
        return std::make_shared<Counted>(live);
    };
    for (int i = 0; i < 3; ++i) {
        CHECK(memory.region->registration(7, 0, make)->local_key() == 1);
    }
    CHECK(made == 1);
    CHECK(live == 1);
    [[maybe_unused]] const auto other = memory.region->registration(8, 0, make); // another domain
    CHECK(made == 2);
    CHECK(memory.region->deregister());
    CHECK(live == 1); // `other`
}

TEST_CASE("a part is pinned and closed by itself, keeps the whole, and is registered as the whole is") {
    Memory memory;
    std::shared_ptr<Region> part = Region::part(memory.region, 16, 8);
    CHECK(part->address() == memory.region->address() + 16);
    CHECK(part->nbytes() == 8);
    CHECK(&part->whole() == memory.region.get());
    CHECK(&memory.region->whole() == memory.region.get());
    CHECK(memory.region->pins() == 1);
    CHECK(part->pins() == 0);
    {
        const Pin<Region> pin = Pin<Region>::of(part);
        CHECK_FALSE(part->close());
        CHECK_FALSE(Pin<Region>::of(part));
        CHECK(Pin<Region>::of(memory.region));
    }
    CHECK(part->close());
    CHECK_FALSE(memory.region->close()); // the part pins it, closed or not
    CHECK_THROWS_AS((void)Region::part(memory.region, 0, 8), NativeError);
    part.reset();
    CHECK(memory.region->pins() == 0);
}

TEST_CASE("a registration for peers is shared by all that hold it, and ends with the last of them") {
    Memory memory;
    int live = 0;
    const auto make = [&] { return std::make_shared<Counted>(live); };
    auto one = memory.region->registration(7, kRightRead, make);
    auto same = memory.region->registration(7, kRightRead, make);
    auto more = memory.region->registration(7, kRightRead | kRightWrite, make);
    CHECK(one == same);
    CHECK(one != more);
    CHECK(live == 2);
    one.reset();
    CHECK(live == 2);
    same.reset();
    CHECK(live == 1);
}

TEST_CASE("a failed registration is told, and tried again by the next who asks") {
    Memory memory;
    int live = 0;
    const auto fails = []() -> std::shared_ptr<Registration> {
        throw NativeError(Status::no_memory, Reason::memlock, "no");
    };
    CHECK_THROWS_AS((void)memory.region->registration(7, 0, fails), NativeError);
    CHECK(memory.region->registration(7, 0, [&] { return std::make_shared<Counted>(live); }) != nullptr);
}

TEST_CASE("a share's registration ends when it is revoked, and none is made after that") {
    Memory memory;
    ShareTable shares;
    int live = 0;
    const auto make = [&] { return std::make_shared<Counted>(live); };
    const ShareId id = shares.add(memory.region, 0, 64, kRightRead, {});
    {
        const std::shared_ptr<Share> share = shares.find(id);
        REQUIRE(share);
        CHECK(share->registration(7, make) == share->registration(7, make));
        CHECK(live == 1);
    }
    const std::shared_ptr<Share> revoked = shares.remove(id);
    CHECK(shares.find(id) == nullptr);
    CHECK(live == 1);
    revoked->deregister();
    CHECK(live == 0);
    CHECK(revoked->registration(7, make) == nullptr);
    CHECK(live == 0);
}

TEST_CASE("remote keys drain like a mapping") {
    const auto keys = make_pinnable<verbs::RemoteKeys>(4096, 64, kRightRead, std::vector<uint32_t>{1, 2}, true);
    Pin<verbs::RemoteKeys> pin = Pin<verbs::RemoteKeys>::of(keys);
    CHECK(pin);
    CHECK_FALSE(keys->close());
    CHECK_FALSE(Pin<verbs::RemoteKeys>::of(keys));
    pin.reset();
    CHECK(keys->close());
}

TEST_CASE("what is pinned outlives its owners, and goes with the last pin") {
    struct Thing : Pinnable {
        explicit Thing(bool& flag) : gone(flag) {}
        ~Thing() override { gone = true; }
        bool& gone;
    };
    bool gone = false;
    std::shared_ptr<Thing> owner = make_pinnable<Thing>(gone);
    Pin<Thing> first = Pin<Thing>::of(owner);
    Pin<Thing> second = first;
    CHECK(owner->pins() == 2);
    owner.reset();
    first.reset();
    CHECK_FALSE(gone);
    CHECK_FALSE(second->close());
    second.reset();
    CHECK(gone);
    gone = false;
    owner = make_pinnable<Thing>(gone);
    CHECK(owner->close());
    CHECK_FALSE(Pin<Thing>::of(owner));
    CHECK(owner->pins() == 0);
    owner.reset();
    CHECK(gone);
}

TEST_CASE("a NIC may take sim memory by its alias where peermem is on, and is offered the device address where not") {
    using Kind = accel::Registrable::Kind;
    for (const bool peermem : {true, false}) {
        const auto driver = accel::make_sim_driver(1, peermem);
        uint64_t address = 0;
        REQUIRE(driver->devices()[0]->alloc(8192, address).ok());
        const std::vector<accel::Registrable> ways = driver->registrable(address + 16, 4096);
        REQUIRE(ways.size() == 2);
        CHECK(ways[0].kind == Kind::dma_buf);
        CHECK_FALSE(ways[0].why_not.empty());
        CHECK(ways[1].kind == (peermem ? Kind::alias : Kind::plain));
        CHECK((ways[1].address == address + 16) == !peermem);
        // Past the end of the allocation no alias is offered.
        CHECK(driver->registrable(address, 8193)[1].kind == Kind::plain);
        CHECK(driver->devices()[0]->free(address).ok());
    }
}

TEST_CASE("a provider that was not built says so") {
    CHECK(std::string(kUnbuiltVerbs.name) == "verbs");
    const Provider::Probe probe = kUnbuiltVerbs.probe();
    CHECK_FALSE(probe.usable);
    CHECK(probe.reason == kNoVerbs);
    CHECK_FALSE(probe.fix.empty());
    CHECK((kUnbuiltVerbs.endpoint == nullptr && kUnbuiltVerbs.open == nullptr));
}

} // namespace test_registration
