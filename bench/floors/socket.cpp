// Floor: raw stream sockets, connected by the caller (TCP; a Unix pair shows the cost of a wake-up). Both ends sleep in
// blocking calls, or both spin on calls that do not wait.
#include "socket.hpp"

#include <algorithm>
#include <barrier>
#include <cstring>
#include <exception>
#include <mutex>
#include <sched.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <thread>
#include <vector>

namespace floors {

namespace {

// How long a call waits until this side looks for signals: those that come just before it do not interrupt it.
constexpr suseconds_t kLookUs = 100'000;

} // namespace

void limit_calls(int fd) {
    const timeval limit{.tv_sec = 0, .tv_usec = kLookUs};
    if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) != 0 ||
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) != 0)
        raise_errno("setsockopt");
}

void go_on_waiting(int64_t& deadline_ns, double timeout, const char* call) {
    if (errno != EINTR && errno != EAGAIN)
        raise_errno(call);
    check_signals();
    if (deadline_ns == 0)
        deadline_ns = deadline_after(timeout);
    else if (now_ns() > deadline_ns)
        raise_timed_out("the other process is silent");
}

namespace {

void send_all(int fd, const uint8_t* data, size_t nbytes, double timeout) {
    int64_t deadline_ns = 0;
    while (nbytes > 0) {
        const ssize_t sent = send(fd, data, nbytes, MSG_NOSIGNAL);
        if (sent < 0) {
            go_on_waiting(deadline_ns, timeout, "send");
            continue;
        }
        data += sent;
        nbytes -= static_cast<size_t>(sent);
    }
}

void receive_all(int fd, uint8_t* data, size_t nbytes, double timeout) {
    int64_t deadline_ns = 0;
    while (nbytes > 0) {
        const ssize_t got = recv(fd, data, nbytes, 0);
        if (got == 0)
            throw std::runtime_error("the other process closed the socket");
        if (got < 0) {
            go_on_waiting(deadline_ns, timeout, "recv");
            continue;
        }
        data += got;
        nbytes -= static_cast<size_t>(got);
    }
}

// How a message is sent, and received.
struct Sleeping {
    static void send(int fd, const uint8_t* data, size_t nbytes, double timeout) {
        send_all(fd, data, nbytes, timeout);
    }
    static void receive(int fd, uint8_t* data, size_t nbytes, double timeout) {
        receive_all(fd, data, nbytes, timeout);
    }
};
struct Spinning {
    static constexpr uint32_t kTurnsUntilYield = 64;

    static void send(int fd, const uint8_t* data, size_t nbytes, double timeout) {
        until_done(nbytes, timeout, "send",
                   [&](size_t done) { return ::send(fd, data + done, nbytes - done, MSG_NOSIGNAL | MSG_DONTWAIT); });
    }
    static void receive(int fd, uint8_t* data, size_t nbytes, double timeout) {
        until_done(nbytes, timeout, "recv",
                   [&](size_t done) { return recv(fd, data + done, nbytes - done, MSG_DONTWAIT); });
    }

private:
    template <typename Call>
    static void until_done(size_t nbytes, double timeout, const char* name, Call call) {
        size_t done = 0;
        uint32_t turns = 0;
        const auto all = [&] {
            const ssize_t moved = call(done);
            if (moved == 0)
                throw std::runtime_error("the other process closed the socket");
            if (moved < 0 && errno != EAGAIN && errno != EINTR)
                raise_errno(name);
            // Both ends may have got one processor, where each would spin until its time is up.
            if (moved < 0 && (++turns % kTurnsUntilYield) == 0)
                sched_yield();
            done += moved > 0 ? static_cast<size_t>(moved) : 0;
            return done == nbytes;
        };
        // A message that is there reads no clock.
        if (!all())
            spin_until(all, deadline_after(timeout), "the other process is silent");
    }
};

// `payload` holds several messages of `nbytes`; each round sends the next one and compares its echo.
template <typename Way>
Samples socket_ping(int fd, const ConstBytes& payload, size_t nbytes, size_t rounds, double timeout) {
    if (nbytes == 0 || payload.size() < nbytes)
        throw nb::value_error("a payload of one message or more is needed");
    Samples samples(rounds);
    std::vector<uint8_t> echo(nbytes);
    const size_t messages = payload.size() / nbytes;
    const nb::gil_scoped_release released;
    limit_calls(fd);
    for (size_t i = 0; i < rounds; ++i) {
        const uint8_t* message = payload.data() + (i % messages) * nbytes;
        const int64_t start = now_ns();
        Way::send(fd, message, nbytes, timeout);
        Way::receive(fd, echo.data(), nbytes, timeout);
        samples[i] = now_ns() - start;
        if (std::memcmp(echo.data(), message, nbytes) != 0)
            throw std::runtime_error("wrong payload in a socket round trip");
    }
    return samples;
}

template <typename Way>
void socket_pong(int fd, size_t nbytes, size_t rounds, double timeout) {
    std::vector<uint8_t> message(nbytes);
    const nb::gil_scoped_release released;
    limit_calls(fd);
    for (size_t i = 0; i < rounds; ++i) {
        Way::receive(fd, message.data(), nbytes, timeout);
        Way::send(fd, message.data(), nbytes, timeout);
    }
}

Samples socket_send(int fd, const ConstBytes& source, size_t rounds, double timeout) {
    Samples samples(rounds);
    const nb::gil_scoped_release released;
    limit_calls(fd);
    for (int64_t& sample : samples) {
        uint8_t answer = 0;
        const int64_t start = now_ns();
        send_all(fd, source.data(), source.size(), timeout);
        receive_all(fd, &answer, 1, timeout);
        sample = now_ns() - start;
    }
    return samples;
}

void socket_receive(int fd, const Bytes& target, size_t rounds, double timeout) {
    const nb::gil_scoped_release released;
    limit_calls(fd);
    for (size_t i = 0; i < rounds; ++i) {
        const uint8_t answer = 1;
        receive_all(fd, target.data(), target.size(), timeout);
        send_all(fd, &answer, 1, timeout);
    }
}

// Runs work(i) for each of `count` sockets, each on a thread of its own, and throws what the first to fail has thrown.
template <typename Work>
void on_threads(size_t count, Work work) {
    std::mutex mutex;
    std::exception_ptr failure;
    std::vector<std::thread> threads;
    threads.reserve(count);
    for (size_t i = 0; i < count; ++i) {
        threads.emplace_back([&, i] {
            try {
                work(i);
            } catch (...) { // thrown by the caller's thread, below
                const std::lock_guard lock(mutex);
                failure = failure ? failure : std::current_exception();
            }
        });
    }
    for (std::thread& thread : threads)
        thread.join();
    if (failure)
        std::rethrow_exception(failure);
}

size_t part_of(size_t nbytes, size_t count) {
    if (count == 0 || nbytes % count != 0)
        throw nb::value_error("one socket or more is needed, and equal parts of the bytes for each");
    return nbytes / count;
}

Samples sockets_send(const std::vector<int>& fds, const ConstBytes& source, size_t rounds, double timeout) {
    const size_t part = part_of(source.size(), fds.size());
    Samples samples(rounds);
    std::vector<Samples> ends(fds.size(), Samples(rounds));
    std::vector<Samples> starts = ends;
    std::barrier together(static_cast<ptrdiff_t>(fds.size()));
    const nb::gil_scoped_release released;
    on_threads(fds.size(), [&](size_t i) {
        struct Leaves { // so that the others do not wait for one that has failed
            std::barrier<>& barrier;
            ~Leaves() { barrier.arrive_and_drop(); }
        } const leaves{together};
        limit_calls(fds[i]);
        for (size_t round = 0; round < rounds; ++round) {
            uint8_t answer = 0;
            together.arrive_and_wait();
            starts[i][round] = now_ns();
            send_all(fds[i], source.data() + i * part, part, timeout);
            receive_all(fds[i], &answer, 1, timeout);
            ends[i][round] = now_ns();
        }
    });
    for (size_t round = 0; round < rounds; ++round) {
        int64_t start = starts[0][round];
        int64_t end = ends[0][round];
        for (size_t i = 1; i < fds.size(); ++i) {
            start = std::min(start, starts[i][round]);
            end = std::max(end, ends[i][round]);
        }
        samples[round] = end - start;
    }
    return samples;
}

void sockets_receive(const std::vector<int>& fds, const Bytes& target, size_t rounds, double timeout) {
    const size_t part = part_of(target.size(), fds.size());
    const nb::gil_scoped_release released;
    on_threads(fds.size(), [&](size_t i) {
        limit_calls(fds[i]);
        for (size_t round = 0; round < rounds; ++round) {
            const uint8_t answer = 1;
            receive_all(fds[i], target.data() + i * part, part, timeout);
            send_all(fds[i], &answer, 1, timeout);
        }
    });
}

} // namespace

void bind_socket(nb::module_& m) {
    m.def("socket_ping", &socket_ping<Sleeping>, nb::arg("fd"), nb::arg("payload"), nb::arg("nbytes"),
          nb::arg("rounds"), nb::arg("timeout"),
          "Sends messages of `nbytes` taken in turn from `payload`, compares each echo; nanoseconds per round trip.");
    m.def("socket_pong", &socket_pong<Sleeping>, nb::arg("fd"), nb::arg("nbytes"), nb::arg("rounds"),
          nb::arg("timeout"), "Echoes `rounds` messages of `nbytes`.");
    m.def("socket_ping_spinning", &socket_ping<Spinning>, nb::arg("fd"), nb::arg("payload"), nb::arg("nbytes"),
          nb::arg("rounds"), nb::arg("timeout"), "As socket_ping, but never sleeps.");
    m.def("socket_pong_spinning", &socket_pong<Spinning>, nb::arg("fd"), nb::arg("nbytes"), nb::arg("rounds"),
          nb::arg("timeout"), "As socket_pong, but never sleeps.");
    m.def("socket_send", &socket_send, nb::arg("fd"), nb::arg("source"), nb::arg("rounds"), nb::arg("timeout"),
          "Streams `source`, waits for one byte of answer; nanoseconds of each round.");
    m.def("socket_receive", &socket_receive, nb::arg("fd"), nb::arg("target"), nb::arg("rounds"), nb::arg("timeout"),
          "Receives into `target` until it is full and answers with one byte, `rounds` times.");
    m.def("sockets_send", &sockets_send, nb::arg("fds"), nb::arg("source"), nb::arg("rounds"), nb::arg("timeout"),
          "As socket_send, an equal part over each socket at once, each on a thread of its own.");
    m.def("sockets_receive", &sockets_receive, nb::arg("fds"), nb::arg("target"), nb::arg("rounds"), nb::arg("timeout"),
          "As socket_receive, for sockets_send.");
}

} // namespace floors
