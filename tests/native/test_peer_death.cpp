// Tests a peer in another process that is killed, stopped, or leaves: every operation to it ends, and nothing else
// does.
//
// The other process is this executable again, which runs the skipped case at the end of this file.
#include "engine_fixture.hpp"

#include <array>
#include <csignal>
#include <cstdlib>
#include <spawn.h>
#include <sys/wait.h>

namespace test_peer_death {

using namespace zerohop;
using namespace zerohop::test;

namespace {

constexpr size_t kBytes = 8 << 20;
constexpr const char* kSocketVariable = "ZEROHOP_TEST_SOCKET";

struct Hello {
    uint64_t share = 0;
    uint64_t device_share = 0;
    char provider[8] = {};
    std::array<int, 4> fds{-1, -1, -1, -1}; // the receiver gets other numbers; only those that are not -1 are sent
};

void tell(int socket, const Hello& hello) {
    msghdr header{};
    iovec piece{const_cast<Hello*>(&hello), sizeof hello};
    header.msg_iov = &piece;
    header.msg_iovlen = 1;
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 4)] = {};
    size_t count = 0;
    int fds[4];
    for (const int fd : hello.fds) {
        if (fd >= 0) {
            fds[count++] = fd;
        }
    }
    header.msg_control = control;
    header.msg_controllen = CMSG_SPACE(sizeof(int) * count);
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int) * count);
    std::memcpy(CMSG_DATA(rights), fds, sizeof(int) * count);
    REQUIRE(::sendmsg(socket, &header, 0) == sizeof hello);
}

Hello hear(int socket) {
    Hello hello;
    msghdr header{};
    iovec piece{&hello, sizeof hello};
    header.msg_iov = &piece;
    header.msg_iovlen = 1;
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 4)] = {};
    header.msg_control = control;
    header.msg_controllen = sizeof control;
    REQUIRE(::recvmsg(socket, &header, MSG_CMSG_CLOEXEC) == sizeof hello);
    const auto* next = reinterpret_cast<const int*>(CMSG_DATA(CMSG_FIRSTHDR(&header)));
    for (int& fd : hello.fds) {
        fd = fd >= 0 ? *next++ : -1;
    }
    return hello;
}

void close_all(const Hello& hello) {
    for (const int fd : hello.fds) {
        if (fd >= 0) {
            ::close(fd);
        }
    }
}

// The other process, connected to an engine of this one.
struct Other {
    Other(Side& side, const std::string& provider) : side(side), provider(provider) {
        int sockets[2];
        REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) == 0);
        const int inherited = ::dup(sockets[1]); // not close-on-exec
        ::setenv(kSocketVariable, std::to_string(inherited).c_str(), 1);
        char path[] = "/proc/self/exe";
        char only[] = "--test-case=child: a peer";
        char skipped[] = "--no-skip=true";
        char quiet[] = "--minimal=true";
        char* arguments[] = {path, only, skipped, quiet, nullptr};
        REQUIRE(::posix_spawn(&pid, path, nullptr, nullptr, arguments, environ) == 0);
        ::close(inherited);
        ::close(sockets[1]);
        socket = Descriptor(sockets[0]);
        connect();
    }
    ~Other() {
        if (pid > 0) {
            ::kill(pid, SIGKILL);
            reap();
        }
    }
    Other(const Other&) = delete;
    Other& operator=(const Other&) = delete;

    void connect() {
        const bool tcp = provider == "tcp";
        const Sockets sockets = tcp ? connected_sockets() : Sockets{};
        Hello mine;
        std::strncpy(mine.provider, provider.c_str(), sizeof mine.provider - 1);
        const Doorbell doorbell = side.engine->presence().make_doorbell();
        mine.fds = {side.engine->presence().page_fd(), doorbell.theirs.get(), sockets.b, -1};
        hello = hear(socket.get());
        side.peer = side.engine->add_peer(hello.fds[0], hello.fds[1]);
        side.lane = side.engine->add_endpoint(provider, side.peer->id());
        if (!tcp) {
            mine.fds[2] = side.lane->address().fds.at(0);
        }
        tell(socket.get(), mine);
        const Hello ready = hear(socket.get());
        side.lane->connect({"", {tcp ? sockets.a : ready.fds[0]}});
        mapping = make_pinnable<Mapping>(hello.fds[2], 0, kBytes, true);
        close_all(hello);
        close_all(ready);
        if (tcp) {
            ::close(sockets.a);
            ::close(sockets.b);
        }
    }
    uint64_t route(const std::shared_ptr<Region>& local, bool mapped, bool device = false) const {
        Route route;
        route.endpoint = side.lane;
        route.local = local;
        route.share = ShareId::unpack(device ? hello.device_share : hello.share);
        route.capability = kCapability;
        route.remote_nbytes = kBytes;
        route.rights = kReadWrite;
        if (mapped) {
            route.access = std::make_shared<shm::MappedAccess>(mapping);
        }
        return side.engine->add_route(std::move(route));
    }
    void signal(int number) const { REQUIRE(::kill(pid, number) == 0); }
    // Returns once the process has stopped; until then it may still answer.
    void stop() {
        signal(SIGSTOP);
        int status = 0;
        REQUIRE(::waitpid(pid, &status, WUNTRACED) == pid);
        REQUIRE(WIFSTOPPED(status));
    }
    int reap() {
        int status = 0;
        REQUIRE(::waitpid(std::exchange(pid, -1), &status, 0) > 0);
        return status;
    }

    Side& side;
    const std::string provider;
    pid_t pid = -1;
    Descriptor socket;
    Hello hello;
    std::shared_ptr<Mapping> mapping;
};

bool lost(Outcome outcome) {
    return outcome.status == Status::peer_lost &&
           (outcome.reason == Reason::process_died || outcome.reason == Reason::stream_closed);
}

} // namespace

TEST_CASE("death: killed while operations fly, each of them ends, and the next peer works") {
    for (const std::string provider : {"shm", "tcp"}) {
        for (const bool stopped_first : {true, false}) {
            CAPTURE(provider);
            CAPTURE(stopped_first);
            Side side;
            Pair bystander(provider); // its operations must not be disturbed
            const Reach elsewhere = bystander.reach(1 << 20);
            const auto local = side.alloc(kBytes);
            const auto device = side.alloc(kBytes, kSimDevice);
            for (int round = 0; round < 2; ++round) {
                Other other(side, provider);
                const uint64_t routes[] = {other.route(local, false), other.route(device, false),
                                           other.route(local, false, true)};
                CHECK(run(side, routes[0], request(Kind::write, 0, 0, kBytes)) == kOk);
                if (stopped_first) {
                    other.stop();
                }
                std::vector<Posted> ops;
                for (int i = 0; i < 30; ++i) {
                    const Kind kind = i % 2 == 0 ? Kind::write : Kind::read;
                    ops.push_back(post(side, routes[i % 3], request(kind, 0, 0, i % 5 == 0 ? 8 : kBytes)));
                }
                ops.push_back(post(side, routes[0], request(Kind::fetch_add, 0, 0, 8)));
                ops.push_back(post(side, message(Kind::recv, local, 64)));
                ops.push_back(post(side, message(Kind::send, local, 100'000)));
                ops.push_back(post(side, request(Kind::flush, 0, 0, 0)));
                other.signal(SIGKILL);
                CHECK(WTERMSIG(other.reap()) == SIGKILL);
                for (Posted& op : ops) {
                    const Outcome outcome = side.wait(std::move(op));
                    CHECK((lost(outcome) || (!stopped_first && outcome == kOk)));
                }
                CHECK(lost(side.peer->state()));
                side.sync(); // the thread that found it dead has told of it by now
                CHECK(side.engine->events()->drain() == std::vector<uint64_t>{static_cast<uint64_t>(side.peer->id())});
                CHECK(lost(run(side, routes[0], request(Kind::write, 0, 0, 8))));
                CHECK(eventually([&] { return local->pins() == 0 && device->pins() == 0; }));
                CHECK(side.engine->operations().pending() == 0);
                CHECK(run(bystander.a, elsewhere.route, request(Kind::write, 0, 0, 1 << 20)) == kOk);
                side.engine->drop_peer(side.peer->id(), {Status::closed, Reason::user});
            }
            side.close();
        }
    }
}

TEST_CASE("death: no mapped copy succeeds towards a dead peer") {
    Side side;
    const auto local = side.alloc(kBytes);
    Other other(side, "shm");
    const uint64_t route = other.route(local, true);
    CHECK(run(side, route, request(Kind::write, 0, 0, kBytes, 1)) == kOk);
    CHECK(run(side, route, request(Kind::read, 0, 0, kBytes)) == kOk);
    CHECK(run(side, route, request(Kind::fetch_add, 0, 0, 8)) == kOk);
    other.signal(SIGKILL);
    other.reap();
    for (const size_t nbytes : {size_t{8}, kBytes}) {
        CHECK(lost(run(side, route, request(Kind::write, 0, 0, nbytes))));
        CHECK(lost(run(side, route, request(Kind::read, 0, 0, nbytes))));
    }
    CHECK(lost(run(side, route, request(Kind::fetch_add, 0, 0, 8))));
    CHECK(other.mapping->unmap());
    side.close();
}

TEST_CASE("death: a stopped process is a deadline, not a death, and goes on where it was") {
    for (const std::string provider : {"shm", "tcp"}) {
        CAPTURE(provider);
        Side side;
        const auto local = side.alloc(kBytes);
        Other other(side, provider);
        const uint64_t route = other.route(local, false);
        const Bytes mine = pattern(kBytes, 1);
        side.put(*local, mine);
        CHECK(run(side, route, request(Kind::write, 0, 0, kBytes)) == kOk);
        other.stop();
        for (const Kind kind : {Kind::write, Kind::read}) {
            const Outcome outcome = run(side, route, request(kind, 0, 0, kBytes, -1, now_ns() + 5 * kMillisecond));
            CHECK(outcome == kDeadline);
        }
        CHECK(side.peer->state() == kOk);
        CHECK(local->pins() != 0);
        other.signal(SIGCONT);
        CHECK(eventually([&] { return local->pins() == 0; }));
        CHECK(same_bytes(side.get(*local), mine));
        CHECK(run(side, route, request(Kind::read, 0, 0, kBytes)) == kOk);
        side.close();
    }
}

TEST_CASE("death: a peer that leaves in order") {
    for (const std::string provider : {"shm", "tcp"}) {
        CAPTURE(provider);
        Side side;
        const auto local = side.alloc(64);
        Other other(side, provider);
        Posted recv = post(side, message(Kind::recv, local, 64));
        other.socket.reset(); // the other process waits for this
        CHECK(side.wait(recv.op) == Outcome{Status::peer_lost, Reason::context_closed});
        CHECK(other.reap() == 0);
        side.close();
    }
}

TEST_CASE("child: a peer" * doctest::skip()) {
    const char* number = std::getenv(kSocketVariable);
    REQUIRE(number != nullptr);
    const int socket = std::atoi(number);
    Side side;
    const auto memory = side.alloc(kBytes);
    const auto device = side.alloc(kBytes, kSimDevice);
    Hello mine;
    mine.share = side.engine->shares().add(memory, 0, kBytes, kReadWrite, kCapability).packed();
    mine.device_share = side.engine->shares().add(device, 0, kBytes, kReadWrite, kCapability).packed();
    const Doorbell doorbell = side.engine->presence().make_doorbell();
    mine.fds = {side.engine->presence().page_fd(), doorbell.theirs.get(), memory->fd(), -1};
    tell(socket, mine);
    const Hello theirs = hear(socket);
    side.peer = side.engine->add_peer(theirs.fds[0], theirs.fds[1]);
    side.lane = side.engine->add_endpoint(theirs.provider, side.peer->id());
    Hello ready;
    ready.fds[0] = std::string(theirs.provider) == "shm" ? side.lane->address().fds.at(0) : socket;
    tell(socket, ready);
    side.lane->connect({"", {theirs.fds[2]}});
    close_all(theirs);
    char last = 0;
    CHECK(::recv(socket, &last, 1, 0) == 0); // returns when the parent closes its end
    side.close();
}

} // namespace test_peer_death
