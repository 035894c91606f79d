// Tests the streams of tcp by themselves: what a peer has sent before it closed its socket can be received.
#include "engine_fixture.hpp"
#include "provider/tcp/socket_stream.hpp"
#include "provider/tcp/tls_stream.hpp"

#include <array>

namespace test_socket_stream {

using namespace zerohop;
using namespace zerohop::test;

namespace {

size_t send(framed::ByteStream& stream, const Bytes& bytes) {
    const iovec piece{const_cast<uint8_t*>(bytes.data()), bytes.size()};
    return stream.send({&piece, 1});
}

Bytes receive(framed::ByteStream& stream, size_t most) {
    Bytes bytes(most);
    const iovec piece{bytes.data(), most};
    bytes.resize(stream.receive({&piece, 1}, false));
    return bytes;
}

std::unique_ptr<framed::ByteStream> stream(const Side& side, int fd, bool tls, bool dials) {
    if (!tls) {
        return std::make_unique<tcp::SocketStream>(Descriptor(fd), *side.engine);
    }
    return std::make_unique<tcp::TlsStream>(Descriptor(fd), *side.engine, tls_settings(dials ? kDialTls : kListenTls));
}

} // namespace

TEST_CASE("stream: what came before the peer was gone is received, also after a send has found it gone") {
    for (const bool tls : {false, true}) {
        CAPTURE(tls);
        const Side side;
        const Sockets sockets = connected_sockets();
        const auto here = stream(side, sockets.a, tls, true);
        auto there = stream(side, sockets.b, tls, false);
        REQUIRE(eventually([&] { // the handshake
            receive(*there, 1);
            receive(*here, 1);
            return send(*here, Bytes(10, 1)) == 10;
        }));
        REQUIRE(eventually([&] {
            receive(*here, 1);
            return receive(*there, 1).size() == 1;
        }));
        const Bytes bytes = pattern(5000, 1);
        REQUIRE(send(*here, Bytes(10, 1)) == 10); // never read there: closing resets the connection
        REQUIRE(eventually([&] { return send(*there, bytes) == bytes.size(); }));
        REQUIRE(eventually([&] { return there->under_way() == 0; }));
        there->close(false);
        there.reset();
        REQUIRE(eventually([&] { return send(*here, Bytes(10, 1)) == 0; }));
        Bytes got;
        CHECK(eventually([&] {
            const Bytes some = receive(*here, 1000);
            got.insert(got.end(), some.begin(), some.end());
            return !here->state().ok();
        }));
        CHECK(same_bytes(got, bytes));
        here->close(false);
    }
}

} // namespace test_socket_stream
