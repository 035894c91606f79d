// A connected TCP socket as a byte stream: never blocks, and receives large payloads straight into their place.
#pragma once

#include "base/descriptor.hpp"
#include "engine/poller.hpp"
#include "provider/framed/byte_stream.hpp"

#include <atomic>
#include <cstddef>
#include <vector>

namespace zerohop::tcp {

// Destroying it without close() leaves the connection to whoever else holds the socket: the parent, after a fork.
class SocketStream final : public framed::ByteStream {
public:
    SocketStream(Descriptor socket, Poller& poller);

    size_t send(std::span<const iovec> pieces) override;
    size_t receive(std::span<const iovec> pieces, bool streaming) override;
    bool ready(bool wants_room) const override;
    void want_room(bool wanted) override;
    Outcome state() const override;
    void close(bool at_once) override;

private:
    Descriptor socket_;
    Poller& poller_;
    std::vector<std::byte> buffer_; // what came beyond the pieces that were asked for
    std::atomic<size_t> buffered_{0};
    size_t at_ = 0;
    std::atomic<bool> ended_{false};
    std::atomic<bool> closed_{false};
};

} // namespace zerohop::tcp
