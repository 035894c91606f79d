// The engine as a provider sees it: everything that it may ask. The engine is the only Host.
//
// The parts that each operation touches are members, so that reaching them costs no virtual call.
#pragma once

#include "memory/accelerators.hpp"
#include "memory/device_atomics.hpp"
#include "memory/share.hpp"
#include "operation/operation.hpp"
#include "operation/peer.hpp"
#include "provider/bulk.hpp"
#include "provider/notify.hpp"
#include "provider/request.hpp"
#include "provider/watcher.hpp"

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace zerohop {

class Mailbox;

class Host : public Watcher {
public:
    // `ended` is called after each operation that has ended.
    Host(uint64_t heartbeat_ns, std::vector<std::shared_ptr<accel::Driver>> drivers, std::function<void()> ended)
        : heartbeat_ns_(heartbeat_ns), operations_(std::make_shared<OperationSlab>(std::move(ended))),
          accelerators_(std::move(drivers)) {}
    ~Host() override = default;

    [[nodiscard]] OperationSlab& operations() { return *operations_; }
    // For those who look at an operation after the engine has gone.
    [[nodiscard]] const std::shared_ptr<OperationSlab>& shared_operations() const { return operations_; }
    [[nodiscard]] ShareTable& shares() { return shares_; }
    [[nodiscard]] Accelerators& accelerators() { return accelerators_; }
    [[nodiscard]] DeviceAtomics& device_atomics() { return device_atomics_; } // poller
    // Silence after which a peer on another host is lost; 0: never.
    [[nodiscard]] uint64_t heartbeat_ns() const { return heartbeat_ns_; }

    // Counts the bytes that peers make this Context keep.
    [[nodiscard]] std::atomic<uint64_t>& kept_bytes() { return kept_bytes_; }

    // Ends an operation; the lane must have freed all that it took.
    void finish(const OpRef& op, Outcome outcome, uint64_t nbytes = 0, uint64_t value = 0) {
        if (!op->finish(outcome, nbytes, value)) {
            wake_waiters(); // its deadline had ended it before, but only now is there room for another
        }
    }
    // Wakes those who wait, for another reason than the end of an operation: there is room, or credit.
    virtual void wake_waiters() = 0;
    // Returns true if anybody waits, in a call or for the end of an operation.
    [[nodiscard]] virtual bool anybody_waits() = 0;
    // Delivers a notification. The data that it announces must be visible already.
    virtual void notify(uint16_t queue, Notification note) = 0;
    // Takes the oldest receive that any peer's message may end, for a message that is here.
    [[nodiscard]] virtual std::optional<PostedRecv> take_receive() = 0;
    // Returns the mailbox of a scope; makes one for messages that come before anybody receives there.
    [[nodiscard]] virtual std::shared_ptr<Mailbox> mailbox(uint64_t scope) = 0;

    // Returns ok while the peer lives; else ends everything to it, and returns how it was lost.
    [[nodiscard, gnu::always_inline]] Outcome look_at(Peer& peer) {
        const Outcome state = peer.state();
        return state.ok() && peer.dead() ? lose_dead_peer(peer) : state;
    }
    // Ends everything to a peer that a lane has found gone.
    virtual void lose_peer(Peer& peer, Outcome outcome) = 0;
    // Reports that a lane has failed, while its peer may live on.
    virtual void lane_failed(const Peer& peer) = 0;
    // Reports that the port or the device of a domain came or went.
    virtual void domain_changed(int number) = 0;

    // Calls f while nobody polls.
    virtual void exclusive(const std::function<void()>& f) = 0;
    // Returns a thread for a link that carries large transfers alone. Throws NativeError, or std::system_error.
    [[nodiscard]] virtual BulkThread& bulk_thread() = 0;
    // Watches the descriptor of a device, which tells only what happens after Domain::arm().
    virtual void watch_device(int fd) = 0;
    virtual void unwatch_device(int fd) = 0;

private:
    virtual Outcome lose_dead_peer(Peer& peer) = 0;

    const uint64_t heartbeat_ns_;
    std::atomic<uint64_t> kept_bytes_{0};
    const std::shared_ptr<OperationSlab> operations_;
    ShareTable shares_;
    Accelerators accelerators_;
    DeviceAtomics device_atomics_{accelerators_};
};

} // namespace zerohop
