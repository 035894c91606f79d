// The tcp lane: the framed protocol over a socket that the control plane has connected and authenticated. A lane of
// several sockets carries large transfers in parts, over all but the first of them (flow.hpp).
#pragma once

#include "provider/framed/endpoint.hpp"
#include "provider/tcp/flow.hpp"

#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace zerohop::tcp {

class TcpEndpoint final : public framed::FramedEndpoint {
public:
    TcpEndpoint(Host& host, std::shared_ptr<Peer> peer)
        : FramedEndpoint("tcp", {.fixed_us = 60.0, .gbps = 5.0}, host, std::move(peer)) {}
    ~TcpEndpoint() override;

    Address address() override { return {}; } // the control plane makes the connection
    // One connected socket, or that and several flows, in the same order at both ends. With bytes, through TLS: they
    // are the settings of each socket (tls_session.hpp), all of one length.
    void connect(const Address& remote) override;

    void prepare(const Route& route) override;
    Posted post(const Request& request) override;
    void quiesce() override;
    bool telling() const override;
    void add_statistics(Statistics& sums) const override;
    void tick(uint64_t now) override;
    void close(Outcome outcome) override;
    bool idle() const override;

private:
    class Split;
    [[nodiscard]] std::span<const std::shared_ptr<Flow>> flows() const {
        return started() ? std::span<const std::shared_ptr<Flow>>(flows_) : std::span<const std::shared_ptr<Flow>>();
    }
    [[nodiscard]] size_t parts_of(const Request& request) const;
    Posted post_split(const Request& request, size_t parts);
    void end_split(const Split& split);
    static std::string_view settings_of(const Address& remote, size_t socket);
    static void end(std::span<const std::shared_ptr<Flow>> flows, Outcome outcome);

    std::vector<std::shared_ptr<Flow>> flows_; // complete before the lane is started
    std::mutex splitting_;
};

[[nodiscard]] Provider::Probe probe();

} // namespace zerohop::tcp
