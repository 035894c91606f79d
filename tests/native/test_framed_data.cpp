// Tests writes, reads, page lists and atomics over every path, byte by byte, at sizes around every protocol switch.
#include "engine_fixture.hpp"

namespace test_framed_data {

using namespace zerohop;
using namespace zerohop::test;

namespace {

constexpr size_t kKi = 1024;
constexpr size_t kLargest = 5 * kKi * kKi + 3;
// Empty; a small frame's inline bytes; the bytes that post() sends itself; a slice; streaming; and odd sizes.
const std::vector<size_t> kSizes{
    0,       1,    63,           64,       65,           255,           256,       257,
    4095,    4097, 64 * kKi - 1, 64 * kKi, 64 * kKi + 1, 256 * kKi - 1, 256 * kKi, 256 * kKi + 1,
    kLargest};

} // namespace

TEST_CASE("lane: writes and reads, every byte, with guards") {
    for (const Path& path : every_path()) {
        CAPTURE(path.name);
        Pair pair(path.provider);
        unsigned seed = 0;
        for (const size_t nbytes : kSizes) {
            const size_t room = nbytes + 4096;
            const Reach reach = pair.reach(room, path.local, path.remote, path.mapped);
            for (const auto& [from, to] : {std::pair<size_t, size_t>{0, 0}, {1, 3}, {64, 4091}}) {
                CAPTURE(nbytes);
                CAPTURE(from);
                CAPTURE(to);
                const Bytes mine = pattern(room, ++seed);
                Bytes theirs = pattern(room, ++seed);
                pair.a.put(*reach.local, mine);
                pair.b.put(*reach.remote, theirs);
                REQUIRE(run(pair.a, reach.route, request(Kind::write, from, to, nbytes)) == kOk);
                overlay(theirs, to, mine, from, nbytes);
                REQUIRE(same_bytes(pair.b.get(*reach.remote), theirs));
                REQUIRE(same_bytes(pair.a.get(*reach.local), mine));

                Bytes read_into = pattern(room, ++seed);
                pair.a.put(*reach.local, read_into);
                REQUIRE(run(pair.a, reach.route, request(Kind::read, from, to, nbytes)) == kOk);
                overlay(read_into, from, theirs, to, nbytes);
                REQUIRE(same_bytes(pair.a.get(*reach.local), read_into));
                REQUIRE(same_bytes(pair.b.get(*reach.remote), theirs));
            }
            pair.a.engine->drop_route(reach.route);
            pair.a.sync();
            CHECK(reach.local->pins() == 0);
            CHECK(reach.remote->pins() == 0);
        }
    }
}

TEST_CASE("lane: an operation says how many bytes it moved") {
    for (const Path& path : every_path()) {
        CAPTURE(path.name);
        Pair pair(path.provider);
        const Reach reach = pair.reach(300'000, path.local, path.remote, path.mapped);
        for (const Kind kind : {Kind::write, Kind::read}) {
            Posted posted = post(pair.a, reach.route, request(kind, 0, 0, 300'000));
            if (posted.what == Posted::What::posted) {
                REQUIRE(pair.a.wait(posted.op) == kOk);
                CHECK(posted.op->bytes_done() == 300'000);
            }
        }
    }
}

TEST_CASE("lane: a notification comes after its data, with the byte count") {
    for (const Path& path : every_path()) {
        CAPTURE(path.name);
        Pair pair(path.provider);
        const Reach reach = pair.reach(kLargest + 7, path.local, path.remote, path.mapped);
        uint32_t value = 0;
        for (const size_t nbytes : kSizes) {
            CAPTURE(nbytes);
            const Bytes mine = pattern(nbytes, ++value);
            pair.a.put(*reach.local, mine);
            Posted posted = post(pair.a, reach.route, request(Kind::write, 0, 7, nbytes, value));
            const Notification note = notification(pair.b);
            CHECK(note.value == value);
            CHECK(note.nbytes == nbytes);
            CHECK(note.peer == pair.b.peer->id());
            REQUIRE(same_bytes(pair.b.get(*reach.remote, 7, nbytes), mine));
            CHECK(pair.a.wait(std::move(posted)) == kOk);
        }
        CHECK(run(pair.a, reach.route, request(Kind::write, 0, 0, 8, UINT32_MAX)) == kOk);
        CHECK(notification(pair.b).value == UINT32_MAX);
        CHECK_FALSE(pair.b.engine->pop_notification(0, 0, 0, false).has_value());
    }
}

TEST_CASE("lane: page lists") {
    struct Shape {
        size_t page_bytes;
        size_t count;
    };
    // Many frames of pages, whole slices, more than a slice per page, and more pages than one request of a read holds.
    const std::vector<Shape> shapes{{1, 3},         {16, 700},       {1000, 2500},  {1024, 1},         {4096, 513},
                                    {256 * kKi, 3}, {300'000, 5},    {8, 8192},     {8, 8193},         {8, 20'000},
                                    {64 * kKi, 9},  {128 * kKi, 11}, {100'000, 17}, {256 * kKi - 1, 4}};
    for (const Path& path : every_path()) {
        CAPTURE(path.name);
        Pair pair(path.provider);
        const size_t room = 3'000'000;
        const Reach reach = pair.reach(room, path.local, path.remote, path.mapped);
        unsigned seed = 100;
        for (const Shape& shape : shapes) {
            CAPTURE(shape.page_bytes);
            CAPTURE(shape.count);
            const size_t pages = (room - 64) / shape.page_bytes;
            const std::vector<uint64_t> local = shuffled(shape.count, pages, ++seed);
            const std::vector<uint64_t> remote = shuffled(shape.count, pages, ++seed);
            const Bytes mine = pattern(room, ++seed);
            Bytes theirs = pattern(room, ++seed);
            pair.a.put(*reach.local, mine);
            pair.b.put(*reach.remote, theirs);
            Request write = page_request(Kind::write, local, remote, shape.page_bytes, 5);
            write.local_offset = 3;
            write.remote_offset = 17;
            REQUIRE(run(pair.a, reach.route, write) == kOk);
            for (size_t i = 0; i < shape.count; ++i) {
                overlay(theirs, 17 + remote[i] * shape.page_bytes, mine, 3 + local[i] * shape.page_bytes,
                        shape.page_bytes);
            }
            CHECK(notification(pair.b).nbytes == shape.count * shape.page_bytes);
            REQUIRE(same_bytes(pair.b.get(*reach.remote), theirs));

            Bytes read_into = pattern(room, ++seed);
            pair.a.put(*reach.local, read_into);
            Request read = page_request(Kind::read, local, remote, shape.page_bytes);
            read.local_offset = 3;
            read.remote_offset = 17;
            REQUIRE(run(pair.a, reach.route, read) == kOk);
            for (size_t i = 0; i < shape.count; ++i) {
                overlay(read_into, 3 + local[i] * shape.page_bytes, theirs, 17 + remote[i] * shape.page_bytes,
                        shape.page_bytes);
            }
            REQUIRE(same_bytes(pair.a.get(*reach.local), read_into));
        }
        CHECK(run(pair.a, reach.route, page_request(Kind::write, {}, {}, 64, 9)) == kOk);
        CHECK(notification(pair.b).value == 9);
        CHECK(run(pair.a, reach.route, page_request(Kind::read, {}, {}, 64)) == kOk);
        pair.a.sync();
        CHECK(reach.local->pins() == 0);
    }
}

TEST_CASE("lane: atomics") {
    for (const Path& path : every_path()) {
        CAPTURE(path.name);
        Pair pair(path.provider);
        const Reach reach = pair.reach(4096, path.local, path.remote, path.mapped);
        pair.b.put(*reach.remote, Bytes(4096, 0));
        const auto atomic = [&](Kind kind, uint64_t offset, uint64_t operand, uint64_t compare, Outcome expected) {
            Request r = request(kind, 0, offset, 8);
            r.operand = operand;
            r.compare = compare;
            Posted posted = post(pair.a, reach.route, r);
            if (posted.what != Posted::What::posted) {
                CHECK(posted.outcome == expected);
                return posted.value;
            }
            CHECK(pair.a.wait(posted.op) == expected);
            return posted.op->value();
        };
        for (uint64_t i = 0; i < 5; ++i) {
            CHECK(atomic(Kind::fetch_add, 64, 3, 0, kOk) == i * 3);
        }
        CHECK(atomic(Kind::compare_swap, 64, 100, 14, kOk) == 15); // not equal: unchanged
        CHECK(atomic(Kind::compare_swap, 64, 100, 15, kOk) == 15);
        CHECK(atomic(Kind::fetch_add, 64, UINT64_MAX, 0, kOk) == 100); // wraps: minus one
        CHECK(atomic(Kind::fetch_add, 64, 0, 0, kOk) == 99);
        CHECK(atomic(Kind::fetch_add, 4088, 1, 0, kOk) == 0);
        CHECK(atomic(Kind::fetch_add, 65, 1, 0, {Status::unsupported, Reason::misaligned}) == 0);
        atomic(Kind::fetch_add, 4089, 1, 0, {Status::access_denied, Reason::bounds});
        atomic(Kind::fetch_add, UINT64_MAX - 3, 1, 0, {Status::access_denied, Reason::bounds});
        Bytes word(8, 0);
        word[0] = 99;
        CHECK(pair.b.get(*reach.remote, 64, 8) == word);
        CHECK(pair.b.get(*reach.remote, 72, 8) == Bytes(8, 0));
    }
}

TEST_CASE("lane: atomics of both sides and many threads add up") {
    for (const Path& path : every_path()) {
        CAPTURE(path.name);
        Pair pair(path.provider);
        const Reach reach = pair.reach(64, path.local, path.remote, path.mapped);
        pair.b.put(*reach.remote, Bytes(64, 0));
        constexpr uint64_t kEach = 200;
        std::vector<std::thread> threads;
        for (int t = 0; t < 3; ++t) {
            threads.emplace_back([&] {
                for (uint64_t i = 0; i < kEach; ++i) {
                    Request r = request(Kind::fetch_add, 0, 8, 8);
                    r.operand = 1;
                    REQUIRE(run(pair.a, reach.route, r) == kOk);
                }
            });
        }
        for (std::thread& thread : threads) {
            thread.join();
        }
        Bytes sum(8, 0);
        sum[0] = 3 * kEach % 256;
        sum[1] = 3 * kEach / 256;
        CHECK(pair.b.get(*reach.remote, 8, 8) == sum);
    }
}

TEST_CASE("lane: notify alone, and flush") {
    for (const std::string provider : {"shm", "tcp", "flows"}) {
        CAPTURE(provider);
        Pair pair(provider);
        const Reach reach = pair.reach(1 << 20);
        CHECK(pair.a.wait(post(pair.a, request(Kind::flush, 0, 0, 0))) == kOk); // nothing is in flight
        std::vector<Posted> writes;
        for (int i = 0; i < 20; ++i) {
            writes.push_back(post(pair.a, reach.route, request(Kind::write, 0, 0, 1 << 20)));
        }
        Posted flush = post(pair.a, request(Kind::flush, 0, 0, 0));
        CHECK(pair.a.wait(std::move(flush)) == kOk);
        for (Posted& write : writes) {
            CHECK(write.op->done());
            CHECK(pair.a.wait(std::move(write)) == kOk);
        }
        CHECK(pair.a.wait(post(pair.a, request(Kind::notify, 0, 0, 0, 77))) == kOk);
        const Notification note = notification(pair.b);
        CHECK(note.value == 77);
        CHECK(note.nbytes == 0);
    }
}

TEST_CASE("lane: a flush waits for mapped copies too") {
    Pair pair("shm");
    const Reach reach = pair.reach(8 << 20, kHostDevice, kHostDevice, true);
    Posted write = post(pair.a, reach.route, request(Kind::write, 0, 0, 8 << 20));
    REQUIRE(write.what == Posted::What::posted);
    CHECK(pair.a.wait(post(pair.a, request(Kind::flush, 0, 0, 0))) == kOk);
    CHECK(write.op->done());
}

} // namespace test_framed_data
