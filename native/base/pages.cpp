#include "base/pages.hpp"

#include "base/status.hpp"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <limits>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace zerohop {

namespace {

// Returns null, with errno, where the kernel refuses.
std::shared_ptr<void> map(size_t nbytes, int protection, int flags, int fd, uint64_t offset) {
    void* const base = mmap(nullptr, nbytes, protection, flags, fd, static_cast<off_t>(offset));
    if (base == MAP_FAILED) {
        return nullptr;
    }
    return {base, [nbytes](void* pages) { munmap(pages, nbytes); }};
}

[[noreturn]] void raise_of_own(const std::string& what, int error) {
    raise_if_refused(what, error);
    raise_errno(what, error);
}

} // namespace

size_t page_bytes() {
    static const auto bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    return bytes;
}

size_t round_to_pages(size_t nbytes) {
    const size_t page = page_bytes();
    return (nbytes + page - 1) / page * page;
}

void raise_errno(const std::string& what, int error) {
    Reason reason = Reason::out_of_shared_memory;
    if (error == EMFILE || error == ENFILE) {
        reason = Reason::out_of_descriptors;
    } else if (error == EACCES || error == EPERM || error == EBADF || error == EINVAL) {
        reason = Reason::malformed;
    }
    throw NativeError(Status::no_memory, reason, what + ": " + std::strerror(error));
}

Descriptor make_memfd(const char* name, size_t nbytes, unsigned seals) {
    Descriptor fd(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!fd) {
        raise_of_own("cannot create shared memory (memfd_create)", errno);
    }
    const bool any_file = nbytes <= static_cast<size_t>(std::numeric_limits<off_t>::max());
    if (!any_file || ftruncate(fd.get(), static_cast<off_t>(nbytes)) != 0) {
        raise_of_own("cannot size shared memory of " + std::to_string(nbytes) + " bytes (ftruncate)",
                     any_file ? errno : EFBIG);
    }
    if (seals != 0 && fcntl(fd.get(), F_ADD_SEALS, seals) != 0) {
        raise_of_own("cannot seal shared memory (fcntl)", errno);
    }
    return fd;
}

uint64_t sealed_bytes(int fd) {
    struct stat info{};
    const int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0) {
        raise_if_refused("cannot look at the seals of shared memory (fcntl)", errno);
        return 0;
    }
    if (fstat(fd, &info) != 0) {
        raise_if_refused("cannot look at the size of shared memory (fstat)", errno);
        return 0;
    }
    return (seals & F_SEAL_SHRINK) != 0 ? static_cast<uint64_t>(info.st_size) : 0;
}

std::shared_ptr<void> map_shared(int fd, size_t nbytes, int protection, const std::string& what, uint64_t offset) {
    std::shared_ptr<void> pages = map(nbytes, protection, MAP_SHARED, fd, offset);
    if (!pages) {
        const int error = errno;
        // A peer's file may be one that cannot be mapped in this way (EPERM); fresh memory always can.
        if (!map_private(page_bytes(), PROT_NONE)) {
            raise_if_refused("cannot map " + what + " (mmap)", error);
        }
        raise_errno("cannot map " + what, error);
    }
    return pages;
}

std::shared_ptr<void> map_private(size_t nbytes, int protection) {
    return map(nbytes, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

} // namespace zerohop
