// Prepares and shuts down the TCP socket of a lane, for the plain stream and for the one through TLS.
#pragma once

#include "base/descriptor.hpp"
#include "base/status.hpp"

#include <cerrno>
#include <cstdint>
#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

namespace zerohop::tcp {

inline void prepare_socket(int fd) {
    const int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

// Returns why a connection has ended with this error of the system, or with the end of the stream: 0.
inline Reason reason_of_end(int error) {
    const Reason reason = failed_to_make(error).reason;
    return reason == Reason::not_allowed ? reason : Reason::stream_closed;
}

// Tells whether a send has failed because the peer is gone. What it sent before can still be received: receiving, not
// sending, tells the end then.
inline bool is_gone(int error) {
    return error == EPIPE || error == ECONNRESET;
}

// Returns how many bytes the peer's host has not acknowledged.
inline uint64_t unacknowledged(int fd) {
    int nbytes = 0;
    return ::ioctl(fd, SIOCOUTQ, &nbytes) == 0 && nbytes > 0 ? static_cast<uint64_t>(nbytes) : 0;
}

// Ends the connection. The descriptor itself stays: a posting thread may be about to use it.
inline void shut_down(int fd, bool at_once) {
    if (at_once) {
        // A reset. After shutdown() a peer that fills our window would neither be told nor stopped.
        const sockaddr nobody{AF_UNSPEC, {}};
        [[maybe_unused]] const int reset = ::connect(fd, &nobody, sizeof nobody);
    }
    shutdown(fd, SHUT_RDWR);
}

} // namespace zerohop::tcp
