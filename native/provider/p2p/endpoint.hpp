// The p2p lane. Devices of this process copy to and from memory of the peer that they reach by themselves; a stream
// announces such a write to the peer after the data, with no processor in between. Everything else goes through a ring
// each way, with the framed protocol.
#pragma once

#include "provider/framed/endpoint.hpp"
#include "provider/framed/ring.hpp"
#include "provider/p2p/copy_queues.hpp"
#include "provider/p2p/notify_rings.hpp"

#include <atomic>
#include <memory>
#include <optional>
#include <vector>

namespace zerohop::p2p {

class P2pEndpoint final : public framed::FramedEndpoint {
public:
    P2pEndpoint(Host& host, std::shared_ptr<Peer> peer);
    ~P2pEndpoint() override;

    Address address() override { return {"", {inbound_->fd(), inbox_.fd()}}; }
    void connect(const Address& remote) override;
    void prepare(const Route& route) override;
    Posted post(const Request& request) override;
    void quiesce() override;
    std::optional<Held> hold(const OpRef& op, const accel::Driver& driver, uint64_t native_stream) override;
    Backlog backlog(uint64_t now, bool attended) const override;
    void add_statistics(Statistics& sums) const override;
    Progress poll() override;
    void tick(uint64_t now) override;
    void close(Outcome outcome) override;
    bool idle() const override { return FramedEndpoint::idle() && !queues_.any_busy(); }

private:
    // copies.cpp
    Posted post_copy(const Request& request);
    [[nodiscard]] Posted queue_copy(CopyQueue& queue, const Request& request, Pin<Region> local,
                                    Pin<PeerMemory> remote);
    [[nodiscard]] Outcome begin(CopyQueue& queue, const Request& request, PeerCopy& copy, Pin<Region> local,
                                Pin<PeerMemory> remote);
    bool poll_copies();
    void finish(PeerCopy& copy);

    CopyQueues queues_;
    const std::shared_ptr<framed::RingConsumer> inbound_; // the peer writes into it
    NotifyInbox inbox_;
    std::unique_ptr<NotifyOutbox> outbox_; // once connected

    std::atomic<uint64_t> bytes_copied_{0};
};

[[nodiscard]] Provider::Probe probe();

} // namespace zerohop::p2p
