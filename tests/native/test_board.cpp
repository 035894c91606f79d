// Tests boards: ranks meet, see each other's bytes, and owe a message exactly to those who wait for one.
#include "engine_fixture.hpp"
#include "memory/board.hpp"

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

namespace test_board {

using namespace zerohop;
using namespace zerohop::test;

namespace {

constexpr uint64_t kSpin = kMillisecond;

struct Shared {
    explicit Shared(size_t ranks) : bytes(Board::bytes_for(ranks) + 64) {}
    std::byte* memory() {
        return reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(bytes.data()) + 63) / 64 * 64);
    }
    std::vector<std::byte> bytes;
};

} // namespace

TEST_CASE("board: a rank that comes later owes a message to one that has left word") {
    Shared shared(2);
    Board first(2, 0);
    Board second(2, 1);
    std::byte* at = shared.memory();
    for (uint32_t round = 1; round < 5; ++round) {
        first.begin();
        CHECK(first.arrive(at, round, 9) == 0);
        CHECK_FALSE(first.await_all(at, 1));
        CHECK(first.leave_word(at) == 0b10);
        second.begin();
        CHECK(second.arrive(at, round, 9) == 0b01);
        CHECK(second.await_all(at, 0));
        CHECK(first.await_all(at, 0));
        CHECK_FALSE(first.differing(at));
        // In the next round nobody has left word.
        first.begin();
        second.begin();
        CHECK(second.arrive(at, round, 9) == 0);
        CHECK(first.arrive(at, round, 9) == 0);
        CHECK(second.leave_word(at) == 0);
    }
}

TEST_CASE("board: a rank learns what another one has come for") {
    Shared shared(3);
    std::byte* at = shared.memory();
    std::vector<Board> boards{{3, 0}, {3, 1}, {3, 2}};
    for (auto& board : boards) {
        board.begin();
    }
    const std::array<std::pair<uint32_t, uint64_t>, 3> said{{{7, 1}, {7, 1}, {7, 2}}};
    for (size_t rank = 0; rank < 3; ++rank) {
        (void)boards[rank].arrive(at, said[rank].first, said[rank].second);
    }
    CHECK(boards[0].differing(at) == std::pair<size_t, uint32_t>(2, 7));
    CHECK(boards[2].differing(at) == std::pair<size_t, uint32_t>(0, 7));
    for (size_t rank = 0; rank < 3; ++rank) {
        boards[rank].begin();
        (void)boards[rank].arrive(at, rank == 1 ? 8 : 7, 0);
    }
    CHECK(boards[0].differing(at) == std::pair<size_t, uint32_t>(1, 8));
    CHECK(boards[1].differing(at) == std::pair<size_t, uint32_t>(0, 7));
}

TEST_CASE("board: ranks that come at any moment see each other's bytes of the round") {
    constexpr size_t kRanks = 3;
    constexpr uint32_t kRounds = 20'000;
    Shared shared(kRanks);
    std::byte* at = shared.memory();
    // Messages that have been sent from one rank to another.
    std::array<std::array<std::atomic<uint32_t>, kRanks>, kRanks> sent{};
    std::atomic<int> wrong = 0;
    std::atomic<uint64_t> messages = 0;
    const auto run = [&](size_t rank) {
        std::minstd_rand random(static_cast<unsigned>(rank + 1));
        Board board(kRanks, rank);
        std::array<uint32_t, kRanks> received{};
        for (uint32_t round = 1; round <= kRounds; ++round) {
            for (unsigned i = random() % 200; i != 0; --i) {
                cpu_pause();
            }
            board.begin();
            const uint64_t mine = uint64_t{round} << 8 | rank;
            std::memcpy(board.slot(at, rank), &mine, sizeof mine);
            Board::Ranks owed = board.arrive(at, round, 3);
            for (size_t other = 0; other < kRanks; ++other) {
                if ((owed >> other & 1U) != 0) {
                    sent[rank][other].fetch_add(1);
                    messages.fetch_add(1);
                }
            }
            if (!board.await_all(at, random() % 2 == 0 ? 0 : kSpin)) {
                const Board::Ranks coming = board.leave_word(at);
                for (size_t other = 0; other < kRanks; ++other) {
                    if ((coming >> other & 1U) != 0) {
                        const uint32_t next = ++received[other];
                        while (sent[other][rank].load() < next) {
                            sched_yield();
                        }
                    }
                }
            }
            for (size_t other = 0; other < kRanks; ++other) {
                uint64_t there = 0;
                std::memcpy(&there, board.slot(at, other), sizeof there);
                wrong += there != (uint64_t{round} << 8 | other);
            }
            wrong += board.differing(at).has_value();
        }
        for (size_t other = 0; other < kRanks; ++other) {
            wrong += sent[other][rank].load() != received[other];
        }
    };
    {
        std::vector<std::jthread> ranks;
        for (size_t rank = 0; rank < kRanks; ++rank) {
            ranks.emplace_back(run, rank);
        }
    }
    CHECK(wrong == 0);
    CHECK(messages > 0);
}

} // namespace test_board
