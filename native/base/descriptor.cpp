#include "base/descriptor.hpp"

#include "base/wake.hpp"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

namespace zerohop {

Outcome failed_to_make(int error) {
    if (error == EPERM || error == EACCES || error == ENOSYS) {
        return {Status::unsupported, Reason::not_allowed};
    }
    if (error == EMFILE || error == ENFILE) {
        return {Status::no_memory, Reason::out_of_descriptors};
    }
    return {error == ENOENT ? Status::unsupported : Status::no_memory, Reason::none};
}

void raise_watching(int error) {
    const Outcome outcome =
        error == ENOSPC ? Outcome{Status::no_memory, Reason::out_of_watches} : failed_to_make(error);
    throw NativeError(outcome, std::string("cannot watch a descriptor (epoll_ctl): ") + std::strerror(error));
}

void raise_if_refused(const std::string& what, int error) {
    if (failed_to_make(error).reason == Reason::not_allowed) {
        throw NativeError(failed_to_make(error), what + ": " + std::strerror(error));
    }
}

void Descriptor::reset(int fd) {
    if (fd_ >= 0 && !lost()) {
        ::close(fd_);
    }
    fd_ = fd;
    file_ = file_of(fd);
}

Descriptor Descriptor::made(int fd, const char* what) {
    if (fd < 0) {
        const int error = errno;
        throw NativeError(failed_to_make(error), std::string("cannot make ") + what + ": " + std::strerror(error));
    }
    return Descriptor(fd);
}

Descriptor Descriptor::event(const char* what) {
    return made(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), what);
}

void Descriptor::ring() const {
    if (lost()) {
        return;
    }
    const uint64_t one = 1;
    write_to_wake(fd_, &one, sizeof one);
}

bool Descriptor::drain() const {
    uint64_t count = 0;
    return !lost() && read(fd_, &count, sizeof count) > 0;
}

bool Descriptor::lost() const {
    struct stat info{};
    if (fstat(fd_, &info) != 0) {
        return errno == EBADF; // a sandbox may refuse the look
    }
    return !(File{info.st_dev, info.st_ino} == file_);
}

Descriptor::File Descriptor::file_of(int fd) {
    struct stat info{};
    return fd >= 0 && fstat(fd, &info) == 0 ? File{info.st_dev, info.st_ino} : File{};
}

Descriptor Descriptor::duplicate(int fd) {
    const int copy = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (copy < 0) {
        const Reason reason = errno == EMFILE || errno == ENFILE ? Reason::out_of_descriptors : Reason::malformed;
        throw NativeError(Status::no_memory, reason,
                          std::string("cannot duplicate a descriptor: ") + std::strerror(errno));
    }
    return Descriptor(copy);
}

} // namespace zerohop
