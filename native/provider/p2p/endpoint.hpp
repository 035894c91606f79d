// The p2p lane. Devices of ours copy to and from memory of the peer that they reach by themselves; a stream announces
// such a write to the peer after the data, with no processor in between. All else goes through a ring each way, with
// the framed protocol.
#pragma once

#include "provider/framed/endpoint.hpp"
#include "provider/framed/ring.hpp"
#include "provider/p2p/copy_queues.hpp"
#include "provider/p2p/notify_rings.hpp"

#include <atomic>
#include <memory>
#include <vector>

namespace zerohop::p2p {

class P2pEndpoint final : public framed::FramedEndpoint {
public:
    P2pEndpoint(Engine& engine, std::shared_ptr<Peer> peer);
    ~P2pEndpoint() override;
    P2pEndpoint(const P2pEndpoint&) = delete;
    P2pEndpoint& operator=(const P2pEndpoint&) = delete;

    const char* provider() const override { return "p2p"; }
    Limits limits() const override;
    Address address() override;
    void connect(const Address& remote) override;
    Posted post(const Request& request) override;
    void close(Outcome outcome) override;
    bool poll() override;
    bool ready() const override;
    bool needs_polling() const override;
    uint64_t look_in_ns(uint64_t now, bool attended) const override;
    // What nobody waits for is reaped all the same, a little later: its memory may be asked back.
    bool in_device() const override { return queues_.any_busy(); }
    bool idle() const override;
    bool quiet() const override;
    void quiesce() override;
    void tick(uint64_t now) override;
    void prepare(const Route& route) override;
    std::optional<Held> hold(const OpRef& op, const accel::Driver& driver, uint64_t native_stream) override;
    void each_statistic(void (*visit)(void*, const char*, uint64_t), void* context) const override;

private:
    Posted post_copy(const Request& request);
    [[nodiscard]] Posted queue_copy(CopyQueue& queue, const Request& request, Pin<Region> local,
                                    Pin<PeerMemory> remote);
    [[nodiscard]] Outcome begin(CopyQueue& queue, const Request& request, PeerCopy& copy, Pin<Region> local,
                                Pin<PeerMemory> remote);
    bool poll_copies();
    void finish(PeerCopy& copy);

    CopyQueues queues_;
    std::unique_ptr<framed::RingConsumer> inbound_; // until connect() gives it to the stream
    const int inbound_fd_;                          // the ring's, which lives as long as this
    NotifyInbox inbox_;
    std::unique_ptr<NotifyOutbox> outbox_; // once connected

    std::atomic<uint64_t> bytes_copied_{0};
};

class P2pProvider final : public Provider {
public:
    const char* name() const override { return "p2p"; }
    Probe probe() const override;
    std::shared_ptr<Endpoint> endpoint(Engine& engine, std::shared_ptr<Peer> peer,
                                       std::span<const std::shared_ptr<Domain>> rails) const override;
};

} // namespace zerohop::p2p
