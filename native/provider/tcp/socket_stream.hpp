// A connected TCP socket as a byte stream: never blocks, and receives large payloads straight into their place.
#pragma once

#include "base/descriptor.hpp"
#include "provider/framed/byte_stream.hpp"
#include "provider/watcher.hpp"

#include <atomic>
#include <cstddef>
#include <vector>

namespace zerohop::tcp {

// Destroying it without close() leaves the connection to the process that holds the socket, too: the parent, after a
// fork.
class SocketStream final : public framed::ByteStream {
public:
    SocketStream(Descriptor socket, Watcher& watcher);

    size_t send(std::span<const iovec> pieces) override;
    size_t receive(std::span<const iovec> pieces, bool streaming) override;
    bool ready(bool wants_room) const override;
    void want_room(bool wanted) override;
    uint64_t under_way() const override;
    Outcome state() const override;
    void close(bool at_once) override;

private:
    size_t send_copy(std::span<const iovec> pieces);
    size_t take_buffered(std::span<const iovec> pieces);
    Descriptor socket_;
    Watcher& watcher_;
    std::vector<std::byte> buffer_; // bytes that came beyond the pieces that were asked for
    std::atomic<size_t> buffered_{0};
    size_t at_ = 0;
    std::atomic<Reason> ended_{Reason::none};
    std::atomic<bool> cannot_send_{false};
    std::atomic<bool> closed_{false};
};

} // namespace zerohop::tcp
