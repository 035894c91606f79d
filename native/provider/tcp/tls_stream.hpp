// A connected TCP socket as a byte stream through TLS. The handshake goes on while the lane is polled; until it has
// ended, nothing is sent and nothing received.
#pragma once

#include "base/descriptor.hpp"
#include "base/guarded.hpp"
#include "base/sync.hpp"
#include "provider/framed/byte_stream.hpp"
#include "provider/tcp/tls_session.hpp"
#include "provider/watcher.hpp"

#include <array>
#include <atomic>
#include <cstddef>
#include <string_view>
#include <vector>

namespace zerohop::tcp {

class TlsStream final : public framed::ByteStream {
public:
    // Throws NativeError as TlsSession does.
    TlsStream(Descriptor socket, Watcher& watcher, std::string_view settings);

    size_t send(std::span<const iovec> pieces) override;
    size_t receive(std::span<const iovec> pieces, bool streaming) override;
    bool ready(bool wants_room) const override;
    void want_room(bool wanted) override;
    uint64_t under_way() const override;
    Outcome state() const override;
    void close(bool at_once) override;

private:
    bool gather(std::span<const iovec> pieces, size_t& piece, size_t& at, size_t& taken, Gone& gone);
    bool pull();
    void flush();
    void update_watch();
    [[nodiscard]] bool unsent() const { return out_at_ != out_end_ || session_.has_output(); }
    [[nodiscard]] bool usable() const { return !closed_ && ended_.load(std::memory_order_relaxed) == Reason::none; }

    Descriptor socket_;
    Watcher& watcher_;
    LaneLock lock_; // a thread that posts encrypts while the poller decrypts, and OpenSSL allows only one
    TlsSession session_;
    std::vector<std::byte> out_;   // encrypted bytes on their way to the socket
    std::vector<std::byte> in_;    // from the socket
    std::vector<std::byte> plain_; // bytes to encrypt
    std::vector<std::byte> read_;  // decrypted bytes, of which those from read_at_ on have still to be taken
    size_t read_at_ = 0;
    size_t read_end_ = 0;
    size_t out_at_ = 0;
    size_t out_end_ = 0;
    bool wanted_ = false;
    bool watched_ = false;
    bool closed_ = false;
    bool cannot_send_ = false;
    std::atomic<bool> more_{false}; // decrypted bytes, or some to decrypt, are here already
    std::atomic<Reason> ended_{Reason::none};
};

} // namespace zerohop::tcp
