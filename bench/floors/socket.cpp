// Floor: raw blocking stream sockets, connected by the caller (TCP; a Unix pair shows the cost of a wake-up).
#include "common.hpp"

#include <cstring>
#include <sys/socket.h>
#include <sys/time.h>

namespace floors {

namespace {

void set_timeout(int fd, double seconds) {
    timeval limit{};
    limit.tv_sec = static_cast<time_t>(seconds);
    limit.tv_usec = static_cast<suseconds_t>((seconds - static_cast<double>(limit.tv_sec)) * 1e6);
    if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) != 0 ||
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) != 0)
        raise_errno("setsockopt");
}

void send_all(int fd, const uint8_t* data, size_t nbytes) {
    while (nbytes > 0) {
        const ssize_t sent = send(fd, data, nbytes, MSG_NOSIGNAL);
        if (sent < 0) {
            if (errno == EINTR)
                continue;
            raise_errno("send");
        }
        data += sent;
        nbytes -= static_cast<size_t>(sent);
    }
}

void receive_all(int fd, uint8_t* data, size_t nbytes) {
    while (nbytes > 0) {
        const ssize_t got = recv(fd, data, nbytes, 0);
        if (got == 0)
            throw std::runtime_error("the other process closed the socket");
        if (got < 0) {
            if (errno == EINTR)
                continue;
            raise_errno("recv");
        }
        data += got;
        nbytes -= static_cast<size_t>(got);
    }
}

// `payload` holds several messages of `nbytes`; each round sends the next one and compares its echo.
Samples socket_ping(int fd, const ConstBytes& payload, size_t nbytes, size_t rounds, double timeout) {
    if (nbytes == 0 || payload.size() < nbytes)
        throw nb::value_error("a payload of one message or more is needed");
    Samples samples(rounds);
    std::vector<uint8_t> echo(nbytes);
    const size_t messages = payload.size() / nbytes;
    const nb::gil_scoped_release released;
    set_timeout(fd, timeout);
    for (size_t i = 0; i < rounds; ++i) {
        const uint8_t* message = payload.data() + (i % messages) * nbytes;
        const int64_t start = now_ns();
        send_all(fd, message, nbytes);
        receive_all(fd, echo.data(), nbytes);
        samples[i] = now_ns() - start;
        if (std::memcmp(echo.data(), message, nbytes) != 0)
            throw std::runtime_error("wrong payload in a socket round trip");
    }
    return samples;
}

void socket_pong(int fd, size_t nbytes, size_t rounds, double timeout) {
    std::vector<uint8_t> message(nbytes);
    const nb::gil_scoped_release released;
    set_timeout(fd, timeout);
    for (size_t i = 0; i < rounds; ++i) {
        receive_all(fd, message.data(), nbytes);
        send_all(fd, message.data(), nbytes);
    }
}

Samples socket_send(int fd, const ConstBytes& source, size_t rounds, double timeout) {
    Samples samples(rounds);
    const nb::gil_scoped_release released;
    set_timeout(fd, timeout);
    for (int64_t& sample : samples) {
        uint8_t answer = 0;
        const int64_t start = now_ns();
        send_all(fd, source.data(), source.size());
        receive_all(fd, &answer, 1);
        sample = now_ns() - start;
    }
    return samples;
}

void socket_receive(int fd, const Bytes& target, size_t rounds, double timeout) {
    const nb::gil_scoped_release released;
    set_timeout(fd, timeout);
    for (size_t i = 0; i < rounds; ++i) {
        const uint8_t answer = 1;
        receive_all(fd, target.data(), target.size());
        send_all(fd, &answer, 1);
    }
}

} // namespace

void bind_socket(nb::module_& m) {
    m.def("socket_ping", &socket_ping, nb::arg("fd"), nb::arg("payload"), nb::arg("nbytes"), nb::arg("rounds"),
          nb::arg("timeout"),
          "Sends messages of `nbytes` taken in turn from `payload`, compares each echo; nanoseconds per round trip.");
    m.def("socket_pong", &socket_pong, nb::arg("fd"), nb::arg("nbytes"), nb::arg("rounds"), nb::arg("timeout"),
          "Echoes `rounds` messages of `nbytes`.");
    m.def("socket_send", &socket_send, nb::arg("fd"), nb::arg("source"), nb::arg("rounds"), nb::arg("timeout"),
          "Streams `source`, waits for one byte of answer; nanoseconds of each round.");
    m.def("socket_receive", &socket_receive, nb::arg("fd"), nb::arg("target"), nb::arg("rounds"), nb::arg("timeout"),
          "Receives into `target` until it is full and answers with one byte, `rounds` times.");
}

} // namespace floors
