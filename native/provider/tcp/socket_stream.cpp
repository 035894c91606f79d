#include "provider/tcp/socket_stream.hpp"

#include "base/guarded.hpp"
#include "provider/framed/frame.hpp"
#include "provider/tcp/socket.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sys/socket.h>

namespace zerohop::tcp {

namespace {

// Bytes that one call takes beyond the pieces that were asked for: many small frames.
constexpr size_t kBufferBytes = 64 * 1024;
constexpr size_t kMaxPieces = framed::kPieces + 1; // the caller's, and the buffer
// Behind a payload of this size only the next header is worth a copy; behind a smaller one there may be many frames.
constexpr size_t kLargePiece = 16 * 1024;
constexpr size_t kHeadRoom = sizeof(framed::FrameHeader);

} // namespace

SocketStream::SocketStream(Descriptor socket, Watcher& watcher)
    : socket_(std::move(socket)), watcher_(watcher), buffer_(kBufferBytes) {
    prepare_socket(socket_.get());
    watcher_.watch(socket_.get());
}

size_t SocketStream::send(std::span<const iovec> pieces) {
    if (closed_.load(std::memory_order_relaxed) || cannot_send_.load(std::memory_order_relaxed) ||
        ended_.load(std::memory_order_relaxed) != Reason::none) {
        return 0;
    }
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(pieces.data());
    message.msg_iovlen = pieces.size();
    const ssize_t sent = sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EFAULT) {
        return send_copy(pieces);
    }
    if (sent < 0) {
        if (is_gone(errno)) {
            cannot_send_.store(true, std::memory_order_relaxed);
        } else if (errno != EAGAIN && errno != EINTR) {
            ended_.store(reason_of_end(errno), std::memory_order_release);
        }
        return 0;
    }
    return static_cast<size_t>(sent);
}

// Sends what comes before memory that is gone.
size_t SocketStream::send_copy(std::span<const iovec> pieces) {
    std::vector<std::byte> copy;
    for (const iovec& piece : pieces) {
        const size_t at = copy.size();
        const size_t n = std::min(piece.iov_len, kBufferBytes - at);
        copy.resize(at + n);
        if (copy_guarded(copy.data() + at, piece.iov_base, n) != Gone::nothing) {
            copy.resize(at);
            break;
        }
    }
    if (copy.empty()) {
        return kGone;
    }
    const ssize_t sent = ::send(socket_.get(), copy.data(), copy.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    return sent < 0 ? 0 : static_cast<size_t>(sent);
}

size_t SocketStream::take_buffered(std::span<const iovec> pieces) {
    size_t buffered = buffered_.load(std::memory_order_relaxed);
    size_t got = 0;
    for (const iovec& piece : pieces) {
        const size_t n = std::min(piece.iov_len, buffered);
        if (copy_guarded(piece.iov_base, buffer_.data() + at_, n) != Gone::nothing) {
            got = got == 0 ? kGone : got;
            break;
        }
        at_ += n;
        buffered -= n;
        got += n;
    }
    buffered_.store(buffered, std::memory_order_release);
    return got;
}

size_t SocketStream::receive(std::span<const iovec> pieces, bool /*streaming*/) {
    if (buffered_.load(std::memory_order_relaxed) != 0) {
        return take_buffered(pieces);
    }
    if (closed_.load(std::memory_order_relaxed) || ended_.load(std::memory_order_relaxed) != Reason::none) {
        return 0;
    }
    // One call fills the caller's pieces and takes what follows into the buffer: the next header, usually.
    iovec all[kMaxPieces];
    const size_t count = std::min(pieces.size(), kMaxPieces - 1);
    std::copy_n(pieces.begin(), count, all);
    all[count] = {buffer_.data(), pieces[0].iov_len >= kLargePiece ? kHeadRoom : buffer_.size()};
    msghdr message{};
    message.msg_iov = all;
    message.msg_iovlen = count + 1;
    ssize_t received = recvmsg(socket_.get(), &message, MSG_DONTWAIT);
    if (received < 0 && errno == EFAULT) { // a piece is gone: the kernel has kept the bytes
        received = recv(socket_.get(), buffer_.data(), buffer_.size(), MSG_DONTWAIT);
        if (received > 0) {
            at_ = 0;
            buffered_.store(static_cast<size_t>(received), std::memory_order_release);
            return take_buffered(pieces);
        }
    }
    if (received <= 0) {
        if (received == 0 || (errno != EAGAIN && errno != EINTR)) {
            ended_.store(reason_of_end(received == 0 ? 0 : errno), std::memory_order_release);
        }
        return 0;
    }
    auto left = static_cast<size_t>(received);
    size_t got = 0;
    for (size_t i = 0; i < count && left != 0; ++i) {
        const size_t n = std::min(pieces[i].iov_len, left);
        got += n;
        left -= n;
    }
    at_ = 0;
    buffered_.store(left, std::memory_order_release);
    return got;
}

bool SocketStream::ready(bool /*wants_room*/) const {
    // The socket itself is watched by the poller's epoll; only what lies in the buffer is ours to tell.
    return buffered_.load(std::memory_order_acquire) != 0;
}

void SocketStream::want_room(bool wanted) {
    if (!closed_.load(std::memory_order_relaxed)) {
        watcher_.watch_writable(socket_.get(), wanted);
    }
}

Outcome SocketStream::state() const {
    const Reason ended = ended_.load(std::memory_order_acquire);
    if (ended != Reason::none && buffered_.load(std::memory_order_acquire) == 0) {
        return {Status::peer_lost, ended};
    }
    return {};
}

uint64_t SocketStream::under_way() const {
    return unacknowledged(socket_.get());
}

void SocketStream::close(bool at_once) {
    if (!closed_.exchange(true)) {
        watcher_.unwatch(socket_.get());
        shut_down(socket_.get(), at_once);
    }
}

} // namespace zerohop::tcp
