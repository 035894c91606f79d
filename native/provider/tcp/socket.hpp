// Prepares and shuts down the TCP socket of a lane, for the plain stream and for the one through TLS.
#pragma once

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

namespace zerohop::tcp {

inline void prepare_socket(int fd) {
    const int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
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
