#include "provider/tcp/tls_stream.hpp"

#include "base/guarded.hpp"
#include "provider/tcp/socket.hpp"

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <sys/socket.h>

namespace zerohop::tcp {

namespace {

constexpr size_t kRecordBytes = 16 * 1024; // the longest record of TLS
constexpr size_t kSocketBytes = 64 * 1024; // to and from the socket at once
constexpr size_t kSendBytes = 256 * 1024;  // encrypted by one call, as much as a slice of the framed protocol

} // namespace

TlsStream::TlsStream(Descriptor socket, Watcher& watcher, std::string_view settings)
    : socket_(std::move(socket)), watcher_(watcher), session_(settings), out_(kSocketBytes), in_(kSocketBytes),
      plain_(kRecordBytes), read_(kRecordBytes) {
    prepare_socket(socket_.get());
    watcher_.watch(socket_.get());
    const std::lock_guard lock(lock_);
    session_.shake_hands(); // the side that dials begins
    flush();
}

size_t TlsStream::send(std::span<const iovec> pieces) {
    const std::lock_guard lock(lock_);
    if (!usable() || !session_.established()) {
        return 0;
    }
    flush();
    size_t taken = 0;
    if (!unsent()) {
        Gone gone = Gone::nothing;
        for (size_t piece = 0, at = 0; taken < kSendBytes && gather(pieces, piece, at, taken, gone);) {
        }
        flush();
        if (taken == 0 && gone != Gone::nothing) {
            return kGone;
        }
    }
    return taken;
}

// Encrypts one record of what is left of the pieces; false: nothing is left, it is gone, or TLS has failed. OpenSSL
// reads and writes buffers of ours alone: where memory is gone, a copy can be left, and a call of OpenSSL cannot.
bool TlsStream::gather(std::span<const iovec> pieces, size_t& piece, size_t& at, size_t& taken, Gone& gone) {
    size_t filled = 0;
    while (piece < pieces.size() && filled < kRecordBytes) {
        const auto* const base = static_cast<const std::byte*>(pieces[piece].iov_base) + at;
        const size_t n = std::min(pieces[piece].iov_len - at, kRecordBytes - filled);
        gone = copy_guarded(plain_.data() + filled, base, n);
        if (gone != Gone::nothing) {
            break;
        }
        filled += n;
        at += n;
        if (at == pieces[piece].iov_len) {
            ++piece;
            at = 0;
        }
    }
    if (filled == 0) {
        return false;
    }
    if (!session_.write(plain_.data(), filled)) {
        ended_.store(Reason::stream_closed, std::memory_order_release);
        return false;
    }
    taken += filled;
    return gone == Gone::nothing;
}

size_t TlsStream::receive(std::span<const iovec> pieces, bool /*streaming*/) {
    const std::lock_guard lock(lock_);
    // Bytes that arrived before the end can still be read.
    if (!usable() && (closed_ || !more_.load(std::memory_order_relaxed))) {
        return 0;
    }
    flush();
    size_t got = 0;
    bool gone = false;
    for (size_t piece = 0, at = 0; piece < pieces.size() && !gone;) {
        if (read_at_ == read_end_) {
            read_at_ = 0;
            read_end_ = session_.read(read_.data(), read_.size());
            if (read_end_ == 0) {
                if (session_.failed() || !pull()) {
                    break;
                }
                continue;
            }
        }
        const size_t n = std::min(pieces[piece].iov_len - at, read_end_ - read_at_);
        gone = copy_guarded(static_cast<std::byte*>(pieces[piece].iov_base) + at, read_.data() + read_at_, n) !=
               Gone::nothing;
        if (!gone) {
            read_at_ += n;
            got += n;
            at += n;
            if (at == pieces[piece].iov_len) {
                ++piece;
                at = 0;
            }
        }
    }
    if (session_.failed()) {
        flush(); // the alert
        ended_.store(Reason::stream_closed, std::memory_order_release);
    }
    more_.store(read_at_ != read_end_ || session_.has_input(), std::memory_order_release);
    return got == 0 && gone ? kGone : got;
}

// Takes what has arrived at the socket; false: nothing has.
bool TlsStream::pull() {
    const ssize_t received = recv(socket_.get(), in_.data(), in_.size(), MSG_DONTWAIT);
    if (received <= 0) {
        if (received == 0 || (errno != EAGAIN && errno != EINTR)) {
            ended_.store(reason_of_end(received == 0 ? 0 : errno), std::memory_order_release);
        }
        return false;
    }
    session_.feed(in_.data(), static_cast<size_t>(received));
    if (!session_.established()) {
        session_.shake_hands();
        flush();
    }
    return true;
}

// Sends what the socket takes of the encrypted bytes.
void TlsStream::flush() {
    while (usable() && !cannot_send_ && unsent()) {
        if (out_at_ == out_end_) {
            out_at_ = 0;
            out_end_ = session_.take(out_.data(), out_.size());
        }
        const ssize_t sent =
            ::send(socket_.get(), out_.data() + out_at_, out_end_ - out_at_, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0) {
            if (is_gone(errno)) {
                cannot_send_ = true;
            } else if (errno != EAGAIN && errno != EINTR) {
                ended_.store(reason_of_end(errno), std::memory_order_release);
            }
            break;
        }
        out_at_ += static_cast<size_t>(sent);
    }
    update_watch();
}

// Has the poller woken when there is room for what is encrypted already, or for more. During the handshake there is
// room, and nothing to fill it with.
void TlsStream::update_watch() {
    const bool watch = unsent() || (wanted_ && session_.established());
    if (!closed_ && watch != watched_) {
        watched_ = watch;
        watcher_.watch_writable(socket_.get(), watch);
    }
}

bool TlsStream::ready(bool /*wants_room*/) const {
    return more_.load(std::memory_order_acquire);
}

void TlsStream::want_room(bool wanted) {
    const std::lock_guard lock(lock_);
    wanted_ = wanted;
    update_watch();
}

Outcome TlsStream::state() const {
    const Reason ended = ended_.load(std::memory_order_acquire);
    if (ended != Reason::none && !more_.load(std::memory_order_acquire)) {
        return {Status::peer_lost, ended};
    }
    return {};
}

uint64_t TlsStream::under_way() const {
    return unacknowledged(socket_.get()); // encrypted they are more, so that this is never too few
}

void TlsStream::close(bool at_once) {
    const std::lock_guard lock(lock_);
    if (!closed_) {
        if (!at_once) {
            flush(); // what send() has taken goes as far as the socket takes it
        }
        closed_ = true;
        watcher_.unwatch(socket_.get());
        shut_down(socket_.get(), at_once);
    }
}

} // namespace zerohop::tcp
