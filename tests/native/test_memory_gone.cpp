// Tests transfers of memory whose pages somebody takes away: they fail with that reason, and lane and process go on.
#include "engine_fixture.hpp"
#include "gone_pages.hpp"

namespace test_memory_gone {

using namespace zerohop;
using namespace zerohop::test;

namespace {

constexpr size_t kBytes = 1 << 20;
constexpr size_t kPage = 4096;

struct Way {
    std::string provider;
    bool mapped;
};
const std::vector<Way> kWays{{"shm", true}, {"shm", false}, {"tcp", false}, {"tls", false}};

// One side's memory may go, the other side's stays.
struct Scene {
    Scene(const Way& way, bool there) : pair(way.provider), file(kBytes) {
        reach.local = there ? pair.a.alloc(kBytes) : file.region();
        reach.remote = there ? file.region() : pair.b.alloc(kBytes);
        pair.share(reach, way.mapped, kReadWrite);
        CHECK(run(pair.a, reach.route, request(Kind::write, 0, 0, kBytes)) == kOk);
        healthy.local = pair.a.alloc(kBytes);
        healthy.remote = pair.b.alloc(kBytes);
        pair.share(healthy, false, kReadWrite);
    }
    ~Scene() {
        // The lane serves other memory as ever.
        pair.a.put(*healthy.local, Bytes(kBytes, 9));
        CHECK(run(pair.a, healthy.route, request(Kind::write, 0, 0, kBytes, 77)) == kOk);
        const Notification note = notification(pair.b);
        CHECK(note.value == 77); // and nothing that failed was announced
        CHECK(same_bytes(pair.b.get(*healthy.remote), Bytes(kBytes, 9)));
        CHECK(eventually([&] { return reach.local->pins() == 0 && reach.remote->pins() == 0; }));
    }
    Scene(const Scene&) = delete;
    Scene& operator=(const Scene&) = delete;

    Pair pair;
    GonePages file;
    Reach reach;
    Reach healthy;
};

template <class F> void each_way(F&& check) {
    for (const Way& way : kWays) {
        for (const bool there : {true, false}) {
            CAPTURE(way.provider);
            CAPTURE(way.mapped);
            CAPTURE(there);
            Scene scene(way, there);
            check(scene, there ? kMemoryGone : kLocalMemoryGone);
        }
    }
}

const std::vector<uint64_t> kSizes{1, 8, 64, 200, 4096, 100'000, kBytes};

} // namespace

TEST_CASE("memory gone: a file that was truncated") {
    each_way([](Scene& scene, Outcome gone) {
        scene.file.truncate();
        for (const uint64_t nbytes : kSizes) {
            CAPTURE(nbytes);
            for (const Kind kind : {Kind::write, Kind::read}) {
                CHECK(run(scene.pair.a, scene.reach.route, request(kind, 0, 0, nbytes, kind == Kind::write ? 5 : -1)) ==
                      gone);
            }
        }
    });
}

TEST_CASE("memory gone: a buffer that was freed") {
    each_way([](Scene& scene, Outcome gone) {
        scene.file.unmap();
        const bool mapped = scene.reach.mapping != nullptr && gone == kMemoryGone;
        for (const uint64_t nbytes : kSizes) {
            CAPTURE(nbytes);
            for (const Kind kind : {Kind::write, Kind::read}) {
                // Who has mapped the file itself needs no mapping of its owner's.
                CHECK(run(scene.pair.a, scene.reach.route, request(kind, 0, 0, nbytes)) == (mapped ? kOk : gone));
            }
        }
    });
}

TEST_CASE("memory gone: the end of a file alone, in the middle of a transfer") {
    each_way([](Scene& scene, Outcome gone) {
        scene.file.truncate(kBytes / 2);
        for (const Kind kind : {Kind::write, Kind::read}) {
            CHECK(run(scene.pair.a, scene.reach.route, request(kind, 0, 0, kBytes / 2)) == kOk);
            CHECK(run(scene.pair.a, scene.reach.route, request(kind, 0, 0, kBytes)) == gone);
            CHECK(run(scene.pair.a, scene.reach.route, request(kind, kBytes / 2 - 100, kBytes / 2 - 100, 200)) == gone);
            CHECK(run(scene.pair.a, scene.reach.route, request(kind, 0, 0, 4096)) == kOk);
        }
    });
}

TEST_CASE("memory gone: page lists and atomics") {
    each_way([](Scene& scene, Outcome gone) {
        scene.file.truncate(kBytes / 2);
        const std::vector<uint64_t> pages{0, 3, kBytes / kPage - 1, 1};
        const std::vector<uint64_t> well{0, 3, 2, 1};
        for (const Kind kind : {Kind::write, Kind::read}) {
            CHECK(run(scene.pair.a, scene.reach.route, page_request(kind, pages, pages, kPage)) == gone);
            CHECK(run(scene.pair.a, scene.reach.route, page_request(kind, well, well, kPage)) == kOk);
        }
        for (const Kind kind : {Kind::fetch_add, Kind::compare_swap}) {
            const Outcome outcome = run(scene.pair.a, scene.reach.route, request(kind, 0, kBytes - 8, 8));
            CHECK(outcome == (gone == kMemoryGone ? gone : kOk)); // an atomic has no memory here
        }
    });
}

TEST_CASE("memory gone: messages, at either end") {
    for (const std::string provider : {"shm", "tcp", "flows"}) {
        for (const uint64_t nbytes : kSizes) {
            for (const bool source : {true, false}) {
                CAPTURE(provider);
                CAPTURE(nbytes);
                CAPTURE(source);
                Pair pair(provider);
                const GonePages file(kBytes);
                const std::shared_ptr<Region> gone = file.region();
                const std::shared_ptr<Region> well = (source ? pair.b : pair.a).alloc(kBytes);
                file.truncate();
                const Posted recv = post(pair.b, message(Kind::recv, source ? well : gone, kBytes));
                const Posted send = post(pair.a, message(Kind::send, source ? gone : well, nbytes));
                CHECK(pair.a.wait(send) == (source ? kLocalMemoryGone : kMemoryGone));
                if (source && send.what == Posted::What::failed) { // known before anything was sent
                    CHECK(pair.a.wait(post(pair.a, message(Kind::send, pair.a.alloc(64), 64))) == kOk);
                    CHECK(pair.b.wait(recv) == kOk);
                } else {
                    CHECK(pair.b.wait(recv) == (source ? kMemoryGone : kLocalMemoryGone));
                }
                CHECK(pair.a.lane->state().ok());
                CHECK(pair.b.lane->state().ok());
            }
        }
    }
}

TEST_CASE("memory gone: taken away while writes wait for room") {
    for (const std::string provider : {"shm", "tcp"}) {
        CAPTURE(provider);
        Pair pair(provider);
        GonePages file(kBytes);
        Reach going;
        going.local = file.region();
        going.remote = pair.b.alloc(kBytes);
        Reach well;
        well.local = pair.a.alloc(kBytes);
        well.remote = pair.b.alloc(kBytes);
        pair.share(going, false, kReadWrite);
        pair.share(well, false, kReadWrite);
        std::vector<Posted> posted;
        Posted honest;
        pair.b.engine->poller().exclusive([&] { // it takes nothing meanwhile
            for (int i = 0; i < 800; ++i) {
                posted.push_back(post(pair.a, going.route, request(Kind::write, 0, 0, 32'768)));
            }
            honest = post(pair.a, well.route, request(Kind::write, 0, 0, 16));
            file.truncate();
        });
        size_t gone = 0;
        for (const Posted& each : posted) {
            const Outcome outcome = pair.a.wait(each);
            CHECK((outcome == kOk || outcome == kLocalMemoryGone));
            gone += outcome == kLocalMemoryGone ? 1 : 0;
        }
        CHECK(gone != 0);
        CHECK(pair.a.wait(honest) == kOk);
        CHECK(pair.a.lane->state().ok());
    }
}

TEST_CASE("memory gone: taken away again and again while transfers run") {
    for (const Way& way : kWays) {
        CAPTURE(way.provider);
        CAPTURE(way.mapped);
        Scene scene(way, true);
        std::atomic<bool> over{false};
        std::jthread taker([&] {
            while (!over) {
                scene.file.truncate(kBytes / 2);
                scene.file.restore();
            }
        });
        for (int round = 0; round < 300; ++round) {
            const Outcome outcome =
                run(scene.pair.a, scene.reach.route, request(round % 2 == 0 ? Kind::write : Kind::read, 0, 0, kBytes));
            CHECK((outcome == kOk || outcome == kMemoryGone));
        }
        over = true;
    }
}

} // namespace test_memory_gone
