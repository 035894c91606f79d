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

// As x86-64 has them, and arm64 with pages of 4 KiB; elsewhere the kernel gathers fewer pages, or none.
constexpr size_t kHugePage = 2ULL << 20;
constexpr int kCollapse = 25; // MADV_COLLAPSE of Linux 6.1, which older headers lack

size_t round_up(size_t number, size_t unit) {
    return (number + unit - 1) / unit * unit;
}

// Returns an address where a huge page may begin and nothing lies now, to be tried first; null if there is none.
void* aligned_hole(size_t nbytes) {
    void* const hole = mmap(nullptr, nbytes + kHugePage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (hole == MAP_FAILED) {
        return nullptr;
    }
    munmap(hole, nbytes + kHugePage);
    const auto lead = round_up(reinterpret_cast<uintptr_t>(hole), kHugePage) - reinterpret_cast<uintptr_t>(hole);
    return static_cast<std::byte*>(hole) + lead;
}

// Returns null, with errno, where the kernel refuses.
std::shared_ptr<void> map(size_t nbytes, int protection, int flags, int fd, uint64_t offset) {
    void* const wish = nbytes >= kHugePage && offset % kHugePage == 0 ? aligned_hole(nbytes) : nullptr;
    void* const base = mmap(wish, nbytes, protection, flags, fd, static_cast<off_t>(offset));
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
    return round_up(nbytes, page_bytes());
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

void gather_pages(std::byte* data, size_t nbytes) {
    const auto begin = reinterpret_cast<uintptr_t>(data);
    const size_t lead = round_up(begin, kHugePage) - begin;
    if (nbytes < lead + kHugePage) {
        return;
    }
    std::byte* const first = data + lead;
    const size_t whole = (nbytes - lead) / kHugePage * kHugePage;
#ifdef MADV_POPULATE_READ
    for (size_t at = 0; at < whole; at += kHugePage) {
        madvise(first + at, page_bytes(), MADV_POPULATE_READ); // the kernel gathers nothing where there is nothing
    }
#endif
    madvise(first, whole, kCollapse);
}

void populate_pages([[maybe_unused]] std::byte* data, [[maybe_unused]] size_t nbytes) {
#ifdef MADV_POPULATE_READ
    const size_t lead = reinterpret_cast<uintptr_t>(data) % page_bytes();
    madvise(data - lead, nbytes + lead, MADV_POPULATE_READ);
#endif
}

std::shared_ptr<void> map_private(size_t nbytes, int protection) {
    return map(nbytes, protection, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

} // namespace zerohop
