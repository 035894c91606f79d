#include "provider/tcp/endpoint.hpp"

#include "provider/tcp/socket_stream.hpp"
#include "provider/tcp/tls_stream.hpp"

#include <cerrno>
#include <cstring>
#include <string>
#include <sys/socket.h>

namespace zerohop::tcp {

void TcpEndpoint::connect(const Address& remote) {
    if (remote.fds.size() != 1) {
        throw NativeError(Status::unsupported, Reason::malformed, "a tcp lane needs one connected socket");
    }
    check_unconnected();
    Descriptor socket = Descriptor::duplicate(remote.fds[0]);
    if (remote.bytes.empty()) {
        start(std::make_unique<SocketStream>(std::move(socket), host()));
    } else {
        start(std::make_unique<TlsStream>(std::move(socket), host(), remote.bytes));
    }
}

Provider::Probe probe() {
    if (Descriptor(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0))) {
        return {true, "", ""};
    }
    return {false, std::string("the kernel gives no TCP socket: ") + std::strerror(errno),
            "raise the limit of open files (ulimit -n), or allow sockets in this sandbox"};
}

} // namespace zerohop::tcp
