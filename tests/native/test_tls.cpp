// TLS under a tcp lane: who is refused, what is changed on its way, keys that are renewed. That a lane works through it
// at all, the tests of every_path() say.
#include "engine_fixture.hpp"
#include "provider/tcp/tls_session.hpp"

#include <algorithm>
#include <array>

namespace test_tls {

using namespace zerohop;
using namespace zerohop::test;
using tcp::TlsSession;

namespace {

// Carries what one side has to say to the other; returns the number of bytes.
size_t carry(TlsSession& from, TlsSession& to, size_t flip = SIZE_MAX) {
    std::array<unsigned char, 64 * 1024> bytes{};
    size_t carried = 0;
    while (const size_t n = from.take(bytes.data(), bytes.size())) {
        if (flip < n) {
            bytes[flip] ^= 1;
        }
        to.feed(bytes.data(), n);
        carried += n;
    }
    return carried;
}

void shake_hands(TlsSession& a, TlsSession& b) {
    for (bool moved = true; moved;) {
        a.shake_hands();
        moved = carry(a, b) != 0;
        b.shake_hands();
        moved = carry(b, a) != 0 || moved;
    }
}

Bytes read_all(TlsSession& from, size_t nbytes) {
    Bytes got(nbytes);
    size_t at = 0;
    while (at < nbytes) {
        const size_t n = from.read(got.data() + at, nbytes - at);
        if (n == 0) {
            break;
        }
        at += n;
    }
    got.resize(at);
    return got;
}

} // namespace

TEST_CASE("tls: two that know the secret") {
    TlsSession a(tls_settings(kDialTls));
    TlsSession b(tls_settings(kListenTls));
    shake_hands(a, b);
    REQUIRE(a.established());
    REQUIRE(b.established());
    const Bytes said = pattern(100'000, 1);
    for (size_t at = 0; at < said.size(); at += 10'000) {
        REQUIRE(a.write(said.data() + at, 10'000));
    }
    std::array<unsigned char, 200'000> seen{};
    const size_t n = a.take(seen.data(), seen.size());
    CHECK(n > said.size());
    const auto* const plain = reinterpret_cast<const unsigned char*>(said.data());
    CHECK(std::search(seen.begin(), seen.begin() + static_cast<ptrdiff_t>(n), plain, plain + 64) ==
          seen.begin() + static_cast<ptrdiff_t>(n));
    b.feed(seen.data(), n);
    CHECK(b.has_input());
    CHECK(read_all(b, said.size()) == said);
    CHECK_FALSE(b.has_input());
}

TEST_CASE("tls: who does not know the secret is refused, on either side") {
    TlsSession stranger(tls_settings(kStrangerTls));
    TlsSession listener(tls_settings(kListenTls));
    shake_hands(stranger, listener);
    CHECK(listener.failed());
    CHECK_FALSE(listener.established());
    char byte = 0;
    CHECK(listener.read(&byte, 1) == 0);

    // Two of the same role do not trust each other: nobody answers himself.
    TlsSession dials(tls_settings(kDialTls));
    std::string settings = tls_settings(kDialTls);
    settings[0] = 'l';
    TlsSession reflects(settings);
    shake_hands(dials, reflects);
    CHECK(dials.failed());
    CHECK_FALSE(dials.established());
}

TEST_CASE("tls: a byte that is changed on its way ends it") {
    TlsSession a(tls_settings(kDialTls));
    TlsSession b(tls_settings(kListenTls));
    shake_hands(a, b);
    const Bytes said = pattern(1000, 2);
    REQUIRE(a.write(said.data(), said.size()));
    carry(a, b, 500);
    CHECK(read_all(b, said.size()).empty());
    CHECK(b.failed());
    CHECK_FALSE(b.has_input());
}

TEST_CASE("tls: keys are renewed, in both directions, as often as it takes") {
    TlsSession a(tls_settings(kDialTls), 4096);
    TlsSession b(tls_settings(kListenTls), 4096);
    shake_hands(a, b);
    const Bytes said = pattern(3000, 3);
    for (int round = 0; round < 20; ++round) {
        REQUIRE(a.write(said.data(), said.size()));
        carry(a, b);
        REQUIRE(read_all(b, said.size()) == said);
        REQUIRE(b.write(said.data(), said.size()));
        carry(b, a);
        REQUIRE(read_all(a, said.size()) == said);
    }
}

TEST_CASE("tls: a socket in place of another") {
    TlsSession a(tls_settings(kDialTls, 'a'));
    TlsSession b(tls_settings(kListenTls, 'b'));
    shake_hands(a, b);
    CHECK_FALSE(b.established());
    CHECK(b.failed());
}

TEST_CASE("tls: settings that make no sense") {
    for (const std::string& settings :
         {std::string("d"), tls_settings(kDialTls).substr(0, 40), std::string(400, 'd')}) {
        CHECK_THROWS_AS(TlsSession{settings}, NativeError);
    }
}

TEST_CASE("tls: a lane whose other side speaks without it, or does not know the secret") {
    for (const std::string& theirs : {std::string(), tls_settings(kStrangerTls)}) {
        Side a;
        Side b;
        introduce(a, b);
        a.lane = a.engine->add_endpoint("tcp", a.peer->id());
        b.lane = b.engine->add_endpoint("tcp", b.peer->id());
        const Sockets sockets = connected_sockets();
        a.lane->connect({theirs, {sockets.a}});
        b.lane->connect({tls_settings(kListenTls), {sockets.b}});
        ::close(sockets.a);
        ::close(sockets.b);
        const Outcome outcome = a.wait(post(a, message(Kind::send, a.alloc(64), 64)));
        CHECK_FALSE(outcome.ok());
        CHECK(eventually([&] { return !b.lane->state().ok(); }));
        a.close();
        b.close();
    }
}

} // namespace test_tls
