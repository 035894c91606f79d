// Sleeping until a descriptor is readable, for a time in nanoseconds.
#pragma once

#include "base/clock.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <ctime>
#include <sys/epoll.h>

namespace zerohop {

inline timespec duration(uint64_t ns) {
    return {static_cast<time_t>(ns / kSecond), static_cast<long>(ns % kSecond)};
}

// How long a thread sleeps in place of a wait for an epoll that the program has closed.
inline constexpr uint64_t kNoEpollSleep = 5 * kMillisecond;

// Returns true if a descriptor became readable in time. Rounds up to milliseconds only if the kernel knows no finer
// wait.
inline bool sleep_on(int epoll, uint64_t limit_ns) {
    epoll_event events[4];
    int ready = 0;
    if (limit_ns == UINT64_MAX) {
        ready = epoll_wait(epoll, events, 4, -1);
    } else {
        const timespec limit = duration(limit_ns);
        ready = epoll_pwait2(epoll, events, 4, &limit, nullptr);
        if (ready < 0 && errno == ENOSYS) {
            ready = epoll_wait(epoll, events, 4,
                               static_cast<int>(std::min<uint64_t>(limit_ns / kMillisecond + 1, 1'000'000)));
        }
    }
    if (ready < 0 && (errno == EBADF || errno == EINVAL)) {
        const timespec pause = duration(std::min(limit_ns, kNoEpollSleep));
        nanosleep(&pause, nullptr);
    }
    return ready > 0;
}

} // namespace zerohop
