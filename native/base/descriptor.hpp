// Owns a file descriptor: one owner, who closes it.
#pragma once

#include "base/status.hpp"

#include <string>
#include <sys/stat.h>
#include <utility>

namespace zerohop {

// Returns how a system call that makes a descriptor failed: none are left, or the system refuses the call itself, as a
// container's seccomp profile does.
Outcome failed_to_make(int error);
// Throws NativeError for a descriptor that epoll_ctl could not add: it would wake nobody.
[[noreturn]] void raise_watching(int error);
// Throws NativeError, "WHAT: …", if the system refuses the call itself. For calls that never fail so for the sake of
// their file, which may be a peer's.
void raise_if_refused(const std::string& what, int error);

class Descriptor {
public:
    Descriptor() = default;
    explicit Descriptor(int fd) : fd_(fd), file_(file_of(fd)) {}
    Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)), file_(other.file_) {}
    Descriptor& operator=(Descriptor&& other) noexcept {
        if (this != &other) {
            reset();
            fd_ = std::exchange(other.fd_, -1);
            file_ = other.file_;
        }
        return *this;
    }
    ~Descriptor() { reset(); }

    int get() const { return fd_; }
    explicit operator bool() const { return fd_ >= 0; }
    // Closes the descriptor, unless it is lost().
    void reset(int fd = -1);
    // Returns true if the program has closed the descriptor, as os.closerange() does; the number may be that of another
    // file by now. A file without a name of its own, as an epoll, is not told from another such file.
    [[nodiscard]] bool lost() const;
    // Gives the descriptor to the caller, who closes it.
    [[nodiscard]] int release() { return std::exchange(fd_, -1); }

    // Takes what a system call has made. Throws NativeError, "cannot make WHAT: …", if that was nothing;
    // WHAT names the call.
    [[nodiscard]] static Descriptor made(int fd, const char* what);
    // Returns an event descriptor, which ring() makes readable until drain(). Throws as made() does.
    [[nodiscard]] static Descriptor event(const char* what = "an event descriptor (eventfd)");
    void ring() const;
    // Returns true if it had been rung.
    [[nodiscard]] bool drain() const;
    // Returns a close-on-exec duplicate of a descriptor that the caller keeps. Throws NativeError if none are left.
    [[nodiscard]] static Descriptor duplicate(int fd);

private:
    struct File {
        dev_t device = 0;
        ino_t number = 0;
        bool operator==(const File&) const = default;
    };
    static File file_of(int fd);

    int fd_ = -1;
    File file_;
};

} // namespace zerohop
