// Tests the rights that a share gives a peer, and the pins and mappings that decide when memory may be freed.
#include "engine_fixture.hpp"
#include "memory/share.hpp"

#include <fcntl.h>
#include <sys/mman.h>

namespace test_share {

using namespace zerohop;
using namespace zerohop::test;

namespace {

struct Table {
    std::shared_ptr<Region> region = Region::allocate_host(8192);
    ShareTable shares;

    ShareId add(uint64_t offset, uint64_t nbytes, uint8_t rights = kReadWrite) {
        return shares.add(region, offset, nbytes, rights, kCapability);
    }
    Outcome check(ShareId id, uint64_t offset, uint64_t nbytes, uint8_t right = kRightRead,
                  const Capability& capability = kCapability) {
        std::shared_ptr<Share> share;
        const Outcome outcome = shares.check(id, capability, right, offset, nbytes, share);
        if (outcome.ok()) {
            REQUIRE(share != nullptr);
        }
        return outcome;
    }
};

Outcome denied(Reason reason) {
    return {Status::access_denied, reason};
}

} // namespace

TEST_CASE("share: bounds, without overflow") {
    Table table;
    const ShareId id = table.add(100, 1000);
    CHECK(table.check(id, 0, 1000) == kOk);
    CHECK(table.check(id, 1000, 0) == kOk);
    CHECK(table.check(id, 999, 1) == kOk);
    CHECK(table.check(id, 0, 1001) == denied(Reason::bounds));
    CHECK(table.check(id, 1, 1000) == denied(Reason::bounds));
    CHECK(table.check(id, 1001, 0) == denied(Reason::bounds));
    CHECK(table.check(id, UINT64_MAX, 1) == denied(Reason::bounds));
    CHECK(table.check(id, UINT64_MAX, UINT64_MAX) == denied(Reason::bounds));
    CHECK(table.check(id, 1, UINT64_MAX) == denied(Reason::bounds));
    CHECK(table.check(id, 500, UINT64_MAX - 499) == denied(Reason::bounds));
}

TEST_CASE("share: rights and capability") {
    Table table;
    const ShareId reads = table.add(0, 10, kRightRead);
    const ShareId writes = table.add(0, 10, kRightWrite);
    CHECK(table.check(reads, 0, 1, kRightRead) == kOk);
    CHECK(table.check(reads, 0, 1, kRightWrite) == denied(Reason::rights));
    CHECK(table.check(reads, 0, 1, kReadWrite) == denied(Reason::rights));
    CHECK(table.check(writes, 0, 1, kRightWrite) == kOk);
    CHECK(table.check(writes, 0, 1, kRightRead) == denied(Reason::rights));
    for (size_t i = 0; i < kCapability.size(); ++i) {
        Capability wrong = kCapability;
        wrong[i] ^= 0x80;
        CHECK(table.check(reads, 0, 1, kRightRead, wrong) == denied(Reason::capability));
    }
}

TEST_CASE("share: generations") {
    Table table;
    const ShareId first = table.add(0, 10);
    const ShareId other = table.add(0, 10);
    CHECK(first.index != other.index);
    const std::shared_ptr<Share> removed = table.shares.remove(first);
    REQUIRE(removed != nullptr);
    CHECK(removed->revoked.load());
    CHECK(table.check(first, 0, 1) == denied(Reason::revoked));
    CHECK(table.shares.remove(first) == nullptr);
    const ShareId second = table.add(0, 10);
    CHECK(second.index == first.index);
    CHECK(second.generation != first.generation);
    CHECK(table.check(second, 0, 1) == kOk);
    CHECK(table.check(first, 0, 1) == denied(Reason::revoked));
    CHECK(table.check({second.index, second.generation + 1}, 0, 1) == denied(Reason::unknown_share));
    CHECK(table.check({12345, 1}, 0, 1) == denied(Reason::unknown_share));
    CHECK(table.check({UINT32_MAX, UINT32_MAX}, 0, 1) == denied(Reason::unknown_share));
    CHECK(table.shares.remove({12345, 1}) == nullptr);
    CHECK(table.shares.remove({second.index, second.generation + 1}) == nullptr);
    CHECK(ShareId::unpack(second.packed()).index == second.index);
    CHECK(ShareId::unpack(second.packed()).generation == second.generation);
    CHECK(table.check(other, 0, 1) == kOk);
}

TEST_CASE("share: closed memory is given to nobody") {
    Table table;
    const ShareId id = table.add(0, 10);
    CHECK(table.region->close());
    CHECK(table.check(id, 0, 1) == denied(Reason::revoked));
}

TEST_CASE("share: read-only memory cannot be shared for writing") {
    const std::vector<uint8_t> constant(100, 1);
    Table table;
    table.region = Region::wrap(accel::test::at(constant.data()), constant.size(), kHostDevice, -1, 0, true);
    const ShareId id = table.add(0, 100, kReadWrite);
    CHECK(table.check(id, 0, 1, kRightRead) == kOk);
    CHECK(table.check(id, 0, 1, kRightWrite) == denied(Reason::rights));
}

TEST_CASE("pins: a closed region takes no new ones and waits for the old") {
    const std::shared_ptr<Region> region = Region::allocate_host(100);
    Pin<Region> first = Pin<Region>::of(region);
    REQUIRE(first);
    Pin<Region> second = first;
    CHECK(region->pins() == 2);
    CHECK_FALSE(region->close());
    CHECK_FALSE(Pin<Region>::of(region));
    Pin<Region> third = second; // belongs to an operation that began before
    CHECK(region->pins() == 3);
    first.reset();
    second = std::move(third);
    CHECK(region->pins() == 1);
    CHECK_FALSE(region->close());
    second = {};
    CHECK(region->close());
    CHECK_FALSE(Pin<Region>::of(nullptr));
}

TEST_CASE("mapping: what lies outside of the file is refused, not a bus error later") {
    const std::shared_ptr<Region> region = Region::allocate_host(8192);
    const auto refused = [&](uint64_t offset, size_t nbytes) {
        try {
            const Mapping mapping(region->fd(), offset, nbytes, true);
        } catch (const NativeError&) {
            return true;
        }
        return false;
    };
    CHECK_FALSE(refused(0, 8192));
    CHECK_FALSE(refused(4095, 4097));
    CHECK_FALSE(refused(8192, 0));
    CHECK(refused(0, 8193));
    CHECK(refused(1, 8192));
    CHECK(refused(8193, 0));
    CHECK(refused(1 << 20, 1));
    CHECK(refused(0, SIZE_MAX));
    CHECK(refused(4096, SIZE_MAX - 4095));
    CHECK(refused(UINT64_MAX, 1));
    CHECK(refused(UINT64_MAX - 4095, 4096));
}

TEST_CASE("mapping: any offset, both ways, and unmapped only when nothing uses it") {
    const std::shared_ptr<Region> region = Region::allocate_host(8192);
    const auto mapping = make_pinnable<Mapping>(region->fd(), 4097, 100, true);
    region->host()[4097] = std::byte{7};
    CHECK(mapping->data()[0] == std::byte{7});
    mapping->data()[99] = std::byte{9};
    CHECK(region->host()[4196] == std::byte{9});
    REQUIRE(mapping->try_pin());
    CHECK_FALSE(mapping->unmap());
    CHECK(mapping->data()[99] == std::byte{9});
    mapping->unpin();
    CHECK(mapping->unmap());
    CHECK(mapping->unmap());
}

TEST_CASE("mapping: a part has bounds, rights and an end of its own, and holds the whole") {
    const std::shared_ptr<Region> region = Region::allocate_host(8192);
    const auto whole = make_pinnable<Mapping>(region->fd(), 0, 8192, true);
    const auto refused = [&](uint64_t offset, size_t nbytes) {
        try {
            const Mapping part(whole, offset, nbytes, true);
        } catch (const NativeError& error) {
            return error.outcome().reason == Reason::malformed;
        }
        return false;
    };
    CHECK_FALSE(refused(0, 8192));
    CHECK_FALSE(refused(8192, 0));
    CHECK(refused(1, 8192));
    CHECK(refused(8193, 0));
    CHECK(refused(UINT64_MAX, 1));
    CHECK(refused(1, SIZE_MAX));
    CHECK(whole->pins() == 0);

    const auto first = make_pinnable<Mapping>(whole, 100, 200, true);
    const auto second = make_pinnable<Mapping>(whole, 4097, 7, false);
    CHECK(first->data() == whole->data() + 100);
    CHECK(first->nbytes() == 200);
    CHECK(first->writable());
    CHECK_FALSE(second->writable());
    CHECK_FALSE(whole->unmap());
    REQUIRE(first->try_pin()); // by an operation
    CHECK_FALSE(first->unmap());
    CHECK(second->unmap());
    CHECK_FALSE(whole->unmap());
    first->data()[0] = std::byte{5};
    CHECK(region->host()[100] == std::byte{5});
    first->unpin();
    CHECK(first->unmap());
    CHECK(whole->unmap());
    CHECK_THROWS_AS(Mapping(whole, 0, 1, true), NativeError);
}

TEST_CASE("mapping: a part of a mapping that is read alone is never writable") {
    const std::shared_ptr<Region> region = Region::allocate_host(8192);
    const auto whole = make_pinnable<Mapping>(region->fd(), 0, 8192, false);
    CHECK_FALSE(Mapping(whole, 0, 8192, true).writable());
}

} // namespace test_share
