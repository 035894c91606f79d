// The byte stream between two processes of one host: a ring each way.
#pragma once

#include "operation/peer.hpp"
#include "provider/framed/byte_stream.hpp"
#include "provider/framed/ring.hpp"

#include <memory>
#include <utility>

namespace zerohop::framed {

class RingStream final : public ByteStream {
public:
    // Throws NativeError if the peer's descriptor is no ring.
    RingStream(std::shared_ptr<RingConsumer> inbound, int outbound_fd, std::shared_ptr<Peer> peer)
        : outbound_(outbound_fd), inbound_(std::move(inbound)), peer_(std::move(peer)) {}

    size_t send(std::span<const iovec> pieces) override { return outbound_.send(pieces, peer_->presence()); }
    size_t receive(std::span<const iovec> pieces, bool streaming) override {
        return inbound_->receive(pieces, streaming, peer_->presence());
    }
    bool ready(bool wants_room) const override {
        return inbound_->has_data() || (wants_room && outbound_.has_room()) || inbound_->closed();
    }
    void want_room(bool wanted) override { outbound_.set_waiting(wanted); }
    Outcome state() const override {
        if (inbound_->corrupt() || outbound_.corrupt()) {
            return {Status::protocol, Reason::malformed};
        }
        // Bytes that the peer sent before it closed are still delivered.
        if ((inbound_->closed() || outbound_.closed()) && !inbound_->has_data()) {
            return {Status::peer_lost, Reason::stream_closed};
        }
        return {};
    }
    void close(bool /*at_once*/) override {
        inbound_->close();
        outbound_.close();
        if (peer_->presence() != nullptr) {
            peer_->presence()->wake();
        }
    }

private:
    RingProducer outbound_;
    const std::shared_ptr<RingConsumer> inbound_;
    std::shared_ptr<Peer> peer_;
};

} // namespace zerohop::framed
