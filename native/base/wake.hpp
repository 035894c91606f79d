// Writes the few bytes by which one thread or process wakes another.
#pragma once

#include "base/descriptor.hpp"

#include <cerrno>
#include <cstddef>
#include <sys/uio.h>
#include <unistd.h>

namespace zerohop {

// Writes to an event descriptor or a pipe. One that is full, and so takes nothing, wakes whoever waits for it already.
// Where a sandbox refuses write(), writev() does the same.
inline void write_to_wake(int fd, const void* bytes, size_t nbytes) {
    if (write(fd, bytes, nbytes) < 0 && failed_to_make(errno).reason == Reason::not_allowed) {
        const iovec piece{const_cast<void*>(bytes), nbytes};
        [[maybe_unused]] const ssize_t written = writev(fd, &piece, 1);
    }
}

} // namespace zerohop
