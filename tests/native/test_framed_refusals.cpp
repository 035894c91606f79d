// Tests the answers to an honest initiator with a wrong idea of the target, and that the target's memory stays
// unchanged.
#include "engine_fixture.hpp"
#include "provider/framed/frame.hpp"

namespace test_framed_refusals {

using namespace zerohop;
using namespace zerohop::test;

namespace {

constexpr size_t kBytes = 600'000; // several frames

Outcome denied(Reason reason) {
    return {Status::access_denied, reason};
}

// Returns the paths whose target checks requests; a mapped path has no target to ask.
std::vector<Path> checked_paths() {
    std::vector<Path> paths;
    for (const Path& path : every_path()) {
        if (!path.mapped) {
            paths.push_back(path);
        }
    }
    return paths;
}

} // namespace

TEST_CASE("refusal: known at once, nothing is posted") {
    for (const Path& path : every_path()) {
        CAPTURE(path.name);
        Pair pair(path.provider);
        const Reach reach = pair.reach(4096, path.local, path.remote, path.mapped);
        const Reach readable = pair.reach(4096, path.local, path.remote, path.mapped, kRightRead);
        const auto fails = [&](const Reach& r, Request request, Outcome expected) {
            const Posted posted = post(pair.a, r.route, std::move(request));
            CHECK(posted.what == Posted::What::failed);
            CHECK(posted.outcome == expected);
        };
        for (const Kind kind : {Kind::write, Kind::read}) {
            fails(reach, request(kind, 0, 1, 4096), denied(Reason::bounds));
            fails(reach, request(kind, 0, 4097, 0), denied(Reason::bounds));
            fails(reach, request(kind, 0, UINT64_MAX, 1), denied(Reason::bounds));
            fails(reach, request(kind, 0, 8, UINT64_MAX), denied(Reason::bounds));
            fails(reach, page_request(kind, {0, 1}, {0, 64}, 64), denied(Reason::bounds));
            fails(reach, page_request(kind, {0, 1}, {0, UINT64_MAX}, 64), denied(Reason::bounds));
            fails(reach, page_request(kind, {0, 1}, {0, UINT64_MAX / 64}, 64), denied(Reason::bounds));
            Request shifted = page_request(kind, {0}, {63}, 64);
            shifted.remote_offset = 1;
            fails(reach, shifted, denied(Reason::bounds));
        }
        fails(readable, request(Kind::write, 0, 0, 1), denied(Reason::rights));
        fails(readable, request(Kind::fetch_add, 0, 0, 8), denied(Reason::rights));
        CHECK(run(pair.a, readable.route, request(Kind::read, 0, 0, 4096)) == kOk);
        REQUIRE(reach.local->close());
        fails(reach, request(Kind::write, 0, 0, 1), {Status::closed, Reason::revoked});
        pair.a.engine->drop_route(reach.route);
        fails(reach, request(Kind::write, 0, 0, 1), {Status::closed, Reason::lane_closed});
        CHECK(pair.a.engine->operations().pending() == 0);
    }
}

TEST_CASE("refusal: a route with an access that the lane does not know") {
    struct UnknownAccess final : RemoteAccess {
        UnknownAccess() : RemoteAccess(64, kReadWrite, false) {}
    };
    for (const std::string provider : {"shm", "tcp"}) {
        for (const int local : {kHostDevice, kSimDevice}) {
            CAPTURE(provider);
            CAPTURE(local);
            Pair pair(provider);
            Route route = pair.route(pair.reach(64, local), 64);
            route.access = std::make_shared<UnknownAccess>();
            Outcome refused;
            try {
                static_cast<void>(pair.a.engine->add_route(route));
            } catch (const NativeError& error) {
                refused = error.outcome();
            }
            CHECK(refused == Outcome{Status::unsupported, Reason::none});
        }
    }
}

TEST_CASE("refusal: by the target, of any size, and nothing is touched") {
    for (const Path& path : checked_paths()) {
        CAPTURE(path.name);
        Pair pair(path.provider);
        Reach reach = pair.reach(kBytes, path.local, path.remote);
        const Bytes theirs = pattern(kBytes, 1);
        const Bytes mine = pattern(kBytes, 2);
        pair.b.put(*reach.remote, theirs);
        pair.a.put(*reach.local, mine);
        const auto refused = [&](const Route& route, Kind kind, uint64_t offset, uint64_t nbytes, Outcome expected) {
            CAPTURE(nbytes);
            const uint64_t id = pair.a.engine->add_route(route);
            CHECK(run(pair.a, id, request(kind, 0, offset, nbytes, kind == Kind::write ? 3 : -1)) == expected);
            pair.a.engine->drop_route(id);
        };
        ShareId readable = pair.b.engine->shares().add(reach.remote, 0, kBytes, kRightRead, kCapability);
        ShareId writable = pair.b.engine->shares().add(reach.remote, 0, kBytes, kRightWrite, kCapability);
        ShareId part = pair.b.engine->shares().add(reach.remote, 100, 1000, kReadWrite, kCapability);
        ShareId old = pair.b.engine->shares().add(reach.remote, 0, kBytes, kReadWrite, kCapability);
        pair.b.engine->shares().remove(old);
        for (const uint64_t nbytes : {uint64_t{0}, uint64_t{1}, uint64_t{200}, uint64_t{5000}, uint64_t{kBytes}}) {
            Route route = pair.route(reach, kBytes);
            route.share = readable;
            refused(route, Kind::write, 0, nbytes, denied(Reason::rights));
            route.share = writable;
            refused(route, Kind::read, 0, nbytes, denied(Reason::rights));
            for (const Kind kind : {Kind::write, Kind::read}) {
                route = pair.route(reach, kBytes);
                route.capability[15] ^= 1;
                refused(route, kind, 0, nbytes, denied(Reason::capability));
                route = pair.route(reach, kBytes);
                route.share = old;
                refused(route, kind, 0, nbytes, denied(Reason::revoked));
                route.share.generation += 5;
                refused(route, kind, 0, nbytes, denied(Reason::unknown_share));
                route.share = {999, 1};
                refused(route, kind, 0, nbytes, denied(Reason::unknown_share));
                route = pair.route(reach, 2 * kBytes);
                route.share = part;
                refused(route, kind, 1001, nbytes, denied(Reason::bounds));
            }
        }
        CHECK_FALSE(pair.b.engine->pop_notification(0, 0, 0, false).has_value());
        CHECK(same_bytes(pair.b.get(*reach.remote), theirs));
        CHECK(same_bytes(pair.a.get(*reach.local), mine));
        CHECK(run(pair.a, reach.route, request(Kind::write, 0, 0, kBytes)) == kOk);
        CHECK(same_bytes(pair.b.get(*reach.remote), mine));
    }
}

TEST_CASE("refusal: in the middle of an operation, it names the first thing that was wrong") {
    for (const Path& path : checked_paths()) {
        CAPTURE(path.name);
        Pair pair(path.provider);
        Reach reach = pair.reach(2 * kBytes, path.local, path.remote);
        const ShareId part = pair.b.engine->shares().add(reach.remote, 0, kBytes, kReadWrite, kCapability);
        const Bytes theirs = pattern(2 * kBytes, 1);
        pair.b.put(*reach.remote, theirs);
        Route route = pair.route(reach, 2 * kBytes);
        route.share = part;
        const uint64_t id = pair.a.engine->add_route(route);
        for (const Kind kind : {Kind::write, Kind::read}) {
            CHECK(run(pair.a, id, request(kind, 0, 0, 2 * kBytes, kind == Kind::write ? 1 : -1)) ==
                  denied(Reason::bounds));
            // Only the last page is outside, in a later request of a read (8192 pages each).
            std::vector<uint64_t> pages(10'000, 3);
            pages.back() = kBytes / 8;
            CHECK(run(pair.a, id, page_request(kind, std::vector<uint64_t>(10'000, 3), pages, 8)) ==
                  denied(Reason::bounds));
        }
        CHECK_FALSE(pair.b.engine->pop_notification(0, 0, 0, false).has_value());
        // Memory beyond the share is untouched.
        CHECK(same_bytes(pair.b.get(*reach.remote, kBytes, kBytes), Bytes(theirs.begin() + kBytes, theirs.end())));
        pair.a.sync();
        CHECK(reach.local->pins() == 0);
        CHECK(eventually([&] { return reach.remote->pins() == 0; }));
    }
}

TEST_CASE("refusal: a part of a read of device memory, while another part is still copied") {
    for (const std::string provider : {"shm", "tcp"}) {
        CAPTURE(provider);
        Pair pair(provider);
        Reach reach = pair.reach(kBytes, kSimDevice, kHostDevice);
        const ShareId part = pair.b.engine->shares().add(reach.remote, 0, 4096, kReadWrite, kCapability);
        pair.b.put(*reach.remote, Bytes(kBytes, 7));
        pair.a.put(*reach.local, Bytes(kBytes, 1));
        Route route = pair.route(reach, kBytes);
        route.share = part;
        const uint64_t id = pair.a.engine->add_route(route);
        std::vector<uint64_t> pages(8192 + 1, 0);
        pages.back() = 4096 / 32; // in the second request of two
        std::vector<uint64_t> local(8192 + 1);
        for (size_t i = 0; i < local.size(); ++i) {
            local[i] = i;
        }
        pair.a.sim->delay(0, 0, 1); // a slice takes a quarter of a second
        CHECK(run(pair.a, id, page_request(Kind::read, local, pages, 32)) == denied(Reason::bounds));
        pair.a.sim->delay(0, 0, 0);
        CHECK(reach.local->pins() == 0);
        CHECK(pair.a.get(*reach.local, 8191 * 32, 1) == Bytes(1, 7)); // the copies had ended
    }
}

TEST_CASE("refusal: credits of refused notifications come back") {
    for (const std::string provider : {"shm", "tcp"}) {
        CAPTURE(provider);
        Pair pair(provider);
        const Reach reach = pair.reach(64);
        Route wrong = pair.route(reach, 64);
        wrong.capability[0] ^= 1;
        const uint64_t id = pair.a.engine->add_route(wrong);
        for (uint32_t i = 0; i < framed::kCredits + 10; ++i) {
            Posted posted = post(pair.a, id, request(Kind::write, 0, 0, 8, 1), true);
            REQUIRE(posted.what == Posted::What::posted);
            REQUIRE(pair.a.wait(std::move(posted)) == denied(Reason::capability));
        }
        CHECK(run(pair.a, reach.route, request(Kind::write, 0, 0, 8, 5)) == kOk);
        CHECK(notification(pair.b).value == 5);
    }
}

} // namespace test_framed_refusals
