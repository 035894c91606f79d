// Binds descriptors that are made by one call each and closed with their last reference: whatever a signal's handler
// raises between two lines of Python, none is lost, and none is closed twice.
#include "bind/held_descriptor.hpp"

#include <cerrno>
#include <cstdint>
#include <fcntl.h>
#include <string>
#include <unistd.h>
#include <utility>

namespace zerohop::bind {

namespace {

// The binary interface of openat2, which is younger than some systems' headers.
constexpr long kOpenat2 = 437;
struct OpenHow {
    uint64_t flags = 0;
    uint64_t mode = 0;
    uint64_t resolve = 0;
};
constexpr uint64_t kNoMagicLinks = 0x02;
constexpr uint64_t kBeneath = 0x08;

// The kernel says "again" if a folder on the way was renamed meanwhile.
constexpr int kTries = 100;

// Returns a path as the system takes it.
std::string encoded(nb::handle path) {
    PyObject* bytes = nullptr;
    if (PyUnicode_FSConverter(path.ptr(), static_cast<void*>(&bytes)) == 0) {
        throw nb::python_error();
    }
    const nb::bytes held = nb::steal<nb::bytes>(bytes);
    return {held.c_str(), held.size()};
}

// Takes what a system call has made, or raises OSError with its error.
PyHeldDescriptor held(int fd, int error, nb::handle path) {
    if (fd < 0) {
        errno = error;
        PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, path.ptr());
        throw nb::python_error();
    }
    return {Descriptor(fd)};
}

PyHeldDescriptor open_path(nb::handle path, int flags) {
    const std::string name = encoded(path);
    int fd = -1;
    int error = 0;
    {
        const Released release;
        fd = ::open(name.c_str(), flags | O_CLOEXEC);
        error = errno;
    }
    return held(fd, error, path);
}

PyHeldDescriptor open_beneath(int folder, nb::handle path, int flags, unsigned mode) {
    const std::string name = encoded(path);
    OpenHow how{.flags = static_cast<uint64_t>(flags) | O_CLOEXEC,
                .mode = (flags & O_CREAT) != 0 ? mode : 0,
                .resolve = kBeneath | kNoMagicLinks};
    int fd = -1;
    int error = EAGAIN;
    {
        const Released release;
        for (int i = 0; i < kTries && fd < 0 && (error == EAGAIN || error == EINTR); ++i) {
            fd = static_cast<int>(::syscall(kOpenat2, folder, name.c_str(), &how, sizeof how));
            error = errno;
        }
    }
    return held(fd, error, path);
}

PyHeldDescriptor duplicate(int fd) {
    const int copy = ::fcntl(fd, F_DUPFD_CLOEXEC, 0);
    return held(copy, errno, nb::none());
}

} // namespace

void register_held_descriptor(nb::module_& m) {
    nb::class_<PyHeldDescriptor>(m, "HeldDescriptor", "A descriptor that is closed with its last reference.")
        .def("fileno", [](const PyHeldDescriptor& self) { return self.descriptor.get(); })
        .def(
            "close",
            [](PyHeldDescriptor& self) {
                const Released release; // the system may have to write first
                self.descriptor.reset();
            },
            "Closes it; idempotent.")
        .def(
            "__enter__", [](nb::object self) { return self; }, nb::sig("def __enter__(self) -> HeldDescriptor"))
        .def(
            "__exit__",
            [](PyHeldDescriptor& self, const nb::args& /*raised*/) {
                const Released release;
                self.descriptor.reset();
            },
            nb::sig("def __exit__(self, *raised: object) -> None"));
    m.def("open_path", &open_path, nb::arg("path"), nb::arg("flags"),
          nb::sig("def open_path(path: str, flags: int) -> HeldDescriptor"),
          "Opens a path that is there, as os.open does.");
    m.def("open_beneath", &open_beneath, nb::arg("folder"), nb::arg("path"), nb::arg("flags"), nb::arg("mode"),
          nb::sig("def open_beneath(folder: int, path: str, flags: int, mode: int) -> HeldDescriptor"),
          "Opens a path that stays beneath a folder, whichever links and renames there are (openat2).");
    m.def("duplicate", &duplicate, nb::arg("fd"), "Duplicates a descriptor that the caller keeps.");
}

} // namespace zerohop::bind
