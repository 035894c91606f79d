// Speaks the framed protocol by hand, as a peer that can lie, stop in the middle of a frame, or never answer.
#pragma once

#include "engine_fixture.hpp"
#include "provider/framed/frame.hpp"
#include "provider/framed/ring.hpp"

#include <fcntl.h>
#include <optional>

namespace zerohop::test {

using framed::FrameHeader;
using framed::FrameKind;
using framed::kAborted;
using framed::kLast;
using framed::kNotify;

class RawPeer {
public:
    // Connects a new lane of `side` to this peer.
    RawPeer(Side& side, const std::string& provider)
        : side_(side),
          engine_presence_(side.engine->presence().page_fd(), side.engine->presence().make_doorbell().theirs.get()) {
        presence_.hold(); // held by this thread, which must outlive the peer
        side.peer = side.engine->add_peer(presence_.page_fd(), presence_.make_doorbell().theirs.get());
        side.lane = side.engine->add_endpoint(provider, side.peer->id());
        if (provider == "shm") {
            consumer_.emplace();
            producer_ = std::make_unique<framed::RingProducer>(side.lane->address().fds.at(0));
            side.lane->connect({"", {consumer_->fd()}});
        } else {
            const Sockets sockets = connected_sockets();
            side.lane->connect({"", {sockets.a}});
            ::close(sockets.a);
            socket_ = Descriptor(sockets.b);
            ::fcntl(sockets.b, F_SETFL, O_NONBLOCK);
        }
    }
    ~RawPeer() {
        side_.engine->drop_peer(side_.peer->id(), {Status::closed, Reason::user});
        presence_.release();
    }
    RawPeer(const RawPeer&) = delete;
    RawPeer& operator=(const RawPeer&) = delete;

    // False if the lane ended before it took all the bytes.
    bool send_bytes(const void* data, size_t nbytes) {
        const auto* from = static_cast<const std::byte*>(data);
        return eventually([&] {
                   const size_t sent = send_some(from, nbytes);
                   from += sent;
                   nbytes -= sent;
                   return nbytes == 0 || !side_.lane->state().ok();
               }) &&
               nbytes == 0;
    }
    bool send(FrameHeader header, const std::vector<uint64_t>& table = {}, const Bytes& payload = {}) {
        header.table = static_cast<uint32_t>(table.size());
        header.payload = static_cast<uint32_t>(payload.size());
        return send_bytes(&header, sizeof header) && send_bytes(table.data(), table.size() * 8) &&
               send_bytes(payload.data(), payload.size());
    }
    // Returns the engine's next frame, and stores its payload; credits and pings are skipped.
    FrameHeader receive() {
        FrameHeader header;
        do {
            REQUIRE(receive_bytes(&header, sizeof header));
            table.resize(header.table);
            REQUIRE(receive_bytes(table.data(), table.size() * 8));
            payload.resize(header.payload);
            REQUIRE(receive_bytes(payload.data(), payload.size()));
        } while (header.kind == FrameKind::ping || header.kind == FrameKind::credit);
        return header;
    }
    FrameHeader receive(FrameKind kind) {
        const FrameHeader header = receive();
        REQUIRE(header.kind == kind);
        return header;
    }
    // Returns the answer to a request.
    Outcome answer(uint32_t ticket) {
        const FrameHeader ack = receive(FrameKind::ack);
        CHECK(ack.ticket == ticket);
        CHECK(ack.has(kLast));
        return {static_cast<Status>(ack.status), static_cast<Reason>(ack.reason)};
    }
    void end_stream() {
        if (producer_) {
            producer_->close();
            engine_presence_.wake();
        } else {
            ::shutdown(socket_.get(), SHUT_RDWR);
        }
    }
    framed::RingProducer* ring() { return producer_.get(); }
    int ring_fd() const { return consumer_->fd(); } // the ring that the engine fills
    void wake_engine() const { engine_presence_.wake(); }

    std::vector<uint64_t> table; // table of the last frame
    Bytes payload;

private:
    size_t send_some(const std::byte* from, size_t nbytes) {
        if (nbytes == 0) {
            return 0;
        }
        if (producer_) {
            const iovec piece{const_cast<std::byte*>(from), nbytes};
            return producer_->send({&piece, 1}, &engine_presence_);
        }
        const ssize_t sent = ::send(socket_.get(), from, nbytes, MSG_NOSIGNAL);
        return sent < 0 ? 0 : static_cast<size_t>(sent);
    }
    bool receive_bytes(void* data, size_t nbytes) {
        auto* to = static_cast<std::byte*>(data);
        return eventually([&] {
            if (nbytes == 0) {
                return true;
            }
            size_t got = 0;
            if (consumer_) {
                const iovec piece{to, nbytes};
                got = consumer_->receive({&piece, 1}, false, &engine_presence_);
            } else {
                const ssize_t n = ::recv(socket_.get(), to, nbytes, 0);
                got = n < 0 ? 0 : static_cast<size_t>(n);
            }
            to += got;
            nbytes -= got;
            return nbytes == 0;
        });
    }

    Side& side_;
    Presence presence_;
    PeerPresence engine_presence_;
    std::optional<framed::RingConsumer> consumer_;
    std::unique_ptr<framed::RingProducer> producer_;
    Descriptor socket_;
};

// An engine that shares memory with a raw peer.
struct Target {
    explicit Target(const std::string& provider, int device = kHostDevice, size_t nbytes = 1 << 20)
        : peer(side, provider), region(side.alloc(nbytes, device)),
          share(side.engine->shares().add(region, 0, nbytes, kReadWrite, kCapability)) {}
    ~Target() { side.engine->shares().remove(share); }
    Target(const Target&) = delete;
    Target& operator=(const Target&) = delete;

    FrameHeader header(FrameKind kind, uint64_t offset = 0, uint64_t arg = 0, uint8_t flags = 0) const {
        FrameHeader header;
        header.kind = kind;
        header.flags = flags;
        header.ticket = 7;
        header.share_index = share.index;
        header.share_generation = share.generation;
        header.capability = kCapability;
        header.offset = offset;
        header.arg = arg;
        return header;
    }
    // True if the lane ends with this outcome, and the peer with it; the engine lives on.
    bool ends_with(Outcome outcome) const {
        return eventually([&] { return !side.lane->state().ok(); }) && side.lane->state() == outcome &&
               side.peer->state() == outcome;
    }
    // Adds a route of this engine to the raw peer's pretended memory.
    uint64_t route(const std::shared_ptr<Region>& local, uint64_t remote_nbytes = 1 << 20) const {
        Route route;
        route.endpoint = side.lane;
        route.local = local;
        route.share = {3, 4};
        route.capability = kCapability;
        route.remote_nbytes = remote_nbytes;
        route.rights = kReadWrite;
        return side.engine->add_route(std::move(route));
    }

    Side side;
    RawPeer peer;
    std::shared_ptr<Region> region;
    ShareId share;
};

inline constexpr Outcome kBounds{Status::access_denied, Reason::bounds};
inline const std::vector<std::string> kProviders{"shm", "tcp"}; // both use the same frames

// A request of the engine, and its frame as the peer sees it.
struct Asked {
    Posted posted;
    FrameHeader header;
};

inline Asked ask(Target& target, Kind kind, const std::shared_ptr<Region>& local, uint64_t nbytes,
                 int64_t notify = -1) {
    Asked asked;
    asked.posted = post(target.side, target.route(local, 1 << 30), request(kind, 0, 0, nbytes, notify));
    REQUIRE(asked.posted.what == Posted::What::posted);
    asked.header = target.peer.receive();
    return asked;
}

inline FrameHeader reply(FrameKind kind, const Asked& asked, uint64_t offset, uint8_t flags) {
    FrameHeader header;
    header.kind = kind;
    header.ticket = asked.header.ticket;
    header.offset = offset;
    header.flags = flags;
    return header;
}

} // namespace zerohop::test
