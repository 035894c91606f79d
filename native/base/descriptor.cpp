#include "base/descriptor.hpp"

#include "base/status.hpp"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>

namespace zerohop {

void Descriptor::reset(int fd) {
    if (fd_ >= 0) {
        ::close(fd_);
    }
    fd_ = fd;
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
