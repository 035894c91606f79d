// Tests transfers that a server on the host carries out for its client, asked for over a lane.
#include "served_fixture.hpp"

namespace test_file_serving {

using namespace zerohop;
using namespace zerohop::test;
using storage::Priority;
using storage::Purpose;

namespace {

// A server of a file of 8 KiB whose system the test plays, and a client with as much memory.
struct Played : Served {
    explicit Played(std::unique_ptr<PlayedIo> io = std::make_unique<PlayedIo>()) : Played(*io, io) {}

    PlayedIo& system;
    TestFile file{pattern(8192, 3)};
    Reach reach = pair.reach(8192, kHostDevice, kHostDevice, true);
    Number file_number = add_file(file);
    Number memory_number = add_memory(reach);

private:
    Played(PlayedIo& played, std::unique_ptr<PlayedIo>& io) : Served(std::move(io)), system(played) {}
};

} // namespace

TEST_CASE("files served: every byte, both ways") {
    for (auto& io : backends()) {
        const std::string backend = io->name();
        CAPTURE(backend);
        Served served(std::move(io));
        const Bytes there = pattern(kFileBytes, 3);
        const TestFile file(there);
        Reach reach = served.pair.reach(kFileBytes, kHostDevice, kHostDevice, true);
        const auto number = served.add_file(file);
        const auto memory = served.add_memory(reach);
        served.pair.b.put(*reach.remote, Bytes(kFileBytes, 0xee));
        OpRef op =
            served.start({number, memory}, {{.file_offset = 41, .memory_offset = 13, .nbytes = kFileBytes - 99}});
        CHECK(served.pair.b.wait(op) == kOk);
        CHECK(op->bytes_done() == kFileBytes - 99);
        Bytes expected(kFileBytes, 0xee);
        overlay(expected, 13, there, 41, kFileBytes - 99);
        CHECK(same_bytes(served.pair.b.get(*reach.remote), expected));

        op = served.start({number, memory, true}, {{.file_offset = 7, .memory_offset = 13, .nbytes = kFileBytes - 99}});
        CHECK(served.pair.b.wait(op) == kOk);
        expected = there;
        overlay(expected, 7, there, 41, kFileBytes - 99);
        CHECK(same_bytes(file.bytes(), expected));

        std::vector<Range> many;
        for (uint64_t i = 0; i < 20'000; ++i) { // more than are under way at once
            many.push_back({.file_offset = i, .memory_offset = i * 8, .nbytes = 8, .userdata = i});
        }
        op = served.start({number, memory}, many);
        CHECK(served.pair.b.wait(op) == kOk);
        CHECK(op->bytes_done() == 160'000);
        const Bytes now = file.bytes();
        const Bytes found = served.pair.b.get(*reach.remote);
        bool same = true;
        for (size_t i = 0; i < many.size(); ++i) {
            same &= std::equal(found.begin() + i * 8, found.begin() + i * 8 + 8, now.begin() + i);
        }
        CHECK(same);
    }
}

TEST_CASE("files served: what is refused") {
    Served served(storage::open_threads(2));
    const TestFile file(pattern(8192, 3));
    Reach reach = served.pair.reach(8192, kHostDevice, kHostDevice, true);
    const auto number = served.add_file(file, true, false);
    const auto memory = served.add_memory(reach);
    const auto run = [&](const Served::Number& of_file, const Served::Number& of_memory, bool write,
                         const Range& range) {
        return served.pair.b.wait(served.start({of_file, of_memory, write}, {range}));
    };
    CHECK(run(number, memory, false, {.nbytes = 8192}) == kOk);
    CHECK(run(number, memory, true, {.nbytes = 10}) == Outcome{Status::access_denied, Reason::rights});
    CHECK(run(number, memory, false, {.nbytes = 8193}) == Outcome{Status::access_denied, Reason::bounds});
    CHECK(run(number, memory, false, {.memory_offset = 1, .nbytes = 8192}) ==
          Outcome{Status::access_denied, Reason::bounds});
    CHECK(run(number, memory, false, {.file_offset = UINT64_MAX, .nbytes = 2}) ==
          Outcome{Status::access_denied, Reason::bounds});
    CHECK(run(served.number(Purpose::What::forget_file, 9), memory, false, {.nbytes = 1}) ==
          Outcome{Status::access_denied, Reason::unknown_share});
    CHECK(run(number, served.number(Purpose::What::forget_memory, 9), false, {.nbytes = 1}) ==
          Outcome{Status::access_denied, Reason::unknown_share});
    served.asking->forget(Purpose::What::forget_file, number->value());
    CHECK(run(number, memory, false, {.nbytes = 1}) == Outcome{Status::access_denied, Reason::unknown_share});
}

TEST_CASE("files served: cancelled transfers end; those that the system was asked for end well") {
    Played served;
    auto ring = std::make_shared<storage::Ring>(*served.pair.b.engine, 16);
    REQUIRE(ring->reserve(6));
    std::vector<Range> ranges;
    for (uint64_t i = 0; i < 6; ++i) { // the system takes four at once
        ranges.push_back({.memory_offset = i, .nbytes = 1, .userdata = i});
    }
    REQUIRE(served.asking->post({served.file_number, served.memory_number}, ranges, ring));
    REQUIRE(eventually([&] { return served.system.added().size() == 4; }));
    CHECK(served.asking->cancel(*ring, std::nullopt) == 6);
    REQUIRE(eventually([&] { return ring->ready() == 2; })); // those that had not begun
    for (const Job& job : served.system.added()) {
        served.system.end(job, 1);
    }
    REQUIRE(eventually([&] { return ring->ready() == 6; }));
    std::array<storage::Completion, 6> done;
    REQUIRE(ring->take(done) == 6);
    for (size_t i = 0; i < done.size(); ++i) {
        CHECK(done[i].outcome == (i < 2 ? kCancelled : kOk));
        CHECK(done[i].done == (i < 2 ? 0 : 1));
    }
    CHECK(served.system.added().size() == 4);
}

TEST_CASE("files served: a server that ends says so when it is done, and what the system does then ends well") {
    Played served;
    const OpRef op = served.start({served.file_number, served.memory_number}, {{.nbytes = 10}});
    const OpRef more = served.start({served.file_number, served.memory_number}, std::vector<Range>(8, {.nbytes = 10}));
    REQUIRE(eventually([&] { return served.system.added().size() == 4; })); // the system takes four at once
    served.pair.a.engine->close_work(served.serving, {Status::closed, Reason::owner_closed});
    CHECK_FALSE(served.serving->idle());
    CHECK_FALSE(op->done());
    for (const Job& job : served.system.added()) {
        served.system.end(job, 10);
    }
    CHECK(served.pair.b.wait(op) == kOk);
    CHECK(served.pair.b.wait(more) == Outcome{Status::peer_lost, Reason::owner_closed});
    CHECK(served.system.added().size() == 4);
    REQUIRE(eventually([&] { return served.serving->idle() && !served.asking->usable(); }));
    CHECK_FALSE(
        served.asking->post({served.file_number, served.memory_number}, std::vector<Range>{{.nbytes = 1}}, nullptr));
}

TEST_CASE("files served: a peer that is lost") {
    for (const bool server : {false, true}) {
        CAPTURE(server);
        Played served;
        const OpRef op = served.start({served.file_number, served.memory_number}, {{.nbytes = 10}});
        REQUIRE(eventually([&] { return served.system.added().size() == 1; }));
        Side& survivor = server ? served.pair.b : served.pair.a;
        survivor.engine->drop_peer(survivor.lane->peer().id(), {Status::peer_lost, Reason::process_died});
        if (server) {
            CHECK(survivor.wait(op) == Outcome{Status::peer_lost, Reason::process_died});
        }
        served.system.end(served.system.added()[0], 10);
        if (!server) {
            CHECK(eventually([&] { return served.serving->idle(); }));
        }
    }
}

namespace {

// Sends what no side of ours would.
void send_raw(const Side& side, uint16_t queue, uint32_t value, std::string text) {
    const Message message = std::make_shared<const std::string>(std::move(text));
    Request request;
    request.kind = Kind::notify;
    request.notify = notify_of(queue, value);
    request.message = &message;
    (void)side.engine->try_post(*side.lane, request);
}

template <class Entry> std::string text_of(const std::vector<Entry>& entries) {
    return {reinterpret_cast<const char*>(entries.data()), entries.size() * sizeof(Entry)};
}

} // namespace

TEST_CASE("files served: a client that talks nonsense is cut off") {
    const storage::Ask ask{.nbytes = 1, .slot = 5};
    const std::vector<std::pair<uint32_t, std::string>> nonsense = {
        {0, ""},
        {0, std::string(31, 'x')},
        {99, text_of<storage::Ask>({ask})},
        {0, text_of<storage::Ask>({{.nbytes = 1, .slot = storage::kSlots}})},
        {0, text_of<storage::Ask>({ask, ask})}, // one slot twice
    };
    for (const auto& [value, text] : nonsense) {
        CAPTURE(value);
        Played served;
        send_raw(served.pair.b, served.serving->queue(), value, text);
        CHECK(eventually([&] { return !served.pair.a.lane->state().ok(); }));
        for (const Job& job : served.system.added()) {
            served.system.end(job, 1);
        }
        CHECK(eventually([&] { return served.serving->idle(); }));
    }
}

TEST_CASE("files served: a server that talks nonsense is lost") {
    for (int kind = 0; kind < 8; ++kind) {
        CAPTURE(kind);
        Played served;
        const OpRef op = served.start({served.file_number, served.memory_number, true}, {{.nbytes = 10}});
        REQUIRE(eventually([&] { return served.system.added().size() == 1; }));
        storage::Answer answer{.done = 10, .slot = 0, .error = 0, .outcome = {}};
        switch (kind) {
        case 0:
            answer.slot = 1; // nothing was asked for by it
            break;
        case 1:
            answer.slot = storage::kSlots;
            break;
        case 2:
            answer.done = 11;
            break;
        case 3:
            answer.done = 9; // a write that stops short without an error
            break;
        case 4:
            answer.outcome.status = static_cast<Status>(99);
            break;
        case 5:
            answer.outcome.status = Status::pending;
            break;
        case 6:
            answer.outcome = {Status::file_error, static_cast<Reason>(255)};
            break;
        default:
            break;
        }
        std::string text = text_of<storage::Answer>({answer});
        if (kind == 7) {
            text.pop_back();
        }
        send_raw(served.pair.a, served.asking->queue(), 0, text);
        CHECK_FALSE(served.pair.b.wait(op).ok());
        CHECK_FALSE(served.pair.b.lane->state().ok());
        for (const Job& job : served.system.added()) {
            served.system.end(job, 10);
        }
    }
}

TEST_CASE("files served: numbers are given back when nothing uses them any more") {
    Served served(storage::open_threads(2));
    const TestFile file(pattern(8192, 3));
    Reach reach = served.pair.reach(8192, kHostDevice, kHostDevice, true);
    const auto memory = served.add_memory(reach);
    for (int i = 0; i < 3; ++i) {
        auto number = served.add_file(file);
        CHECK(number->value() == 0);
        const OpRef op = served.start({number, memory}, {{.nbytes = 10}});
        number.reset();
        CHECK(served.pair.b.wait(op) == kOk);
        CHECK(eventually([&] { return file.file.use_count() == 1; }));
    }
}

TEST_CASE("files served: what has a higher priority is asked for first") {
    Played served;
    const OpRef low = served.start({served.file_number, served.memory_number, false, Priority::low},
                                   std::vector<Range>(2 * storage::kSlots, {.nbytes = 1}));
    REQUIRE(eventually([&] { return served.system.added().size() == 4; })); // the system takes four at once
    const OpRef high = served.start({served.file_number, served.memory_number, false, Priority::high}, {{.nbytes = 2}});
    size_t ended = 0;
    size_t before = 0; // transfers that had ended before the one of high priority
    while (!low->done()) {
        REQUIRE(eventually([&] { return low->done() || served.system.added().size() > ended; }));
        if (served.system.added().size() > ended) {
            const Job job = served.system.added()[ended++];
            served.system.end(job, static_cast<int32_t>(job.nbytes));
            before += high->done() ? 0 : 1;
        }
    }
    CHECK(high->done());
    CHECK(before < 2 * storage::kSlots);
}

TEST_CASE("files served: what asks is given up once its server is lost, or was never asked") {
    for (const bool lost : {false, true}) {
        CAPTURE(lost);
        Served served(storage::open_threads(1));
        if (lost) {
            served.pair.b.engine->drop_peer(served.pair.b.lane->peer().id(), {Status::peer_lost, Reason::process_died});
            CHECK(eventually([&] { return served.asking->idle(); }));
        } else {
            CHECK(served.asking->has_asked());
            const auto unused = std::make_shared<storage::FileAsking>(*served.pair.b.engine, served.pair.b.lane);
            CHECK_FALSE(unused->has_asked());
        }
    }
}

} // namespace test_file_serving
