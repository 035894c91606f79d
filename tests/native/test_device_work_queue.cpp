// Tests send queues that kernels write, with threads of the host as kernels, and a NIC in software.
#include "work_queue_fixture.hpp"

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

namespace test_device_work_queue {

using namespace zerohop;
using namespace zerohop::test;
using namespace zerohop::test::work_queue;

TEST_CASE("device work queue: the five steps move the bytes, and only them") {
    for (const bool collapsed : {false, true}) {
        Rig rig(16, collapsed);
        rig.start();
        for (const size_t nbytes : {1, 7, 8, 1000, 4096, 20011}) {
            REQUIRE(rig.send(33, 1027, nbytes) == zd::kOk);
            CHECK(std::memcmp(rig.local.data() + 33, rig.remote.data() + 1027, nbytes) == 0);
        }
        CHECK(rig.post(0, 0, 0).status == zd::kFailed); // a NIC takes 0 for 2 GiB
        CHECK(rig.send(0, 0, 1) == zd::kOk);
        CHECK(rig.remote[1026] == 0xA5);
        CHECK(rig.remote[1027 + 20011] == 0xA5);
    }
}

TEST_CASE("device work queue: many threads, a short queue, late completions, and more requests than 16 bits count") {
    for (const bool collapsed : {false, true}) {
        constexpr size_t kThreads = 8;
        constexpr size_t kEach = 9000; // of all threads more than 65,536
        constexpr size_t kPart = 8;
        Rig rig(32, collapsed, kThreads * kEach * kPart);
        rig.nic.late = true;
        rig.start();
        std::atomic<size_t> wrong{0};
        std::vector<std::thread> threads;
        for (size_t number = 0; number < kThreads; ++number) {
            threads.emplace_back([&, number] {
                mlx5::Posted last{};
                for (size_t i = 0; i < kEach; ++i) {
                    const size_t at = (number * kEach + i) * kPart;
                    last = rig.post(at, at, kPart);
                    wrong += last.status != zd::kOk || rig.ring(last) != zd::kOk ? 1 : 0;
                }
                wrong += mlx5::PollCq(&rig.queue, last) != zd::kOk ? 1 : 0;
            });
        }
        for (std::thread& each : threads) {
            each.join();
        }
        CHECK(wrong == 0);
        CHECK(rig.local == rig.remote);
        CHECK(rig.counters[0] == kThreads * kEach);
        CHECK(rig.counters[2] == kThreads * kEach);
    }
}

TEST_CASE("device work queue: one thread rings for those that have become ready meanwhile") {
    Rig rig(16, false);
    mlx5::Posted first = rig.post(0, 0, 8);
    mlx5::Posted second = rig.post(8, 8, 8);
    mlx5::Posted third = rig.post(16, 16, 8);
    REQUIRE(mlx5::UpdateSendDbrRecord(&rig.queue, first) == zd::kOk);
    REQUIRE(rig.ring(second) == zd::kOk);
    REQUIRE(rig.ring(third) == zd::kOk);
    CHECK_FALSE(rig.assist.poll()); // nobody has rung
    REQUIRE(mlx5::RingDoorbell(&rig.queue, first) == zd::kOk);
    CHECK(rig.assist.poll());
    CHECK(mlx5::PollCq(&rig.queue, third) == zd::kOk);
    CHECK(rig.counters[2] == 3);
    CHECK(rig.remote[16] == rig.local[16]);
    mlx5::Posted next = rig.post(24, 24, 8);
    REQUIRE(rig.ring(next) == zd::kOk);
    CHECK(rig.assist.poll());
    CHECK(rig.remote[24] == rig.local[24]);
}

TEST_CASE("device work queue: a wrong key or range is a status, and what is behind it is not carried out") {
    for (const bool collapsed : {false, true}) {
        for (const bool remote : {false, true}) {
            Rig rig(16, collapsed);
            rig.start();
            const size_t outside = rig.local.size() - 7;
            REQUIRE(rig.send(0, 0, 64) == zd::kOk);
            CHECK(rig.send(remote ? 0 : outside, remote ? outside : 0, 8) == zd::kFailed);
            CHECK(rig.send(64, 64, 64) == zd::kFailed);
            CHECK(rig.remote[64] == 0xA5);
        }
    }
}

TEST_CASE("device work queue: waits end in time, and with the host") {
    for (const bool collapsed : {false, true}) {
        SUBCASE("nobody serves it") {
            Rig rig(4, collapsed);
            rig.queue.timeout_ns = kSecond / 20;
            for (int i = 0; i < 4; ++i) {
                mlx5::Posted posted = rig.post(0, 0, 8);
                REQUIRE(rig.ring(posted) == zd::kOk);
            }
            CHECK(rig.post(0, 0, 8).status == zd::kTimedOut); // the queue is full
            CHECK(rig.send(0, 0, 8) == zd::kTimedOut);        // and it is over
        }
        SUBCASE("a completion never comes") {
            Rig rig(4, collapsed);
            rig.nic.drops_from = 1;
            rig.start();
            CHECK(rig.send(0, 0, 8) == zd::kOk);
            rig.queue.timeout_ns = kSecond / 20;
            CHECK(rig.send(0, 8, 8) == zd::kTimedOut);
            CHECK(rig.remote[8] == 0xA5);
        }
        SUBCASE("the host closes it") {
            Rig rig(4, collapsed);
            mlx5::Posted posted = rig.post(0, 0, 8);
            REQUIRE(rig.ring(posted) == zd::kOk);
            rig.assist.close(zd::kClosed);
            CHECK(mlx5::PollCq(&rig.queue, posted) == zd::kClosed);
        }
    }
}

TEST_CASE("device work queue: an old counter is not taken for 65,536 completions") {
    Rig rig(16, true);
    rig.start();
    for (int i = 0; i < 40; ++i) {
        REQUIRE(rig.send(0, 0, 8) == zd::kOk);
    }
    rig.stop();
    auto* entry = reinterpret_cast<uint8_t*>(rig.memory->host()) + rig.layout.completions;
    const Word done = rig.counters[2];
    for (const unsigned stale : {0U, 20U, 38U, 39U}) {
        entry[mlx5::kCounterAt] = 0;
        entry[mlx5::kCounterAt + 1] = static_cast<uint8_t>(stale);
        CHECK(mlx5::detail::take_completions(&rig.queue) == zd::kOk);
        CHECK(rig.counters[2] == done);
    }
}

TEST_CASE("device work queue: whatever a NIC would refuse is refused") {
    mlx5::Block block{};
    const uint64_t index = 0x12345;
    mlx5::build_transfer(block, mlx5::Opcode::write, index, kNumber, {1, 2}, {3, 4}, 5, mlx5::Completion::always);
    REQUIRE(mlx5::take_apart(block, index, kNumber).has_value());
    const mlx5::Request request = mlx5::take_apart(block, index, kNumber).value();
    CHECK(request.remote.address == 1);
    CHECK(request.remote.key == 2);
    CHECK(request.local.address == 3);
    CHECK(request.local.key == 4);
    CHECK(request.nbytes == 5);
    CHECK_FALSE(mlx5::take_apart(block, index + 1, kNumber).has_value());
    CHECK_FALSE(mlx5::take_apart(block, index, kNumber + 1).has_value());
    for (unsigned bit = 0; bit < 8 * 16; ++bit) { // of the control segment, but for the immediate
        mlx5::Block flipped = block;
        flipped.words[bit / 32] ^= 1U << bit % 32;
        const bool reads = flipped.words[0] == (block.words[0] ^ (0x18U << 24)); // the code of a read
        const bool fenced = flipped.words[2] == static_cast<unsigned>(mlx5::Completion::always_fenced) << 24;
        CHECK((bit >= 96 || reads || fenced || !mlx5::take_apart(flipped, index, kNumber).has_value()));
    }
    mlx5::Block tall = block;
    tall.words[mlx5::detail::kData] = mlx5::big((1U << 30) + 1);
    CHECK_FALSE(mlx5::take_apart(tall, index, kNumber).has_value());
    tall.words[mlx5::detail::kData] = 0;
    CHECK_FALSE(mlx5::take_apart(tall, index, kNumber).has_value());
    CHECK(mlx5::tail_of(mlx5::doorbell_of(block), index, 16, kNumber) == index + 1);
    CHECK(mlx5::tail_of(mlx5::doorbell_of(index, kNumber), index, 16, kNumber) == index + 1);
    CHECK_FALSE(mlx5::tail_of(mlx5::doorbell_of(block), index + 2, 16, kNumber).has_value());
    CHECK_FALSE(mlx5::tail_of(mlx5::doorbell_of(block), index - 16, 16, kNumber).has_value());
    CHECK_FALSE(mlx5::tail_of(mlx5::doorbell_of(block), index, 16, kNumber + 1).has_value());
}

TEST_CASE("device work queue: atomics and bytes inline are taken apart") {
    constexpr uint64_t kIndex = 0x12345;
    constexpr mlx5::Place kThere{0x1122334455667788, 9};
    mlx5::Block block{};
    mlx5::build_atomic(block, mlx5::Opcode::compare_swap, kIndex, kNumber, kThere, {3, 4}, 5, 6,
                       mlx5::Completion::always_fenced);
    const mlx5::Request atomic = mlx5::take_apart(block, kIndex, kNumber).value();
    CHECK((atomic.opcode == mlx5::Opcode::compare_swap && atomic.fenced && atomic.nbytes == 8));
    CHECK((atomic.operand == 5 && atomic.compare == 6));
    CHECK((atomic.remote.address == kThere.address && atomic.remote.key == 9));
    CHECK((atomic.local.address == 3 && atomic.local.key == 4 && atomic.payload.empty()));
    block.words[mlx5::detail::kAtomicData] = mlx5::big(4);
    CHECK_FALSE(mlx5::take_apart(block, kIndex, kNumber).has_value());
    for (unsigned nbytes = 1; nbytes <= mlx5::kInlineBytes; ++nbytes) {
        const std::string bytes(nbytes, static_cast<char>('a' + nbytes % 26));
        mlx5::build_inline_write(block, kIndex, kNumber, kThere, reinterpret_cast<const unsigned char*>(bytes.data()),
                                 nbytes, mlx5::Completion::always);
        const mlx5::Request write = mlx5::take_apart(block, kIndex, kNumber).value();
        CHECK((write.payload == bytes && !write.fenced && write.nbytes == nbytes));
        CHECK((write.remote.address == kThere.address && write.remote.key == 9));
        block.words[mlx5::detail::kData] = mlx5::big((nbytes + 16) | mlx5::kInlineMark); // of other segments
        CHECK_FALSE(mlx5::take_apart(block, kIndex, kNumber).has_value());
        block.words[mlx5::detail::kData] = mlx5::big(mlx5::kInlineMark);
        CHECK_FALSE(mlx5::take_apart(block, kIndex, kNumber).has_value());
    }
}

TEST_CASE("device work queue: a refused request fails after those before it have ended") {
    for (const bool collapsed : {false, true}) {
        Rig rig(16, collapsed);
        rig.nic.holds = true;
        mlx5::Posted good = rig.post(0, 0, 64);
        REQUIRE(rig.ring(good) == zd::kOk);
        mlx5::Posted bad = rig.post(64, 64, 64);
        auto* block = reinterpret_cast<mlx5::Block*>(rig.memory->host() + mlx5::QueueLayout::kBlocks) + bad.index;
        block->words[3 + mlx5::detail::kRemote] = 1; // has to be zero
        REQUIRE(rig.ring(bad) == zd::kOk);
        CHECK(rig.assist.poll());
        CHECK(rig.assist.refused());
        CHECK(rig.assist.left() == 1); // the good one is under way
        CHECK(mlx5::detail::take_completions(&rig.queue) == zd::kOk);
        rig.nic.holds = false;
        CHECK(rig.assist.poll());
        CHECK(rig.assist.left() == 0);
        if (!collapsed) {
            CHECK(mlx5::PollCq(&rig.queue, good) == zd::kOk);
        }
        CHECK(mlx5::PollCq(&rig.queue, bad) == zd::kFailed);
        CHECK(rig.remote[0] == rig.local[0]);
        CHECK(rig.remote[64] == 0xA5);
    }
}

TEST_CASE("device work queue: a doorbell without its record, or with bits of the receive queue's, ends the queue") {
    for (const Word record : {Word(0), Word(1), Word(0xffff0000) << 32}) {
        Rig rig(16, false);
        const mlx5::Posted posted = rig.post(0, 0, 8);
        __atomic_store_n(reinterpret_cast<Word*>(rig.queue.record), record, __ATOMIC_RELEASE);
        __atomic_store_n(reinterpret_cast<Word*>(rig.queue.doorbell), mlx5::doorbell_of(posted.index, kNumber),
                         __ATOMIC_RELEASE);
        CHECK(rig.assist.poll());
        CHECK(mlx5::PollCq(&rig.queue, posted) == zd::kFailed);
        CHECK(rig.remote[0] == 0xA5);
    }
}

} // namespace test_device_work_queue
