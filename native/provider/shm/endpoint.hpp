// The shm lane. Memory that the peer mapped to us is copied to and from directly; all other memory goes through a
// ring each way, with the framed protocol. Notifications always take the ring.
#pragma once

#include "provider/framed/endpoint.hpp"
#include "provider/framed/ring.hpp"
#include "provider/shm/mapped_copy.hpp"

#include <list>
#include <memory>

namespace zerohop::shm {

class ShmEndpoint final : public framed::FramedEndpoint {
public:
    ShmEndpoint(Host& host, std::shared_ptr<Peer> peer);

    Address address() override { return {"", {inbound_->fd()}}; }
    void connect(const Address& remote) override;
    void prepare(const Route& route) override;
    Posted post(const Request& request) override;
    Backlog backlog(uint64_t now, bool attended) const override;
    void add_statistics(Statistics& sums) const override;
    Progress poll() override;
    void close(Outcome outcome) override;
    bool idle() const override;

private:
    Posted post_mapped(const Request& request);
    Posted post_mapped_atomic(const Request& request);
    Posted enqueue(MappedCopy copy, OpRef op);
    bool poll_copies();
    void finish(MappedCopy& copy, Outcome outcome);

    const std::shared_ptr<framed::RingConsumer> inbound_; // the peer writes into it
    SpinLock copies_lock_;
    std::list<MappedCopy> copies_;
    std::atomic<size_t> copies_pending_{0};
    std::atomic<uint64_t> bytes_mapped_{0};
};

[[nodiscard]] Provider::Probe probe();

} // namespace zerohop::shm
