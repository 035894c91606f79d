// Tests grants: a share is taken once, no more once it is revoked, and its owner knows who has it.
#include "engine_fixture.hpp"
#include "memory/grants.hpp"

#include <atomic>
#include <fcntl.h>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>

namespace test_grants {

using namespace zerohop;
using namespace zerohop::test;

namespace {

constexpr GrantKey kKey{.open = 0x1111, .taken = 0x2223};
constexpr GrantKey kOther{.open = 0x3333, .taken = 0x4445};
constexpr ShareId kShare{.index = 7, .generation = 1};
constexpr ShareId kNext{.index = 7, .generation = 2};
constexpr Granted kWhere{.extent = 5, .address = 0x7000, .nbytes = 100, .rights = 3};

struct Table {
    Grants owner;
    Grants peer{owner.fd()};
};

} // namespace

TEST_CASE("grants: a share is taken once, and again once it was given back") {
    Table table;
    CHECK_FALSE(table.peer.take(kShare, kKey, 0));
    REQUIRE(table.owner.grant(kShare, kKey, kWhere));
    for (int round = 0; round < 2; ++round) {
        const auto granted = table.peer.take(kShare, kKey, 0);
        REQUIRE(granted);
        CHECK(granted->extent == 5);
        CHECK(granted->address == 0x7000);
        CHECK(granted->nbytes == 100);
        CHECK(granted->rights == 3);
        CHECK_FALSE(table.peer.take(kShare, kKey, 0));
        CHECK(table.peer.take(kShare, kKey, 1).has_value() == (round == 0)); // the other way, by itself
        table.peer.give_back(kShare, kKey, 0);
    }
}

TEST_CASE("grants: no key but a share's own takes it") {
    Table table;
    REQUIRE(table.owner.grant(kShare, kKey, kWhere));
    CHECK_FALSE(table.peer.take(kShare, kOther, 0));
    CHECK_FALSE(table.peer.take({.index = 8, .generation = 1}, kKey, 0));
    // Who knows the public half alone passes for nobody.
    REQUIRE(table.peer.take(kShare, {.open = kKey.open, .taken = 0x9999}, 0));
    CHECK_FALSE(table.owner.revoke(kShare, kKey)[0]);
}

TEST_CASE("grants: a revoked share is taken no more, and its owner knows until when the peer has it") {
    Table table;
    REQUIRE(table.owner.grant(kShare, kKey, kWhere));
    REQUIRE(table.peer.take(kShare, kKey, 1));
    for (int round = 0; round < 2; ++round) {
        const auto has = table.owner.revoke(kShare, kKey);
        CHECK_FALSE(has[0]);
        CHECK(has[1]);
    }
    CHECK_FALSE(table.peer.take(kShare, kKey, 0));
    CHECK(table.owner.kept(kShare, kKey, 1));
    CHECK_FALSE(table.owner.kept(kShare, kKey, 0));
    // The place is not another's before that.
    CHECK_FALSE(table.owner.grant(kNext, kOther, kWhere));
    table.peer.give_back(kShare, kKey, 1);
    CHECK_FALSE(table.owner.kept(kShare, kKey, 1));
    CHECK(table.owner.grant(kNext, kOther, kWhere));
    // An end of the earlier share that comes late changes nothing.
    table.peer.give_back(kShare, kKey, 1);
    CHECK_FALSE(table.owner.revoke(kShare, kKey)[0]);
    CHECK(table.peer.take(kNext, kOther, 0));
}

TEST_CASE("grants: of two shares that have the same place the first is granted, and both can end") {
    Table table;
    constexpr ShareId kFar{.index = kShare.index + Grants::kPlaces, .generation = 1};
    REQUIRE(table.owner.grant(kFar, kKey, kWhere));
    CHECK_FALSE(table.owner.grant(kShare, kOther, kWhere));
    CHECK_FALSE(table.peer.take(kShare, kOther, 0));
    REQUIRE(table.peer.take(kFar, kKey, 0));
    CHECK_FALSE(table.owner.revoke(kShare, kOther)[0]);
    CHECK_FALSE(table.owner.kept(kShare, kOther, 0));
    table.peer.give_back(kShare, kOther, 0);
    CHECK(table.owner.revoke(kFar, kKey)[0]);
    CHECK(table.owner.kept(kFar, kKey, 0));
}

TEST_CASE("grants: keys that could be taken for each other are not granted") {
    Table table;
    CHECK_FALSE(table.owner.grant(kShare, {.open = 5, .taken = 5}, kWhere));
    CHECK_FALSE(table.owner.grant(kShare, {.open = ~uint64_t{6}, .taken = 6}, kWhere));
    CHECK_FALSE(table.owner.grant(kShare, {.open = 5, .taken = ~uint64_t{0}}, kWhere));
}

TEST_CASE("grants: a file that could shrink, or that is shorter, is no table") {
    const Descriptor loose(memfd_create("loose", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    REQUIRE(ftruncate(loose.get(), 64 * Grants::kPlaces) == 0);
    CHECK_THROWS_AS(Grants{loose.get()}, NativeError);
    const Descriptor short_one(memfd_create("short", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    REQUIRE(ftruncate(short_one.get(), 4096) == 0);
    REQUIRE(fcntl(short_one.get(), F_ADD_SEALS, F_SEAL_SHRINK) == 0);
    CHECK_THROWS_AS(Grants{short_one.get()}, NativeError);
    const Descriptor pipe_end(open("/dev/null", O_RDWR | O_CLOEXEC));
    CHECK_THROWS_AS(Grants{pipe_end.get()}, NativeError);
}

TEST_CASE("grants: of many shares that are taken while they are revoked, the owner knows each that the peer has") {
    Table table;
    constexpr uint32_t kMany = 20'000;
    for (uint32_t index = 0; index < kMany; ++index) {
        REQUIRE(table.owner.grant({.index = index, .generation = 1}, kKey, {.extent = 1, .address = index}));
    }
    std::atomic<bool> begun = false;
    std::vector<bool> taken(kMany);
    std::thread peer([&] {
        begun = true;
        for (uint32_t index = kMany; index-- > 0;) {
            const auto granted = table.peer.take({.index = index, .generation = 1}, kKey, 0);
            taken[index] = granted.has_value() && granted->address == index;
        }
    });
    std::vector<bool> known(kMany);
    while (!begun) {
    }
    for (uint32_t index = 0; index < kMany; ++index) {
        known[index] = table.owner.revoke({.index = index, .generation = 1}, kKey)[0];
    }
    peer.join();
    CHECK(known == taken);
}

} // namespace test_grants
