// The contract of a provider: a kind of fabric. Providers start no threads; the engine's poller calls poll().
#pragma once

#include "base/clock.hpp"
#include "base/extents.hpp"
#include "base/page_list.hpp"
#include "base/pollable.hpp"
#include "memory/region.hpp"
#include "memory/registration.hpp"
#include "memory/share.hpp"
#include "operation/operation.hpp"
#include "provider/notify.hpp"

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

namespace zerohop {

namespace accel {
class Driver;
} // namespace accel
class Engine;
class Peer;
class Endpoint;
namespace p2p {
class PeerMemory;
} // namespace p2p

// How often is looked at what nobody tells, where nothing better is known: device copies, ends of which the lane was
// being posted to.
inline constexpr uint64_t kDeviceInterval = 50 * kMicrosecond;

// What it costs to use a provider, as data, so that the path is chosen in one place.
struct Limits {
    uint64_t max_message = UINT64_MAX;
    uint32_t alignment = 1;
    double fixed_us = 0;
    double gbps = 0;
};

// What two endpoints must tell each other: bytes, and descriptors where the fabric passes them.
struct Address {
    std::string bytes;
    std::vector<int> fds; // borrowed
};

// What a peer gave out of a share of its memory, so that a NIC may reach it without asking: one key per rail of a lane.
// close() drains, as for a Mapping.
class RemoteKeys : public Pinnable {
public:
    RemoteKeys(uint64_t remote_address, uint64_t length, uint8_t allowed, std::vector<uint32_t> rail_keys, bool atomic)
        : address(remote_address), nbytes(length), rights(allowed), keys(std::move(rail_keys)), atomics(atomic) {}
    const uint64_t address; // of the share's first byte
    const uint64_t nbytes;
    const uint8_t rights;
    const std::vector<uint32_t> keys;
    const bool atomics; // the NIC at that end has them
};

// A pair (memory, remote memory) on one lane: all that does not change from operation to operation.
struct Route {
    std::shared_ptr<Endpoint> endpoint;
    std::shared_ptr<Region> local;
    ShareId share;
    Capability capability{};
    uint64_t remote_nbytes = 0;
    uint8_t rights = 0;
    std::shared_ptr<Mapping> mapping;             // the remote memory itself, where the lane can map it
    std::shared_ptr<RemoteKeys> keys;             // to the remote memory, where the lane's NICs can reach it
    std::vector<uint32_t> local_keys;             // of the local memory, one per rail; good while `local` is open
    std::shared_ptr<p2p::PeerMemory> peer_memory; // the remote memory, where devices here can reach it
    uint64_t peer_address = 0;                    // where it begins for the device that copies
    int copy_device = -1;
};

enum class Kind : uint8_t { write, read, fetch_add, compare_swap, notify, send, recv, flush };

// One transfer, as a plain value.
struct Request {
    Kind kind = Kind::write;
    const Route* route = nullptr;  // one-sided kinds; alive for the call only
    std::shared_ptr<Region> local; // send, recv
    uint64_t local_offset = 0;
    uint64_t remote_offset = 0;
    uint64_t nbytes = 0;
    std::shared_ptr<const PageList> pages; // nbytes is then the sum
    int64_t notify = -1;                   // see notify_of()
    const OperationGroup* group = nullptr; // whose operation it is, alive for the call; null: nobody's
    uint64_t operand = 0;                  // fetch_add: addend; compare_swap: the new value
    uint64_t compare = 0;
    uint64_t deadline_ns = 0;
    uint64_t started_ns = now_ns();
    // Of the user's, by the number that the driver has for it: the transfer begins after what is queued there now.
    // Lanes of devices alone can do that.
    std::optional<uint64_t> after_stream;
};

// `done`: ended well before post() returned, no slot was used. `posted`: `op` ends later. `retry`: nothing happened,
// the lane is full for `outcome.reason`. `failed`: nothing happened, for good.
struct Posted {
    enum class What : uint8_t { done, posted, retry, failed };
    What what = What::done;
    Outcome outcome{};
    OpRef op{};
    uint64_t value = 0;
    bool carried_out = false; // posted, and a device does the rest: this lane has nothing left to do about it
};

// One end of a lane. post() may be called from any thread; poll() by the engine's one poller only.
class Endpoint : public std::enable_shared_from_this<Endpoint> {
public:
    virtual ~Endpoint() = default;
    [[nodiscard]] virtual const char* provider() const = 0;
    [[nodiscard]] virtual Limits limits() const = 0;
    [[nodiscard]] virtual Address address() = 0;
    virtual void connect(const Address& remote) = 0; // throws NativeError
    // Gets what transfers on the route will need of devices, so that none of them has to wait for that.
    virtual void prepare(const Route& /*route*/) {}
    [[nodiscard]] virtual Posted post(const Request& request) = 0;
    // Every operation in flight ends with `outcome`; later posts fail with it. Memory stays pinned until copies end.
    virtual void close(Outcome outcome) = 0;
    [[nodiscard]] virtual Outcome state() const = 0; // ok while usable
    // What has made it fail. Its state is how that ends the operations that were innocent of it.
    [[nodiscard]] virtual Outcome cause() const { return state(); }
    // As Engine::quiet, by whoever has the poller's right and has polled.
    [[nodiscard]] virtual bool quiet() const = 0;
    [[nodiscard]] virtual Peer& peer() const = 0;

    // Moves what can be moved now, at most about 256 KiB a direction; true when it did something.
    virtual bool poll() = 0;
    // The poller's: found the last poll() nothing at all to do, so that something new must be told by whoever posts it,
    // or come from a device? No lane says so of which a peer publishes in shared memory.
    [[nodiscard]] bool rests() const { return rests_; }
    // May poll() have something to do? Read without a lock by a thread about to sleep.
    [[nodiscard]] virtual bool ready() const = 0;
    // Has it work that needs nothing from the peer? Then somebody must poll even if nobody waits.
    [[nodiscard]] virtual bool has_local_work() const = 0;
    // Has it more to send when what it sent before has ended? Then somebody must notice that.
    [[nodiscard]] virtual bool stalled() const { return false; }
    // Does a device still carry out what it was given, also where nobody waits for the end? Then somebody must look.
    [[nodiscard]] virtual bool in_device() const { return false; }
    // Does it wait for something that wakes nobody (device copies)? Then sleeping must be short.
    [[nodiscard]] virtual bool needs_polling() const = 0;
    // When it is worth while to look at what it so waits for, from now on; 0: it will not be long. `attended`: somebody
    // waits for the ends of operations.
    [[nodiscard]] virtual uint64_t look_in_ns(uint64_t /*now*/, bool /*attended*/) const { return kDeviceInterval; }
    // Nothing of it is in use by a device any more; only then may it be destroyed.
    [[nodiscard]] virtual bool idle() const = 0;
    // About once a millisecond while somebody polls: heartbeats.
    virtual void tick(uint64_t now) = 0;
    // Has a stream of the user's, of a driver, wait for an operation in flight, by what the device does that carries it
    // out: see accel::Event::hold. Nothing where no device of that driver does, or more is queued there behind it.
    struct Held {
        std::shared_ptr<accel::Gate> gate;
        Outcome why;
    };
    [[nodiscard]] virtual std::optional<Held> hold(const OpRef& /*op*/, const accel::Driver& /*driver*/,
                                                   uint64_t /*native_stream*/) {
        return std::nullopt;
    }
    // Returns when every post() has returned that was under way.
    virtual void quiesce() = 0;
    // Credits of `count` notifications that the user has taken go back to the peer.
    virtual void return_credits(uint32_t count) = 0;
    virtual void each_statistic(void (*visit)(void*, const char*, uint64_t), void* context) const = 0;

protected:
    void note_rest(bool rests) { rests_ = rests; }

private:
    bool rests_ = false;
};

using DomainOptions = std::map<std::string, int64_t>;

// An opened device of a provider whose fabric is made of devices: what its lanes share.
class Domain : public std::enable_shared_from_this<Domain> {
public:
    virtual ~Domain() = default;
    [[nodiscard]] virtual const char* provider() const = 0;
    [[nodiscard]] virtual const std::string& device() const = 0;
    [[nodiscard]] virtual int port() const = 0;
    [[nodiscard]] virtual int number() const = 0; // unlike that of any other domain of the engine
    // Can lanes be made over it now?
    [[nodiscard]] virtual bool alive() const = 0;
    // Has the device failed for good, and do its lanes know? Then only a new Domain can use it again.
    [[nodiscard]] virtual bool lost() const = 0;
    [[nodiscard]] virtual std::map<std::string, std::variant<int64_t, double, std::string>> facts() const = 0;
    // What it was opened with, for the lanes that are made from now on. Throws NativeError.
    virtual void retune(const DomainOptions& options) = 0;
    // Registers [address, address + nbytes) of the region for what `rights` let a peer do; no rights: for our own use.
    // Throws NativeError whose text tells every way that was tried.
    [[nodiscard]] virtual std::shared_ptr<Registration> reg(Region& region, uint64_t address, uint64_t nbytes,
                                                            uint8_t rights) = 0;

    // Completions for all lanes of the device. Whether somebody waits for ends is the engine's to know.
    virtual Found poll() = 0;
    // Nobody will poll for a while: from now on what happens makes a watched descriptor readable. True when something
    // may have happened before that. The end of what was sent may be left out: it needs nobody's help.
    enum class Happening : uint8_t { arrivals, arrivals_and_ends };
    virtual bool arm(Happening what) = 0;
    // A watched descriptor may be readable: takes what it says. Nothing is armed after that.
    virtual void woken() = 0;
    // Would nobody notice if something happened? Then sleeping must be short.
    [[nodiscard]] virtual bool unarmed(Happening what) const = 0;
    // Has poll() left ends that no device tells again, because their lane was being posted to?
    [[nodiscard]] virtual bool keeps_ends() const = 0;
    // The poller's: hands them out, and waits for the lanes to do so.
    virtual void settle() = 0;
    // Before it goes; its lanes are gone.
    virtual void close() = 0;
};

struct Probe {
    bool usable = false;
    std::string reason;
    std::string fix;
};

class Provider {
public:
    virtual ~Provider() = default;
    [[nodiscard]] virtual const char* name() const = 0;
    [[nodiscard]] virtual Probe probe() const = 0;
    // Throws NativeError; providers without devices always do.
    [[nodiscard]] virtual std::shared_ptr<Domain> open(Engine& engine, const std::string& device, int port, int number,
                                                       const DomainOptions& options) const;
    // `rails`: domains of this provider that the lane may use, the first one for all that is small; none where the
    // provider has no devices.
    [[nodiscard]] virtual std::shared_ptr<Endpoint> endpoint(Engine& engine, std::shared_ptr<Peer> peer,
                                                             std::span<const std::shared_ptr<Domain>> rails) const = 0;
};

// All that this build has, cheapest first.
[[nodiscard]] const std::vector<const Provider*>& providers();

} // namespace zerohop
