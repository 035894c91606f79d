// Tests rings of transfers: results that are kept, waits for them, cancels and priorities.
#include "file_fixture.hpp"

#include <algorithm>
#include <array>
#include <numeric>

namespace test_file_ring {

using namespace zerohop;
using namespace zerohop::test;
using storage::Completion;
using storage::Priority;
using storage::Ring;

TEST_CASE("files: a ring keeps each result until it is taken, and no more than it has entries") {
    for (auto& io : backends()) {
        const Files files(std::move(io));
        const Bytes there = pattern(1 << 20, 3);
        const TestFile file(there);
        const auto memory = files.side.alloc(1 << 20);
        const auto ring = std::make_shared<Ring>(*files.side.engine, 256);
        CHECK(!ring->reserve(257));
        REQUIRE(ring->reserve(256));
        CHECK(!ring->reserve(1));
        std::vector<Range> ranges;
        for (uint64_t i = 0; i < 256; ++i) {
            ranges.push_back(
                {.file_offset = (255 - i) * 4096, .memory_offset = i * 4096, .nbytes = 4096, .userdata = i});
        }
        REQUIRE(files.queue->post({file.file, place_of(memory)}, ranges, ring).ok());
        std::vector<uint64_t> seen;
        while (ring->taken_up() != 0) {
            REQUIRE(files.side.engine->wait([&] { return ring->ready() != 0; }, soon(), 0));
            std::array<Completion, 100> taken;
            const size_t count = ring->take(taken);
            for (size_t i = 0; i < count; ++i) {
                CHECK(taken[i].result == 4096);
                seen.push_back(taken[i].userdata);
            }
        }
        std::sort(seen.begin(), seen.end());
        std::vector<uint64_t> all(256);
        std::iota(all.begin(), all.end(), uint64_t{0});
        CHECK(seen == all);
        Bytes expected(1 << 20);
        for (size_t i = 0; i < 256; ++i) {
            overlay(expected, i * 4096, there, (255 - i) * 4096, 4096);
        }
        CHECK(same_bytes(files.side.get(*memory), expected));
    }
}

TEST_CASE("files: several wait for the results of a ring, each for as many as it wants") {
    auto made = std::make_unique<PlayedIo>();
    PlayedIo& io = *made;
    const Files files(std::move(made));
    const TestFile file(Bytes(8192, 1));
    const auto memory = files.side.alloc(8192);
    const auto ring = std::make_shared<Ring>(*files.side.engine, 4);
    const auto waits_for = [&](size_t results) {
        OpRef op = files.side.engine->operations().create(0);
        ring->end_when(results, op);
        return op;
    };
    CHECK(waits_for(3)->done()); // nothing can come
    REQUIRE(ring->reserve(3));
    const std::vector<Range> ranges{{.nbytes = 10}, {.nbytes = 20}, {.nbytes = 30}};
    REQUIRE(files.queue->post({file.file, place_of(memory)}, ranges, ring).ok());
    const OpRef one = waits_for(1);
    const OpRef other = waits_for(1);
    const OpRef two = waits_for(2);
    const OpRef all = waits_for(9);
    CHECK(!one->done());
    io.end(io.added()[0], 10);
    CHECK(files.side.wait(one) == kOk);
    CHECK(files.side.wait(other) == kOk);
    CHECK(!two->done());
    io.end(io.added()[1], 20);
    CHECK(files.side.wait(two) == kOk);
    CHECK(!all->done());
    std::array<Completion, 4> taken;
    CHECK(ring->take(taken) == 2);
    CHECK(!all->done());
    io.end(io.added()[2], 30);
    CHECK(files.side.wait(all) == kOk);
    CHECK(ring->ready() == 1);
}

TEST_CASE("files: a transfer that the system was asked for in full is not cancelled any more, and ends as usual") {
    auto made = std::make_unique<PlayedIo>();
    PlayedIo& io = *made;
    const Files files(std::move(made));
    const TestFile file(Bytes(8192, 1));
    const auto memory = files.side.alloc(8192);
    const auto ring = std::make_shared<Ring>(*files.side.engine, 8);
    const auto other = std::make_shared<Ring>(*files.side.engine, 1);
    REQUIRE(ring->reserve(6));
    REQUIRE(other->reserve(1));
    std::vector<Range> ranges;
    for (uint64_t i = 0; i < 6; ++i) { // four are under way, and two wait
        ranges.push_back({.file_offset = i * 100, .memory_offset = i * 100, .nbytes = 100, .userdata = i});
    }
    ranges[5].userdata = 1;
    REQUIRE(files.queue->post({file.file, place_of(memory)}, ranges, ring).ok());
    const std::vector<Range> foreign{{.nbytes = 10, .userdata = 1}};
    REQUIRE(files.queue->post({file.file, place_of(memory)}, foreign, other).ok());
    const auto ended = [&](size_t count) {
        CHECK(eventually([&] {
            let_poll(files);
            return ring->ready() >= count;
        }));
        std::vector<Completion> taken(8);
        taken.resize(ring->take(taken));
        CHECK(taken.size() == count);
        return taken;
    };

    CHECK(files.queue->cancel(*ring, 99, kCancelled) == 0);
    CHECK(files.queue->cancel(*ring, 4, kCancelled) == 1);
    const std::vector<Completion> waited = ended(1); // it had not begun
    CHECK(waited[0].userdata == 4);
    CHECK(waited[0].outcome == kCancelled);

    CHECK(files.queue->cancel(*ring, 1, kCancelled) == 1); // another one of this number is under way
    CHECK(files.queue->cancel(*ring, 1, kCancelled) == 0);
    const std::vector<Completion> second = ended(1);
    CHECK(second[0].userdata == 1);
    CHECK(second[0].outcome == kCancelled);
    let_poll(files);
    CHECK(ring->ready() == 0);
    CHECK(!memory->close());
    const std::vector<Job> jobs = io.added();
    REQUIRE(jobs.size() == 4);
    io.end(jobs[1], 100);
    const std::vector<Completion> first = ended(1);
    CHECK(first[0].userdata == 1);
    CHECK(first[0].result == 100);
    CHECK(first[0].outcome == kOk);
    io.end(jobs[0], 100);
    const std::vector<Completion> good = ended(1);
    CHECK(good[0].userdata == 0);
    CHECK(good[0].result == 100);
    CHECK(good[0].outcome == kOk);

    CHECK(files.queue->cancel(*ring, std::nullopt, kCancelled) == 0);
    REQUIRE(io.added().size() == 5);
    io.end(io.added()[4], 10);
    CHECK(eventually([&] {
        let_poll(files);
        return other->ready() == 1;
    }));
    std::array<Completion, 1> untouched;
    CHECK(other->take(untouched) == 1);
    CHECK(untouched[0].outcome == kOk);
    io.end(jobs[2], 60); // the file ends there
    CHECK(eventually([&] {
        let_poll(files);
        return io.added().size() == 6;
    }));
    io.end(io.added()[5], 0);
    const std::vector<Completion> part = ended(1);
    CHECK(part[0].result == 60);
    CHECK(part[0].outcome == kOk);
    io.end(jobs[3], -EIO);
    const std::vector<Completion> failed = ended(1);
    CHECK(failed[0].result == -EIO);
    CHECK(failed[0].outcome == Outcome{Status::file_error, Reason::none});
    CHECK(ring->taken_up() == 0);
    CHECK(memory->pins() == 0);
}

TEST_CASE("files: a cancelled transfer of many pieces begins no more of them, and has one result") {
    auto made = std::make_unique<PlayedIo>();
    PlayedIo& io = *made;
    const Files files(std::move(made));
    const TestFile file(Bytes(100, 1));
    const auto memory = files.side.alloc(100 * kPieceBytes);
    const auto ring = std::make_shared<Ring>(*files.side.engine, 1);
    REQUIRE(ring->reserve(1));
    const std::vector<Range> large{{.nbytes = 100 * kPieceBytes, .userdata = 7}};
    REQUIRE(files.queue->post({file.file, place_of(memory)}, large, ring).ok());
    CHECK(io.added().size() == io.depth());
    CHECK(files.queue->cancel(*ring, 7, kCancelled) == 1);
    for (const Job& job : io.added()) {
        CHECK(ring->ready() == 0);
        io.end(job, static_cast<int32_t>(job.nbytes));
        let_poll(files);
    }
    CHECK(eventually([&] {
        let_poll(files);
        return ring->ready() == 1;
    }));
    CHECK(io.added().size() == io.depth());
    std::array<Completion, 1> taken;
    CHECK(ring->take(taken) == 1);
    CHECK(taken[0].outcome == kCancelled);
    CHECK(memory->pins() == 0);
}

TEST_CASE("files: a higher priority goes first where not all can be under way") {
    auto made = std::make_unique<PlayedIo>();
    PlayedIo& io = *made;
    const Files files(std::move(made));
    const TestFile file(Bytes(8192, 1));
    const auto memory = files.side.alloc(8192);
    const auto ring = std::make_shared<Ring>(*files.side.engine, 16);
    REQUIRE(ring->reserve(10));
    const auto post = [&](Priority priority, const std::vector<Range>& ranges) {
        REQUIRE(files.queue->post({file.file, place_of(memory), false, priority}, ranges, ring).ok());
    };
    post(Priority::low, {{.nbytes = 1}, {.nbytes = 2}, {.nbytes = 3}, {.nbytes = 4}}); // all that can be under way
    post(Priority::low, {{.nbytes = 31}, {.nbytes = 32}});
    post(Priority::normal, {{.nbytes = 21}, {.nbytes = 22}});
    post(Priority::high, {{.nbytes = 11}, {.nbytes = 12}});
    REQUIRE(io.added().size() == 4);
    for (size_t i = 0; i < 10; ++i) { // each that ends makes room for one
        const Job job = io.added()[i];
        io.end(job, static_cast<int32_t>(job.nbytes));
        CHECK(eventually([&] {
            let_poll(files);
            return ring->ready() == i + 1 && io.added().size() == std::min<size_t>(10, i + 5);
        }));
    }
    std::vector<uint32_t> order;
    std::vector<Priority> told;
    for (const Job& job : io.added()) {
        order.push_back(job.nbytes);
        told.push_back(job.priority);
    }
    CHECK(order == std::vector<uint32_t>{1, 2, 3, 4, 11, 12, 21, 22, 31, 32});
    CHECK(told[4] == Priority::high);
    CHECK(told[6] == Priority::normal);
    CHECK(told[8] == Priority::low);
}

TEST_CASE("files: of a range in parts count the bytes up to the first part that stops short") {
    const Side side;
    const auto run = [&](uint64_t least, const std::vector<std::pair<uint64_t, storage::Ended>>& ends) {
        OpRef op = side.engine->operations().create(0);
        storage::PartsSink sink(*side.engine, op, {{0, 0, 8}, {0, 8, 8}, {0, 16, 4}, {1, 0, 8}}, {20, 8}, least);
        for (const auto& [part, ended] : ends) {
            CHECK_FALSE(op->done());
            sink.ended({.userdata = part}, ended);
        }
        const Outcome outcome = side.wait(op);
        return std::pair(outcome, op->bytes_done());
    };
    const auto done = [](uint64_t nbytes) { return storage::Ended{nbytes, {}, 0}; };
    constexpr Outcome kError{Status::file_error, Reason::none};
    CHECK((run(28, {{3, done(8)}, {0, done(8)}, {2, done(4)}, {1, done(8)}}) == std::pair(kOk, uint64_t{28})));
    CHECK((run(0, {{3, done(8)}, {0, done(8)}, {2, done(4)}, {1, done(5)}}) == std::pair(kOk, uint64_t{13 + 8})));
    CHECK((run(28, {{3, done(8)}, {0, done(8)}, {2, done(4)}, {1, done(5)}}) == std::pair(kError, uint64_t{13 + 8})));
    CHECK((run(0, {{0, {3, kError, ENOSPC}}, {1, done(8)}, {2, done(4)}, {3, done(8)}}) ==
           std::pair(kError, uint64_t{3 + 8})));
}

} // namespace test_file_ring
