// The tcp lane: the framed protocol over a socket that the control plane has connected and authenticated.
#pragma once

#include "provider/framed/endpoint.hpp"

#include <memory>

namespace zerohop::tcp {

class TcpEndpoint final : public framed::FramedEndpoint {
public:
    using FramedEndpoint::FramedEndpoint;

    const char* provider() const override { return "tcp"; }
    Limits limits() const override;
    Address address() override { return {}; } // the control plane makes the connection
    void connect(const Address& remote) override;
};

class TcpProvider final : public Provider {
public:
    const char* name() const override { return "tcp"; }
    Probe probe() const override;
    std::shared_ptr<Endpoint> endpoint(Engine& engine, std::shared_ptr<Peer> peer,
                                       std::span<const std::shared_ptr<Domain>> rails) const override;
};

} // namespace zerohop::tcp
