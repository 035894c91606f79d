// perf MODE DEVICE GID-INDEX BYTES COUNT: the data plane's own loops over a verbs lane, without Python, to be compared
// with perftest's programs in the same guest.
//
//   lat    half a round trip of writes between two processes, each polling its memory, as ib_write_lat counts it
//   bw     one process writes as fast as the lane takes them, as ib_write_bw does with its queue of 128
//   single one write after the other, post to done
//   steps  posts and reaps COUNT writes with a pause between, so that no poll is empty: for callgrind
//
// Prints one number: microseconds (median), MB/s, microseconds (median), or nothing.
#include "accel/sim/sim.hpp"
#include "base/clock.hpp"
#include "engine/engine.hpp"
#include "provider/verbs/remote_keys.hpp"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

using namespace zerohop;

namespace {

struct Arguments {
    std::string mode;
    std::string device;
    int gid_index;
    size_t nbytes;
    int count;
};

void exchange(int socket, const void* mine, void* theirs, size_t nbytes) {
    if (write(socket, mine, nbytes) != static_cast<ssize_t>(nbytes) ||
        recv(socket, theirs, nbytes, MSG_WAITALL) != static_cast<ssize_t>(nbytes)) {
        std::perror("exchange");
        std::exit(1);
    }
}

struct Hello {
    uint64_t address;
    uint32_t key;
    uint32_t length;
    char lane[512];
};

// One process's end.
struct End {
    End(const Arguments& arguments, int socket)
        : engine(std::make_unique<Engine>(EngineOptions{50 * kMicrosecond, 0},
                                          std::vector<std::shared_ptr<accel::Driver>>{accel::make_sim_driver(0)})),
          nbytes(arguments.nbytes),
          memory(static_cast<std::byte*>(mmap(nullptr, 2 * nbytes + 4096, PROT_READ | PROT_WRITE,
                                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0))) {
        region = Region::wrap(reinterpret_cast<uint64_t>(memory), 2 * nbytes, kHostDevice, -1, 0, false);
        domain = engine->open_domain("verbs", arguments.device, 1, {{"gid_index", arguments.gid_index}});
        const auto peer = engine->add_peer(-1, -1);
        lane = engine->add_endpoint("verbs", peer->id(), {&domain, 1});
        const ShareId share = engine->shares().add(region, 0, 2 * nbytes, kRightRead | kRightWrite, {});
        Hello mine{};
        mine.key = engine->reach(*domain, share, false, mine.address)->remote_key();
        const Address address = lane->address();
        mine.length = static_cast<uint32_t>(address.bytes.size());
        std::memcpy(mine.lane, address.bytes.data(), address.bytes.size());
        Hello theirs{};
        exchange(socket, &mine, &theirs, sizeof mine);
        lane->connect({std::string(theirs.lane, theirs.length), {}});
        char ready = 1;
        exchange(socket, &ready, &ready, 1);
        Route made;
        made.endpoint = lane;
        made.local = region;
        made.remote_nbytes = 2 * nbytes;
        made.rights = kRightRead | kRightWrite;
        const auto keys = make_pinnable<verbs::RemoteKeys>(theirs.address, 2 * nbytes, made.rights,
                                                           std::vector<uint32_t>{theirs.key}, true);
        made.access = std::make_shared<verbs::KeyedAccess>(
            keys, std::vector<uint32_t>{engine->register_local(*domain, region)->local_key()});
        route = engine->add_route(std::move(made));
    }

    OpRef post() const {
        OpRef op = post_nowait();
        if (!op) {
            std::fprintf(stderr, "not posted: the lane is full\n");
            std::exit(1);
        }
        return op;
    }
    // None where the lane is full.
    OpRef post_nowait() const {
        Request request;
        request.kind = Kind::write;
        request.local_offset = nbytes;
        request.nbytes = nbytes;
        request.deadline_ns = request.started_ns + 30 * kSecond;
        Posted posted = engine->post(route, request, true);
        if (posted.what == Posted::What::retry) {
            return {};
        }
        if (posted.what != Posted::What::posted) {
            std::fprintf(stderr, "not posted: %d %d\n", static_cast<int>(posted.outcome.status),
                         static_cast<int>(posted.outcome.reason));
            std::exit(1);
        }
        return std::move(posted.op);
    }
    void wait(const OpRef& op) const {
        engine->wait([&] { return op->done(); }, 0, kSecond); // it has a deadline itself
        if (op->status() != Status::ok) {
            std::fprintf(stderr, "failed: %d %d\n", static_cast<int>(op->status()), static_cast<int>(op->reason()));
            std::exit(1);
        }
    }
    volatile uint8_t& last_in() const { return reinterpret_cast<volatile uint8_t*>(memory)[nbytes - 1]; }
    volatile uint8_t& last_out() const { return reinterpret_cast<volatile uint8_t*>(memory)[2 * nbytes - 1]; }

    std::unique_ptr<Engine> engine;
    size_t nbytes;
    std::byte* memory; // as perftest's: page-aligned, and twice the size; the peer writes the first half
    std::shared_ptr<Region> region;
    std::shared_ptr<Domain> domain;
    std::shared_ptr<Endpoint> lane;
    uint64_t route = 0;
};

double median(std::vector<double>& values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

// As ib_write_lat does it: wait for the other's number in memory, write the same one back, and wait for the end of
// that write. Whoever is first begins.
double ping_pong(const End& end, int count, bool first) {
    std::vector<double> times;
    const uint64_t limit = now_ns() + 60 * kSecond;
    uint64_t began = now_ns();
    const auto await = [&](uint8_t number) {
        for (uint32_t looks = 1; end.last_in() != number; ++looks) {
            if (looks % (1U << 20) == 0 && now_ns() > limit) {
                std::fprintf(stderr, "the other side is gone\n");
                std::exit(1);
            }
        }
    };
    for (int i = 0; i < count; ++i) {
        const auto number = static_cast<uint8_t>(i % 255 + 1);
        if (!first) {
            await(number);
        }
        end.last_out() = number;
        end.wait(end.post());
        if (first) {
            await(number);
            const uint64_t now = now_ns();
            times.push_back(static_cast<double>(now - began) / 2000.0);
            began = now;
        }
    }
    return first ? median(times) : 0;
}

double stream(const End& end, int count) {
    std::vector<OpRef> flying;
    flying.reserve(static_cast<size_t>(count));
    size_t ended = 0;
    const uint64_t began = now_ns();
    while (flying.size() < static_cast<size_t>(count)) {
        if (OpRef op = end.post_nowait()) {
            flying.push_back(std::move(op));
        } else { // polls for the end of the oldest, as ib_write_bw does, and does not sleep
            end.wait(flying[ended++]);
        }
    }
    for (; ended < flying.size(); ++ended) {
        end.wait(flying[ended]);
    }
    return static_cast<double>(end.nbytes) * count / static_cast<double>(now_ns() - began) * 1e3;
}

double one_by_one(const End& end, int count) {
    std::vector<double> times;
    for (int i = 0; i < count; ++i) {
        const uint64_t began = now_ns();
        end.wait(end.post());
        times.push_back(static_cast<double>(now_ns() - began) / 1000.0);
    }
    return median(times);
}

// Counted as ours, because what it calls may be inlined here.
[[gnu::noinline]] void look(Domain& domain, Endpoint& lane) {
    domain.poll();
    (void)lane.poll();
}

// By its name the benchmark's own instructions are left out of what is counted.
[[gnu::noinline]] void post_and_reap(const End& end, const Route& route, int count) {
    for (int i = 0; i < count; ++i) {
        Request request;
        request.kind = Kind::write;
        request.route = &route;
        request.local_offset = end.nbytes;
        request.nbytes = end.nbytes;
        request.deadline_ns = request.started_ns + 30 * kSecond;
        Posted posted = end.lane->post(request);
        usleep(20'000);
        look(*end.domain, *end.lane);
        if (!posted.op || !posted.op->done()) {
            std::fprintf(stderr, "a write took longer than the pause\n");
            std::exit(1);
        }
    }
}

void steps(const End& end, int count) {
    end.engine->poller().exclusive([&] { // nobody else polls
        post_and_reap(end, *end.engine->route(end.route), count);
    });
}

void run(const Arguments& arguments, int socket, bool first) {
    End end(arguments, socket);
    char done = 1;
    double result = 0;
    if (arguments.mode == "lat") {
        ping_pong(end, arguments.count / 10 + 1, first);
        exchange(socket, &done, &done, 1);
        result = ping_pong(end, arguments.count, first);
    } else if (first) {
        if (arguments.mode == "bw") {
            result = stream(end, arguments.count);
        } else if (arguments.mode == "single") {
            result = one_by_one(end, arguments.count);
        } else {
            steps(end, arguments.count);
        }
    }
    if (first && arguments.mode != "steps") {
        std::printf("%.3f\n", result);
        std::fflush(stdout);
    }
    // The other side only serves: its thread sleeps here, and what arrives needs none.
    exchange(socket, &done, &done, 1);
    end.engine->close(now_ns() + 5 * kSecond);
}

} // namespace

int main(int argc, char** argv) {
    if (argc != 6) {
        std::fprintf(stderr, "usage: perf lat|bw|single|steps DEVICE GID-INDEX BYTES COUNT\n");
        return 2;
    }
    const auto number = [](const char* text) { return std::strtoull(text, nullptr, 10); };
    const Arguments arguments{argv[1], argv[2], static_cast<int>(number(argv[3])), number(argv[4]),
                              static_cast<int>(number(argv[5]))};
    int sockets[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0) {
        return 1;
    }
    const pid_t child = fork();
    try {
        run(arguments, sockets[child == 0 ? 1 : 0], child != 0);
    } catch (const NativeError& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
    if (child != 0) {
        int status = 0;
        waitpid(child, &status, 0);
        return WEXITSTATUS(status);
    }
    return 0;
}
