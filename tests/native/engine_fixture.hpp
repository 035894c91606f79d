// Connects two engines in one process by a lane, and defines the few verbs in which the data plane's tests are written.
//
// No test asserts how long something takes: soon() limits waits only so that a failure is not a hanging run.
#pragma once

#include "bytes.hpp"
#include "engine/engine.hpp"
#include "memory/region.hpp"
#include "patience.hpp"
#include "provider/shm/mapped_copy.hpp"
#include "sim_fixture.hpp"
#include "tls_settings.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <arpa/inet.h>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <netinet/in.h>
#include <ostream>
#include <string>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

namespace zerohop {

// Failed checks name the outcome in numbers (status.hpp).
inline std::ostream& operator<<(std::ostream& out, const Outcome& outcome) {
    return out << "{status " << static_cast<int>(outcome.status) << ", reason " << static_cast<int>(outcome.reason)
               << "}";
}

} // namespace zerohop

namespace zerohop::test {

inline constexpr Outcome kOk{};
inline constexpr Outcome kDeadline{Status::deadline, Reason::none};
inline constexpr Outcome kCancelled{Status::cancelled, Reason::user};
inline constexpr Outcome kRevoked{Status::access_denied, Reason::revoked};
inline constexpr Outcome kMalformed{Status::protocol, Reason::malformed};
inline constexpr int kSimDevice = 0;
inline constexpr Capability kCapability{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
inline constexpr uint8_t kReadWrite = kRightRead | kRightWrite;

inline uint64_t soon() {
    return now_ns() + patience_ns(30 * kSecond);
}

// True if `condition` held before soon().
inline bool eventually(const std::function<bool()>& condition) {
    for (const uint64_t limit = soon(); !condition();) {
        if (now_ns() > limit) {
            return false;
        }
        std::this_thread::yield();
    }
    return true;
}

struct Sockets {
    int a = -1;
    int b = -1;
};

// Returns sockets connected over loopback; the caller closes both.
inline Sockets connected_sockets() {
    const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    REQUIRE(::bind(listener, generic, length) == 0);
    REQUIRE(::listen(listener, 1) == 0);
    REQUIRE(::getsockname(listener, generic, &length) == 0);
    Sockets sockets;
    sockets.a = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    REQUIRE(::connect(sockets.a, generic, length) == 0);
    sockets.b = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    REQUIRE(sockets.b >= 0);
    ::close(listener);
    return sockets;
}

inline EngineOptions quiet() {
    EngineOptions options;
    options.heartbeat_ns = 0;
    return options;
}

// The part of one Context that the data plane sees.
struct Side {
    explicit Side(int sim_devices = 1, EngineOptions options = quiet())
        : sim(accel::make_sim_driver(sim_devices)),
          engine(std::make_shared<Engine>(options, std::vector<std::shared_ptr<accel::Driver>>{sim})) {}
    // Has no simulated devices.
    explicit Side(std::vector<std::shared_ptr<accel::Driver>> drivers)
        : engine(std::make_shared<Engine>(quiet(), std::move(drivers))) {}

    // Makes what this engine's poller has done visible to the calling thread, and the other way round. (The rings of
    // two engines in one process are mapped at two addresses, so that ThreadSanitizer cannot see that they order
    // anything.)
    void sync() const {
        engine->poller().exclusive([this] {
            if (lane) {
                lane->quiesce(); // its bulk threads, too
            }
        });
    }

    std::shared_ptr<Region> alloc(size_t nbytes, int device = kHostDevice) const {
        if (device == kHostDevice) {
            return Region::allocate_host(nbytes);
        }
        return Region::allocate_device(engine->accelerators().devices().at(static_cast<size_t>(device)), device,
                                       nbytes);
    }
    void put(const Region& region, const Bytes& bytes, uint64_t offset = 0) const {
        sync();
        REQUIRE(offset + bytes.size() <= region.nbytes());
        if (region.is_host()) {
            std::copy(bytes.begin(), bytes.end(), reinterpret_cast<uint8_t*>(region.host()) + offset);
        } else {
            accel::test::put(*test_stream(region), region.address() + offset, bytes);
        }
        sync();
    }
    Bytes get(const Region& region, uint64_t offset, size_t nbytes) const {
        sync();
        if (!region.is_host()) {
            return accel::test::fetch(*test_stream(region), region.address() + offset, nbytes);
        }
        const auto* from = reinterpret_cast<const uint8_t*>(region.host()) + offset;
        Bytes bytes(from, from + nbytes);
        sync();
        return bytes;
    }
    Bytes get(const Region& region) const { return get(region, 0, region.nbytes()); }

    [[nodiscard]] Outcome wait(const Posted& posted) const {
        if (posted.what != Posted::What::posted) {
            return posted.outcome;
        }
        return wait(posted.op);
    }
    [[nodiscard]] Outcome wait(const OpRef& op) const {
        REQUIRE(engine->wait([&] { return op->done(); }, soon(), engine->options().spin_ns));
        return {op->status(), op->reason()};
    }

    // Closes the engine while all is alive: a mapped copy must never wait for a stream that is being destroyed.
    void close() const { CHECK(engine->close(soon())); }

    std::shared_ptr<accel::SimDriver> sim;
    std::shared_ptr<Engine> engine;
    std::shared_ptr<Peer> peer;     // the other side
    int doorbell = -1;              // that the peer has
    std::shared_ptr<Endpoint> lane; // the lane to `peer`

private:
    std::unique_ptr<accel::Stream> test_stream(const Region& region) const {
        auto stream = engine->accelerators().devices().at(static_cast<size_t>(region.device()))->stream();
        REQUIRE(stream != nullptr);
        return stream;
    }
};

// A target's memory, the initiator's memory, and the route between them.
struct Reach {
    std::shared_ptr<Region> local;
    std::shared_ptr<Region> remote;
    ShareId share;
    std::shared_ptr<Mapping> mapping;
    uint64_t route = 0;
};

// "tls": tcp with TLS; "flows": tcp with three more sockets; "tls flows": both.
inline void connect(Side& a, Side& b, const std::string& way) {
    const bool tls = way.starts_with("tls");
    const bool flows = way.ends_with("flows");
    const std::string provider = tls || flows ? "tcp" : way;
    a.lane = a.engine->add_endpoint(provider, a.peer->id());
    b.lane = b.engine->add_endpoint(provider, b.peer->id());
    if (provider != "tcp") {
        const Address of_a = a.lane->address();
        const Address of_b = b.lane->address();
        a.lane->connect(of_b);
        b.lane->connect(of_a);
    } else {
        Address of_a;
        Address of_b;
        for (int count = flows ? 4 : 1; count != 0; --count) {
            const char name = static_cast<char>('0' + count);
            of_a.bytes += tls ? tls_settings(kDialTls, name) : "";
            of_b.bytes += tls ? tls_settings(kListenTls, name) : "";
            const Sockets sockets = connected_sockets();
            of_a.fds.push_back(sockets.a);
            of_b.fds.push_back(sockets.b);
        }
        a.lane->connect(of_a);
        b.lane->connect(of_b);
        for (const int fd : of_a.fds) {
            ::close(fd);
        }
        for (const int fd : of_b.fds) {
            ::close(fd);
        }
    }
}

inline void introduce(Side& a, Side& b) {
    const Doorbell of_a = a.engine->presence().make_doorbell();
    const Doorbell of_b = b.engine->presence().make_doorbell();
    a.peer = a.engine->add_peer(b.engine->presence().page_fd(), of_b.theirs.get());
    b.peer = b.engine->add_peer(a.engine->presence().page_fd(), of_a.theirs.get());
    a.doorbell = of_a.number;
    b.doorbell = of_b.number;
}

struct Pair {
    explicit Pair(const std::string& provider, int sim_devices = 1, EngineOptions options = quiet())
        : a(sim_devices, options), b(sim_devices, options) {
        introduce(a, b);
        connect(a, b, provider);
    }
    Pair(const std::string& provider, const std::vector<std::shared_ptr<accel::Driver>>& drivers)
        : a(drivers), b(drivers) {
        introduce(a, b);
        connect(a, b, provider);
    }
    ~Pair() {
        a.close();
        b.close();
    }
    Pair(const Pair&) = delete;
    Pair& operator=(const Pair&) = delete;

    // Allocates `nbytes` on each side; b's memory is shared with a, and mapped there if asked for.
    Reach reach(size_t nbytes, int local = kHostDevice, int remote = kHostDevice, bool mapped = false,
                uint8_t rights = kReadWrite) {
        Reach reach;
        reach.local = a.alloc(nbytes, local);
        reach.remote = b.alloc(nbytes, remote);
        share(reach, mapped, rights);
        return reach;
    }
    void share(Reach& reach, bool mapped, uint8_t rights) {
        const size_t nbytes = reach.remote->nbytes();
        reach.share = b.engine->shares().add(reach.remote, 0, nbytes, rights, kCapability);
        if (mapped) {
            reach.mapping = make_pinnable<Mapping>(reach.remote->fd(), 0, nbytes, (rights & kRightWrite) != 0);
        }
        reach.route = a.engine->add_route(route(reach, nbytes, rights));
    }
    // Returns the route that a has to b's memory; tests change parts of it to lie.
    Route route(const Reach& reach, uint64_t nbytes, uint8_t rights = kReadWrite) const {
        Route route;
        route.endpoint = a.lane;
        route.local = reach.local;
        route.share = reach.share;
        route.capability = kCapability;
        route.remote_nbytes = nbytes;
        route.rights = rights;
        if (reach.mapping) {
            route.access = std::make_shared<shm::MappedAccess>(reach.mapping);
        }
        return route;
    }

    Side a;
    Side b;
};

inline Request request(Kind kind, uint64_t local_offset, uint64_t remote_offset, uint64_t nbytes, int64_t notify = -1,
                       uint64_t deadline_ns = 0) {
    Request request;
    request.kind = kind;
    request.local_offset = local_offset;
    request.remote_offset = remote_offset;
    request.nbytes = nbytes;
    request.notify = notify;
    request.deadline_ns = deadline_ns;
    return request;
}

inline Request page_request(Kind kind, const std::vector<uint64_t>& local, const std::vector<uint64_t>& remote,
                            uint64_t page_bytes, int64_t notify = -1) {
    auto pages = std::make_shared<PageList>();
    pages->local.assign(local.begin(), local.end());
    pages->remote.assign(remote.begin(), remote.end());
    pages->page_bytes = page_bytes;
    Request request;
    request.kind = kind;
    request.nbytes = pages->local.size() * page_bytes;
    request.pages = std::move(pages);
    request.notify = notify;
    return request;
}

inline Request message(Kind kind, std::shared_ptr<Region> local, uint64_t nbytes, uint64_t deadline_ns = 0) {
    Request request;
    request.kind = kind;
    request.local = std::move(local);
    request.nbytes = nbytes;
    request.deadline_ns = deadline_ns;
    return request;
}

inline Posted post(const Side& side, uint64_t route, Request request, bool nowait = false) {
    return side.engine->post(route, request, nowait);
}
inline Posted post(const Side& side, Request request, bool nowait = false) {
    return side.engine->post(*side.lane, request, nowait);
}
[[nodiscard]] inline Outcome run(const Side& side, uint64_t route, Request request) {
    return side.wait(post(side, route, std::move(request)));
}

inline Notification notification(const Side& side) {
    std::optional<Notification> note = side.engine->pop_notification(0, soon(), side.engine->options().spin_ns, true);
    REQUIRE(note.has_value());
    return *note;
}

// While it lives, nothing polls this engine: to its peer it looks like a stopped process.
class Stopped {
public:
    explicit Stopped(const Side& side)
        : thread_([this, engine = side.engine] {
              engine->poller().exclusive([this] {
                  held_.store(true);
                  held_.notify_all();
                  release_.wait(false);
              });
          }) {
        held_.wait(false);
    }
    ~Stopped() {
        release_.store(true);
        release_.notify_all();
        thread_.join();
    }
    Stopped(const Stopped&) = delete;
    Stopped& operator=(const Stopped&) = delete;

private:
    std::atomic<bool> held_{false};
    std::atomic<bool> release_{false};
    std::thread thread_;
};

// The three ways in which a lane of this build moves bytes.
struct Path {
    std::string name;
    std::string provider;
    bool mapped;
    int local;
    int remote;
};

inline const std::vector<Path>& every_path() {
    static const std::vector<Path> paths{
        {"ring host-host", "shm", false, kHostDevice, kHostDevice},
        {"ring host-sim", "shm", false, kHostDevice, kSimDevice},
        {"ring sim-host", "shm", false, kSimDevice, kHostDevice},
        {"ring sim-sim", "shm", false, kSimDevice, kSimDevice},
        {"mapped host-host", "shm", true, kHostDevice, kHostDevice},
        {"mapped sim-host", "shm", true, kSimDevice, kHostDevice},
        {"tcp host-host", "tcp", false, kHostDevice, kHostDevice},
        {"tcp host-sim", "tcp", false, kHostDevice, kSimDevice},
        {"tcp sim-host", "tcp", false, kSimDevice, kHostDevice},
        {"tcp sim-sim", "tcp", false, kSimDevice, kSimDevice},
        {"tls host-host", "tls", false, kHostDevice, kHostDevice},
        {"tls sim-sim", "tls", false, kSimDevice, kSimDevice},
        {"flows host-host", "flows", false, kHostDevice, kHostDevice},
        {"flows sim-sim", "flows", false, kSimDevice, kSimDevice},
        {"tls flows host-host", "tls flows", false, kHostDevice, kHostDevice},
    };
    return paths;
}

} // namespace zerohop::test
