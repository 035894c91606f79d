// The contract of a provider, which is a kind of fabric: docs/providers.md takes an author through it.
//
// An Endpoint is one end of a lane. Any thread may post to it; everything that is marked "poller" is called by one
// thread at a time, the one that polls for the engine. A provider starts no thread, and calls its engine through a
// Host.
#pragma once

#include "operation/peer.hpp"
#include "provider/domain.hpp"
#include "provider/host.hpp"
#include "provider/lane.hpp"
#include "provider/mailbox.hpp"
#include "provider/request.hpp"

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace zerohop {

class Endpoint : public std::enable_shared_from_this<Endpoint> {
public:
    Endpoint(const char* provider, const Limits& limits, std::shared_ptr<Peer> peer)
        : provider_(provider), limits_(limits), peer_(std::move(peer)) {}
    virtual ~Endpoint() = default;
    [[nodiscard]] const char* provider() const { return provider_; }
    [[nodiscard]] const Limits& limits() const { return limits_; }
    [[nodiscard]] Peer& peer() const { return *peer_; }
    // Ok while the lane is usable; later the outcome of operations that did not cause its failure.
    [[nodiscard]] Outcome state() const { return state_.load(std::memory_order_acquire); }
    // Returns the state with the reason of the failure itself, if it is known.
    [[nodiscard]] Outcome cause() const {
        const Reason cause = cause_.load(std::memory_order_relaxed);
        return cause == Reason::none ? state() : Outcome{state().status, cause};
    }

    // Any thread.
    [[nodiscard]] virtual Address address() = 0;
    virtual void connect(const Address& remote) = 0; // throws NativeError
    // Checks that the route's access is one of this provider's, and gets what its transfers need of devices, so that
    // none of them waits for that. Throws NativeError.
    virtual void prepare(const Route& route) = 0;
    [[nodiscard]] virtual Posted post(const Request& request) = 0;
    // Returns once every post() that had begun before has returned.
    virtual void quiesce() = 0;
    // Gives the peer back the credit of a notification that was taken from a queue.
    virtual void return_credit(uint16_t queue) = 0;
    struct Held {
        std::shared_ptr<accel::Gate> gate;
        Outcome why;
    };
    // Makes a user's stream wait until the device has carried the operation out (accel::Event::hold). Returns nothing
    // if no device of that driver does so, or if more is queued behind the operation.
    [[nodiscard]] virtual std::optional<Held> hold(const OpRef& /*op*/, const accel::Driver& /*driver*/,
                                                   uint64_t /*native_stream*/) {
        return std::nullopt;
    }
    // Has the poller look for a receive of any peer's if messages wait here; returns whether any do.
    [[nodiscard]] virtual bool match_soon() = 0;
    // Has the poller end the receives that have found a message of this lane in a mailbox; `soon`: and wakes it.
    virtual void match_with(const std::shared_ptr<Mailbox>& mailbox, bool soon = true) = 0;
    // True while notifications and answers wait to be sent, which close() drops.
    [[nodiscard]] virtual bool telling() const = 0;
    // Says what is left to do, and when. `attended`: somebody waits for the ends of operations.
    [[nodiscard]] virtual Backlog backlog(uint64_t now, bool attended) const = 0;
    virtual void add_statistics(Statistics& sums) const = 0;

    // Poller. Moves what can be moved now, at most about 256 KiB in each direction.
    [[nodiscard]] virtual Progress poll() = 0;
    // Poller, about once a millisecond: heartbeats, and operations that have ended elsewhere.
    virtual void tick(uint64_t now) = 0;
    // Poller. Has the next poll() end the lane, and if need be the next but one: poll() or tick() had no memory. Needs
    // none itself.
    virtual void fail(Outcome outcome) = 0;
    // Poller. Ends every operation in flight with `outcome`; later posts fail with it. What a device still copies stays
    // pinned, and poll() lets it go.
    virtual void close(Outcome outcome) = 0;
    // Poller, while open: true if nothing is under way here, not even a receive. Any thread, once closed: true if no
    // device uses anything of the lane any more, so that it may be destroyed.
    [[nodiscard]] virtual bool idle() const = 0;

protected:
    [[nodiscard]] const std::shared_ptr<Peer>& shared_peer() const { return peer_; }
    void set_state(Outcome state) { state_.store(state, std::memory_order_release); }
    // The first cause counts.
    void note_cause(Reason cause) {
        Reason none = Reason::none;
        cause_.compare_exchange_strong(none, cause, std::memory_order_relaxed);
    }

private:
    std::atomic<Outcome> state_{};
    std::atomic<Reason> cause_{Reason::none};
    const char* const provider_;
    const Limits limits_;
    const std::shared_ptr<Peer> peer_;
};

// One entry of the list in native/providers.cpp.
struct Provider {
    struct Probe {
        bool usable = false;
        std::string reason; // why not, and
        std::string fix;    // what the user can do about it
    };
    using Rails = std::span<const std::shared_ptr<Domain>>;
    const char* name;
    Probe (*probe)();
    // Makes one end of a lane. `rails`: the domains that it may use, the first for all that is small; none if the
    // fabric has none. A null pointer: this build knows the name alone.
    std::shared_ptr<Endpoint> (*endpoint)(Host& host, std::shared_ptr<Peer> peer, Rails rails);
    // Opens a device. A null pointer: the fabric has no devices. Both functions throw NativeError.
    std::shared_ptr<Domain> (*open)(Host& host, const std::string& device, int port, int number,
                                    const DomainOptions& options) = nullptr;
};

// Every provider of this build, the cheapest first.
[[nodiscard]] const std::vector<Provider>& providers();

} // namespace zerohop
