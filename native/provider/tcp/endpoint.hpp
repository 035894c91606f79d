// The tcp lane: the framed protocol over a socket that the control plane has connected and authenticated.
#pragma once

#include "provider/framed/endpoint.hpp"

#include <memory>
#include <utility>

namespace zerohop::tcp {

class TcpEndpoint final : public framed::FramedEndpoint {
public:
    TcpEndpoint(Host& host, std::shared_ptr<Peer> peer)
        : FramedEndpoint("tcp", {.fixed_us = 60.0, .gbps = 5.0}, host, std::move(peer)) {}

    Address address() override { return {}; } // the control plane makes the connection
    // One connected socket; with bytes, through TLS with these settings (tls_session.hpp).
    void connect(const Address& remote) override;
};

[[nodiscard]] Provider::Probe probe();

} // namespace zerohop::tcp
