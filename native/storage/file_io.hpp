// The contract of a way to read and write files: single reads and writes go in, their results come out.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace zerohop::accel {
class Device;
} // namespace zerohop::accel

namespace zerohop::storage {

class Carrier;

// Which transfers begin first, where there is no room for all.
enum class Priority : uint8_t { high, normal, low };
inline constexpr size_t kPriorities = 3;

// One read or write of the system.
struct Job {
    int fd = -1;
    bool write = false;
    bool slow = false;                    // it may copy for long: another thread than the one that adds it does so
    bool at_once = false;                 // a read that fails with EAGAIN where it would wait for the disk
    Priority priority = Priority::normal; // for the disk's queue, where the system has such
    std::byte* data = nullptr;
    uint32_t nbytes = 0;
    uint64_t offset = 0;
    int buffer = -1;                  // a buffer that was fixed and has all of the data; -1: none
    int file = -1;                    // the number of the file's descriptor in a FixedFile; -1: none
    uint64_t number = 0;              // comes back with the result; below depth(), and that of no other job under way
    const Carrier* carrier = nullptr; // null: the system, and the data is in memory of the host
    accel::Device* device = nullptr;  // that has the data, if a carrier carries the job out
};

// Carries out jobs in place of the system. Any thread; it blocks.
class Carrier {
public:
    virtual ~Carrier() = default;
    // Returns bytes, a negative errno, or a number of its own that is less than any of those.
    [[nodiscard]] virtual int32_t carry_out(const Job& job) const = 0;
};

struct Result {
    uint64_t number = 0;
    int32_t value = 0;    // bytes, a negative errno, or a carrier's own number
    bool refused = false; // the system refuses the call itself, as a sandbox does, and not this job
};

// Numbers under which the system knows two descriptors of a file, which saves it the work of finding them for each job.
// It forgets them with this object. Any thread.
class FixedFile {
public:
    FixedFile(int cached, int direct) : cached_(cached), direct_(direct) {}
    virtual ~FixedFile() = default;
    FixedFile(const FixedFile&) = delete;
    FixedFile& operator=(const FixedFile&) = delete;
    [[nodiscard]] int number(bool past_cache) const { return past_cache ? direct_ : cached_; }

private:
    const int cached_;
    const int direct_;
};

// One thread at a time calls add(), submit(), reap(), fix() and unfix(); any thread the rest.
class FileIo {
public:
    virtual ~FileIo() = default;
    [[nodiscard]] virtual const char* name() const = 0;
    // Returns the most jobs that may be under way at once. The caller counts them.
    [[nodiscard]] virtual size_t depth() const = 0;
    // io_uring by itself takes no job that has a carrier.
    virtual void add(const Job& job) = 0;
    // Begins what was added; false if the system takes some of it only later, and this is to be called again.
    [[nodiscard]] virtual bool submit() = 0;
    // Takes results that are there, and returns their number.
    [[nodiscard]] virtual size_t reap(std::span<Result> results) = 0;
    // Has the system keep the pages of memory at hand, which saves it the work of finding them for each job. Returns
    // the buffer's number; -1, and `why`, if it does not. Jobs that are under way keep a buffer that is unfixed.
    [[nodiscard]] virtual int fix(std::byte* data, size_t nbytes, std::string& why) = 0;
    virtual void unfix(int buffer) = 0;
    // Has the system know the descriptors by numbers; null, if it does not. Any thread.
    [[nodiscard]] virtual std::unique_ptr<const FixedFile> fix_file(int /*cached*/, int /*direct*/) { return nullptr; }
    // Returns a descriptor that is readable while results wait.
    [[nodiscard]] virtual int fd() const = 0;
    [[nodiscard]] virtual bool ready() const = 0;
    // Gives it up in a forked child.
    virtual void abandon() = 0;
    // Returns a number that no other has, also once this is gone.
    [[nodiscard]] uint64_t identity() const { return identity_; }

private:
    static inline std::atomic<uint64_t> made{0};
    const uint64_t identity_ = 1 + made.fetch_add(1, std::memory_order_relaxed);
};

// The depth with which Stores open io_uring. The memory that it takes grows with it, and may be more than a user may
// lock.
inline constexpr unsigned kUringDepth = 256;
// Returns null, and why, where the system or this build has no io_uring.
[[nodiscard]] std::unique_ptr<FileIo> open_uring(unsigned depth, std::string& why);
// Starts threads as jobs come, the first one now. Throws NativeError or std::system_error if the process may have no
// descriptor or no thread more.
[[nodiscard]] std::unique_ptr<FileIo> open_threads(unsigned threads);
// Opens io_uring, beside a thread for each processor for slow jobs; threads alone, and why, where there is no io_uring.
// There are at most `threads`. Throws as open_threads() does.
[[nodiscard]] std::unique_ptr<FileIo> open_io(unsigned depth, unsigned threads, std::string& why);

} // namespace zerohop::storage
