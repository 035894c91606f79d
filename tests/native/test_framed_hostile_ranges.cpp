// Tests a peer that lies in the ranges of one request: they are refused or end the lane.
#include "raw_peer.hpp"

namespace test_framed_hostile_ranges {

using namespace zerohop;
using namespace zerohop::test;

TEST_CASE("hostile: ranges outside of the share are answered, and nothing is touched") {
    constexpr uint64_t kBytes = 1 << 20;
    using Table = std::vector<uint64_t>; // offsets, then lengths
    const std::vector<std::pair<const char*, Table>> cases{
        {"the first", {kBytes - 31, 0, 32, 32}},
        {"the last", {0, kBytes - 31, 32, 32}},
        {"at the end", {0, kBytes, 32, 32}},
        {"an offset that wraps", {0, UINT64_MAX - 31, 32, 32}},
        {"an offset that wraps into the share", {0, UINT64_MAX - 15, 32, 32}},
        {"the highest offset", {0, UINT64_MAX, 63, 1}},
        {"a high bit", {0, uint64_t{1} << 63, 32, 32}},
    };
    for (const std::string& provider : kProviders) {
        for (const int device : {kHostDevice, kSimDevice}) {
            CAPTURE(provider);
            CAPTURE(device);
            Target target(provider, device, kBytes);
            RawPeer& peer = target.peer;
            target.side.put(*target.region, Bytes(kBytes, 5));
            const Bytes payload(64, 0xAA);
            for (const auto& [what, table] : cases) {
                CAPTURE(std::string(what));
                FrameHeader write = target.header(FrameKind::write_ranges, 0, 64, kLast | kNotify);
                REQUIRE(peer.send(write, table, payload));
                CHECK(peer.answer(7) == kBounds);
                REQUIRE(peer.send(target.header(FrameKind::read_ranges, 0, 64), table));
                CHECK(peer.answer(7) == kBounds);
                // The result does not change if the frame itself begins late in the share.
                Table moved = table;
                moved[0] -= 64;
                moved[1] -= 64;
                write.offset = 64;
                REQUIRE(peer.send(write, moved, payload));
                CHECK(peer.answer(7) == kBounds);
            }
            for (const uint64_t offset : {kBytes, kBytes + 1, UINT64_MAX, UINT64_MAX - 31}) {
                CAPTURE(offset);
                REQUIRE(peer.send(target.header(FrameKind::write_ranges, offset, 64, kLast), {0, 32, 32, 32}, payload));
                CHECK(peer.answer(7) == kBounds);
            }
            FrameHeader unknown = target.header(FrameKind::write_ranges, 0, 64, kLast);
            unknown.capability = {};
            REQUIRE(peer.send(unknown, {0, 32, 32, 32}, payload));
            CHECK(peer.answer(7).status == Status::access_denied);
            CHECK(target.side.lane->state().ok());
            CHECK_FALSE(target.side.engine->pop_notification(0, 0, 0, false).has_value());
            CHECK(same_bytes(target.side.get(*target.region), Bytes(kBytes, 5)));
        }
    }
}

TEST_CASE("hostile: ranges that are not the payload end the lane") {
    const std::vector<std::pair<const char*, std::vector<uint64_t>>> cases{
        {"more", {0, 100, 32, 33}},
        {"fewer", {0, 100, 32, 31}},
        {"none", {0, 100, 64, 0}},
        {"none first", {0, 100, 0, 64}},
        {"a sum that wraps", {0, 100, UINT64_MAX, 65}},
        {"all that there is, twice", {0, 0, UINT64_MAX, UINT64_MAX}},
        {"outside of the share, too", {UINT64_MAX, 0, 1, 1}},
    };
    for (const std::string& provider : kProviders) {
        for (const int device : {kHostDevice, kSimDevice}) {
            for (const auto& [what, table] : cases) {
                CAPTURE(provider);
                CAPTURE(device);
                CAPTURE(std::string(what));
                Target target(provider, device);
                target.side.put(*target.region, Bytes(target.region->nbytes(), 5));
                REQUIRE(target.peer.send(target.header(FrameKind::write_ranges, 0, 64, kLast | kNotify), table,
                                         Bytes(64, 0xAA)));
                CHECK(target.ends_with(kMalformed));
                CHECK(same_bytes(target.side.get(*target.region), Bytes(target.region->nbytes(), 5)));
                CHECK_FALSE(target.side.engine->pop_notification(0, 0, 0, false).has_value());
                Target asked(provider, device);
                REQUIRE(asked.peer.send(asked.header(FrameKind::read_ranges, 0, 64), table));
                CHECK(asked.ends_with(kMalformed));
            }
        }
    }
}

TEST_CASE("hostile: ranges that overlap, and as many as a table has") {
    for (const std::string& provider : kProviders) {
        for (const int device : {kHostDevice, kSimDevice}) {
            CAPTURE(provider);
            CAPTURE(device);
            Target target(provider, device);
            target.side.put(*target.region, Bytes(target.region->nbytes(), 5));
            Bytes payload(64, 6);
            std::fill(payload.begin() + 32, payload.end(), uint8_t{7});
            REQUIRE(
                target.peer.send(target.header(FrameKind::write_ranges, 8, 64, kLast), {100, 110, 32, 32}, payload));
            CHECK(target.peer.answer(7) == kOk);
            const Bytes bytes = target.side.get(*target.region, 100, 60);
            CHECK(bytes[7] == 5);
            CHECK(bytes[8] == 6);
            CHECK(bytes[49] == 7);
            CHECK(bytes[50] == 5);
            constexpr size_t kMost = framed::kMaxTable / 2;
            std::vector<uint64_t> table(2 * kMost, 1);
            for (size_t i = 0; i < kMost; ++i) {
                table[i] = 4096 + 3 * i;
            }
            REQUIRE(target.peer.send(target.header(FrameKind::write_ranges, 0, kMost, kLast), table, Bytes(kMost, 9)));
            CHECK(target.peer.answer(7) == kOk);
            CHECK(target.side.get(*target.region, 4096 + 3 * (kMost - 1) - 1, 3) == Bytes{5, 9, 5});
        }
    }
}

TEST_CASE("hostile: ranges that are cut off place nothing beyond what has come") {
    for (const std::string& provider : kProviders) {
        CAPTURE(provider);
        // The lie is in the table, or in the payload.
        for (const size_t nbytes : {size_t{8}, size_t{16 + 16}, size_t{32 + 40}}) {
            CAPTURE(nbytes);
            Target target(provider);
            target.side.put(*target.region, Bytes(target.region->nbytes(), 5));
            FrameHeader header = target.header(FrameKind::write_ranges, 0, 64, kLast | kNotify);
            header.table = 4;
            header.payload = 64;
            Bytes rest(32 + 64, 0xAA);
            const uint64_t table[] = {1000, 2000, 32, 32};
            std::memcpy(rest.data(), table, sizeof table);
            REQUIRE(target.peer.send_bytes(&header, sizeof header));
            REQUIRE(target.peer.send_bytes(rest.data(), nbytes));
            target.peer.end_stream();
            CHECK(eventually([&] { return !target.side.lane->state().ok(); }));
            CHECK_FALSE(target.side.engine->pop_notification(0, 0, 0, false).has_value());
            Bytes expected(target.region->nbytes(), 5);
            Bytes found = target.side.get(*target.region);
            std::fill(found.begin() + 1000, found.begin() + 1032, uint8_t{5});
            std::fill(found.begin() + 2000, found.begin() + 2032, uint8_t{5});
            CHECK(same_bytes(found, expected));
            CHECK(eventually([&] { return target.region->pins() == 0; }));
        }
    }
}

} // namespace test_framed_hostile_ranges
