// One more socket of a tcp lane, for parts of large transfers alone: a framed link that a bulk thread polls.
#pragma once

#include "provider/bulk.hpp"
#include "provider/framed/endpoint.hpp"

#include <memory>
#include <mutex>
#include <string_view>

namespace zerohop::tcp {

// A socket as a byte stream; through TLS if there are settings for it. Throws NativeError.
[[nodiscard]] std::unique_ptr<framed::ByteStream> make_stream(int fd, Watcher& watcher, std::string_view tls);

class Flow final : public framed::FramedEndpoint, public BulkLink {
public:
    Flow(Host& host, std::shared_ptr<Peer> peer, BulkThread& thread);

    Address address() override { return {}; }
    // As TcpEndpoint's, with one socket.
    void connect(const Address& remote) override;

    // Posts a part of an operation, and tells the whole if that fails.
    void post_part(const Request& request, const std::shared_ptr<framed::Whole>& whole);
    // Returns true if there is room for one more part.
    [[nodiscard]] bool has_room();
    // The following wait until the bulk thread has moved the piece that it is at.
    // Returns once no piece moves that began before, and every post that began before has returned.
    void settle_down();
    // Keeps the flow as it is for as long as the lock lives.
    [[nodiscard]] std::unique_lock<std::mutex> hold() const { return std::unique_lock(polling_); }
    // Takes what the peer has sent by now, and ends the flow. The caller holds it.
    void end(Outcome outcome);
    // Returns what idle() does.
    [[nodiscard]] bool has_nothing() const;
    // Sees to heartbeats, unless the bulk thread is at work: then the flow is alive.
    void look(uint64_t now);
    // Takes the flow away from its thread.
    void leave() { thread_.remove(*this); }

    void fail(Outcome outcome) override;
    bool move() override;
    bool waits_for_device() const override;

protected:
    // Whatever else a lane carries belongs to the poller.
    bool takes(const framed::FrameHeader& header) const override;

private:
    BulkThread& thread_;
    mutable std::mutex polling_;
};

} // namespace zerohop::tcp
