// Tests walks over contiguous and paged memory against a model that lists every byte's address.
#include "base/extents.hpp"

#include <doctest/doctest.h>

#include <random>

namespace test_extents {

using namespace zerohop;

namespace {

std::vector<uint64_t> model(uint64_t base, const std::vector<uint64_t>& pages, uint64_t page_bytes) {
    std::vector<uint64_t> addresses;
    for (const uint64_t page : pages) {
        for (uint64_t i = 0; i < page_bytes; ++i) {
            addresses.push_back(base + page * page_bytes + i);
        }
    }
    return addresses;
}

struct Ranges {
    std::vector<uint64_t> offsets;
    std::vector<uint64_t> lengths;
    uint64_t nbytes = 0;

    Ranges(std::mt19937& random, size_t count, uint64_t longest) {
        for (size_t i = 0; i < count; ++i) {
            offsets.push_back(random() % 100'000);
            lengths.push_back(1 + random() % longest);
            nbytes += lengths.back();
        }
    }
    Extents walk(uint64_t base) const { return {base, offsets.data(), lengths.data(), nbytes}; }
    std::vector<uint64_t> addresses(uint64_t base) const {
        std::vector<uint64_t> found;
        for (size_t i = 0; i < offsets.size(); ++i) {
            for (uint64_t j = 0; j < lengths[i]; ++j) {
                found.push_back(base + offsets[i] + j);
            }
        }
        return found;
    }
};

// True if the walk is at byte `at` of the list. It gives one result for all, because a check per byte would take most
// of the test's time.
bool stands_at(const Extents& walk, const std::vector<uint64_t>& addresses, uint64_t at) {
    if (walk.left() != addresses.size() - at) {
        return false;
    }
    if (walk.left() == 0) {
        return true;
    }
    const uint64_t run = walk.contiguous();
    bool right = walk.address() == addresses[at] && run >= 1 && run <= walk.left();
    for (uint64_t i = 0; right && i < run; ++i) {
        right = addresses[at + i] == addresses[at] + i;
    }
    return right;
}

} // namespace

TEST_CASE("extents: contiguous") {
    Extents walk(1000, 50);
    CHECK_FALSE(walk.paged());
    CHECK(walk.left() == 50);
    CHECK(walk.contiguous() == 50);
    walk.advance(20);
    CHECK(walk.address() == 1020);
    CHECK(walk.left() == 30);
    CHECK(walk.first(10).left() == 10);
    CHECK(walk.first(10).address() == 1020);
    CHECK(walk.first(99).left() == 30);
    CHECK(walk.unit(7, 100) == 7);
    CHECK(walk.unit(700, 100) == 30);
    walk.advance(30);
    CHECK(walk.left() == 0);
    CHECK(walk.unit(7, 100) == 0);
}

TEST_CASE("extents: empty walks") {
    CHECK(Extents().left() == 0);
    CHECK(Extents(0, 0).contiguous() == 0);
    const std::vector<uint64_t> none;
    const Extents walk(4096, none.data(), size_t{0}, 64);
    CHECK(walk.left() == 0);
    CHECK(walk.unit(100, 100) == 0);
    CHECK(walk.first(5).left() == 0);
}

TEST_CASE("extents: pages, in any steps") {
    std::mt19937 random(7);
    for (const uint64_t page_bytes : {1, 2, 7, 64, 1000}) {
        for (const size_t count : {1, 2, 17, 40}) {
            std::vector<uint64_t> pages(count);
            for (uint64_t& page : pages) {
                page = random() % 100;
            }
            const std::vector<uint64_t> addresses = model(4096, pages, page_bytes);
            for (const uint64_t longest : {uint64_t{1}, uint64_t{3}, page_bytes, 3 * page_bytes + 1}) {
                Extents walk(4096, pages.data(), pages.size(), page_bytes);
                for (uint64_t at = 0; at < addresses.size();) {
                    REQUIRE(stands_at(walk, addresses, at));
                    const uint64_t step = std::min<uint64_t>(1 + random() % longest, walk.left());
                    walk.advance(step);
                    at += step;
                }
                REQUIRE(stands_at(walk, addresses, addresses.size()));
            }
        }
    }
}

TEST_CASE("extents: a unit is whole pages, and so many of them at most, or a part of one") {
    const std::vector<uint64_t> pages{5, 3, 9, 1, 0};
    for (const uint64_t page_bytes : {10, 100}) {
        for (const uint64_t limit : {1, 9, 10, 11, 25, 30, 100, 1000}) {
            for (const uint64_t first : {uint64_t{0}, uint64_t{1}, page_bytes - 1, page_bytes}) {
                Extents walk(0, pages.data(), pages.size(), page_bytes);
                walk.advance(first);
                uint64_t sum = first;
                while (walk.left() != 0) {
                    const uint64_t unit = walk.unit(limit, 3);
                    REQUIRE(unit >= 1);
                    REQUIRE(unit <= limit);
                    REQUIRE(unit <= 3 * page_bytes);
                    const bool whole = walk.within() == 0 && unit % page_bytes == 0;
                    REQUIRE((whole || unit <= page_bytes - walk.within()));
                    walk.advance(unit);
                    sum += unit;
                }
                CHECK(sum == pages.size() * page_bytes);
            }
        }
    }
}

TEST_CASE("extents: the first part of a paged walk is a walk of its own") {
    const std::vector<uint64_t> pages{5, 3, 9};
    Extents walk(0, pages.data(), pages.size(), 10);
    walk.advance(7);
    Extents part = walk.first(15);
    CHECK(part.left() == 15);
    CHECK(part.address() == 57);
    CHECK(part.contiguous() == 3);
    part.advance(3);
    CHECK(part.address() == 30);
    CHECK(part.contiguous() == 10);
    part.advance(10);
    CHECK(part.address() == 90);
    CHECK(part.contiguous() == 2);
    CHECK(walk.left() == 23); // the walk it came from has not moved
}

TEST_CASE("extents: ranges, in any steps") {
    std::mt19937 random(8);
    for (const size_t count : {1, 2, 17, 40}) {
        for (const uint64_t longest : {1, 2, 7, 300}) {
            const Ranges ranges(random, count, longest);
            const std::vector<uint64_t> addresses = ranges.addresses(4096);
            for (const uint64_t stride : {uint64_t{1}, uint64_t{3}, longest, 3 * longest + 1, ranges.nbytes}) {
                Extents walk = ranges.walk(4096);
                CHECK(walk.ranged());
                CHECK(walk.page_ahead(0) == 0); // not a list of pages, which a NIC could take as one
                for (uint64_t at = 0; at < addresses.size();) {
                    REQUIRE(stands_at(walk, addresses, at));
                    const uint64_t step = std::min<uint64_t>(1 + random() % stride, walk.left());
                    walk.advance(step);
                    at += step;
                }
                REQUIRE(stands_at(walk, addresses, addresses.size()));
            }
        }
    }
}

TEST_CASE("extents: a unit is whole ranges, and so many of them at most, or a part of one") {
    std::mt19937 random(9);
    for (const uint64_t limit : {1, 9, 64, 1000, 100'000}) {
        for (const size_t most : {1, 2, 5, 1000}) {
            const Ranges ranges(random, 60, 200);
            Extents walk = ranges.walk(0);
            uint64_t sum = 0;
            while (walk.left() != 0) {
                const uint64_t unit = walk.unit(limit, most);
                REQUIRE(unit >= 1);
                REQUIRE(unit <= limit);
                // Counts the ranges that the unit covers, if it begins with a whole one.
                size_t count = 0;
                uint64_t whole = 0;
                while (walk.within() == 0 && whole < unit) {
                    whole += walk.lengths()[count++];
                }
                const bool several = walk.within() == 0 && whole == unit && count <= most;
                REQUIRE((several || unit <= walk.contiguous()));
                // the unit ends because the next range would be too much
                if (several && unit < walk.left() && count < most) {
                    REQUIRE(whole + walk.lengths()[count] > limit);
                }
                walk.advance(unit);
                sum += unit;
            }
            CHECK(sum == ranges.nbytes);
        }
    }
}

TEST_CASE("extents: the first part of a walk over ranges is a walk of its own") {
    std::mt19937 random(10);
    const Ranges ranges(random, 20, 50);
    const std::vector<uint64_t> addresses = ranges.addresses(0);
    for (uint64_t from = 0; from < ranges.nbytes; from += 7) {
        Extents walk = ranges.walk(0);
        walk.advance(from);
        Extents part = walk.first(33);
        uint64_t at = from;
        while (part.left() != 0) {
            REQUIRE(part.address() == addresses[at]);
            const uint64_t step = std::min<uint64_t>(1 + random() % 9, part.contiguous());
            part.advance(step);
            at += step;
        }
        CHECK(at == std::min<uint64_t>(from + 33, ranges.nbytes));
        REQUIRE(stands_at(walk, addresses, from));
    }
}

} // namespace test_extents
