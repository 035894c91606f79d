// The calls of epoll.
#pragma once

#include "base/descriptor.hpp"

#include <cerrno>
#include <cstdint>
#include <sys/epoll.h>

namespace zerohop {

inline Descriptor make_epoll() {
    return Descriptor::made(epoll_create1(EPOLL_CLOEXEC), "an epoll descriptor (epoll_create1)");
}

inline int control(const Descriptor& epoll, int operation, int fd, uint32_t events) {
    epoll_event event{};
    event.events = events;
    event.data.fd = fd;
    return epoll_ctl(epoll.get(), operation, fd, &event);
}

// Throws NativeError.
inline void add_to(const Descriptor& epoll, int fd, uint32_t events) {
    if (control(epoll, EPOLL_CTL_ADD, fd, events) != 0) {
        raise_watching(errno);
    }
}

inline constexpr uint32_t kSocketReadable = EPOLLIN | EPOLLRDHUP;

inline void watch_room(const Descriptor& epoll, int fd, bool writable) {
    control(epoll, EPOLL_CTL_MOD, fd, kSocketReadable | (writable ? EPOLLOUT : 0U));
}

} // namespace zerohop
