// Tests copies: every alignment, sizes around the switches of the streaming copy, every byte, and no byte beside them.
#include "memory/copy.hpp"

#include <doctest/doctest.h>

#include <cstring>
#include <memory>
#include <random>
#include <set>

namespace test_copy {

using namespace zerohop;

namespace {

constexpr size_t kPage = 4096;
constexpr size_t kGuard = 256;
constexpr std::byte kFill{0xEE};

std::vector<std::byte> random_bytes(size_t nbytes) {
    std::mt19937_64 random(nbytes);
    std::vector<std::byte> bytes(nbytes);
    for (std::byte& byte : bytes) {
        byte = static_cast<std::byte>(random());
    }
    return bytes;
}

// The memory is page-aligned, so that the offsets below are alignments.
struct Aligned {
    explicit Aligned(size_t nbytes) : memory(nbytes + kPage) {
        void* start = memory.data();
        size_t space = memory.size();
        data = static_cast<std::byte*>(std::align(kPage, nbytes, start, space));
    }
    std::vector<std::byte> memory;
    std::byte* data;
};

void check_copy(Aligned& to, const Aligned& from, size_t to_offset, size_t from_offset, size_t nbytes) {
    std::byte* dst = to.data + kGuard + to_offset;
    const std::byte* src = from.data + from_offset;
    std::memset(dst - kGuard, static_cast<int>(kFill), nbytes + 2 * kGuard);
    REQUIRE(copy_streaming(dst, src, nbytes) == Gone::nothing);
    CAPTURE(to_offset);
    CAPTURE(from_offset);
    CAPTURE(nbytes);
    REQUIRE(std::memcmp(dst, src, nbytes) == 0);
    static const std::vector<std::byte> guard(kGuard, kFill);
    REQUIRE(std::memcmp(dst - kGuard, guard.data(), kGuard) == 0);
    REQUIRE(std::memcmp(dst + nbytes, guard.data(), kGuard) == 0);
}

} // namespace

TEST_CASE("copy: streaming, sizes around its switches") {
    // From 4 pages on the copy streams: a head up to the line, 4 pages abreast, single pages, a tail.
    std::set<size_t> sizes{0, 1, 31, 32, 33, 63, 64, 65, kPage - 1, kPage, kPage + 1};
    for (size_t pages = 3; pages <= 13; ++pages) {
        for (const int around : {-65, -64, -63, -33, -32, -31, -1, 0, 1, 31, 32, 33, 62, 63, 64, 65, 127}) {
            sizes.insert(pages * kPage + static_cast<size_t>(around + 128) - 128);
        }
    }
    const size_t largest = *sizes.rbegin();
    Aligned from(largest + kPage);
    const std::vector<std::byte> random = random_bytes(largest + kPage);
    std::memcpy(from.data, random.data(), random.size());
    Aligned to(largest + kPage + 2 * kGuard);
    for (const size_t nbytes : sizes) {
        for (const size_t to_offset : {0, 1, 31, 32, 33, 63}) {
            for (const size_t from_offset : {0, 1, 17, 32, 63}) {
                check_copy(to, from, to_offset, from_offset, nbytes);
            }
        }
    }
}

TEST_CASE("copy: streaming, all alignments") {
    constexpr size_t kBytes = 9 * kPage + 77;
    Aligned from(kBytes + kPage);
    const std::vector<std::byte> random = random_bytes(kBytes + kPage);
    std::memcpy(from.data, random.data(), random.size());
    Aligned to(kBytes + kPage + 2 * kGuard);
    for (size_t to_offset = 0; to_offset < 64; ++to_offset) {
        for (size_t from_offset = 0; from_offset < 64; from_offset += to_offset % 8 == 0 ? 1 : 9) {
            check_copy(to, from, to_offset, from_offset, 4 * kPage);
            check_copy(to, from, to_offset, from_offset, kBytes);
        }
    }
}

TEST_CASE("copy: between walks of different page sizes, in any budgets") {
    std::mt19937 random(3);
    constexpr uint64_t kBytes = 240;
    const std::vector<std::byte> source = random_bytes(4 * kBytes);
    for (const bool streaming : {false, true}) {
        for (const uint64_t src_page : {0, 1, 8, 15, 240}) {
            for (const uint64_t dst_page : {0, 2, 8, 30, 240}) {
                const auto pages = [&](uint64_t page_bytes) {
                    std::vector<uint64_t> list(page_bytes == 0 ? 0 : kBytes / page_bytes);
                    for (size_t i = 0; i < list.size(); ++i) {
                        list[i] = list.size() + i; // distinct
                    }
                    std::shuffle(list.begin(), list.end(), random);
                    return list;
                };
                const std::vector<uint64_t> from_pages = pages(src_page);
                const std::vector<uint64_t> to_pages = pages(dst_page);
                const auto walk = [&](uint64_t base, const std::vector<uint64_t>& list, uint64_t page_bytes) {
                    return page_bytes == 0 ? Extents(base, kBytes)
                                           : Extents(base, list.data(), list.size(), page_bytes);
                };
                std::vector<std::byte> target(4 * kBytes, kFill);
                const auto from_base = reinterpret_cast<uint64_t>(source.data());
                const auto to_base = reinterpret_cast<uint64_t>(target.data());
                Extents src = walk(from_base, from_pages, src_page);
                Extents dst = walk(to_base, to_pages, dst_page);
                std::vector<std::byte> expected(4 * kBytes, kFill);
                for (Extents s = src, d = dst; s.left() != 0; s.advance(1), d.advance(1)) {
                    expected[d.address() - to_base] = source[s.address() - from_base];
                }
                const Touched to_memory{to_base, target.size()};
                const Touched from_memory{from_base, source.size()};
                uint64_t moved = 0;
                while (src.left() != 0) {
                    const uint64_t budget = 1 + random() % 50;
                    const uint64_t n = copy_extents(dst, src, budget, streaming, to_memory, from_memory).nbytes;
                    REQUIRE(n == std::min(budget, kBytes - moved));
                    moved += n;
                }
                CHECK(dst.left() == 0);
                CHECK(copy_extents(dst, src, 10, streaming, to_memory, from_memory).nbytes == 0);
                CHECK((target == expected));
            }
        }
    }
}

} // namespace test_copy
