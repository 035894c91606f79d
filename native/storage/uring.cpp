// Reads and writes files by io_uring.
#include "storage/file_io.hpp"

#ifdef ZEROHOP_URING

#include "storage/uring_files.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <liburing.h>
#include <memory>
#include <utility>
#include <vector>

namespace zerohop::storage {

namespace {

// The system's numbers (linux/ioprio.h): a class, shifted, and a level within it, of which 7 is the last. 0: the
// process's own.
uint16_t priority_of(Priority priority) {
    constexpr unsigned kBestEffort = 2U << 13;
    switch (priority) {
    case Priority::high:
        return kBestEffort;
    case Priority::low:
        return kBestEffort | 7U;
    default:
        return 0;
    }
}

class Uring final : public FileIo {
public:
    explicit Uring(unsigned depth) : depth_(depth) {
        unsent_.reserve(depth);
        refused_.reserve(depth);
    }
    Uring(const Uring&) = delete;
    Uring& operator=(const Uring&) = delete;
    ~Uring() override {
        if (open_) {
            if (files_) {
                files_->close();
            }
            io_uring_queue_exit(&ring_);
        }
    }

    // Throws nothing; returns the call that the system refuses, and its negative errno, or 0.
    std::pair<const char*, int> open() {
        int error = io_uring_queue_init(depth_, &ring_, 0);
        if (error != 0) {
            return {"io_uring_setup", error};
        }
        open_ = true;
        io_uring_ring_dontfork(&ring_);
        // A sandbox may allow the set-up alone.
        io_uring_prep_nop(io_uring_get_sqe(&ring_));
        error = io_uring_submit_and_wait(&ring_, 1);
        if (error < 0) {
            return {"io_uring_enter", error};
        }
        io_uring_cqe* entry = nullptr;
        if (io_uring_peek_cqe(&ring_, &entry) == 0) {
            io_uring_cqe_seen(&ring_, entry);
            taken_.store(1, std::memory_order_relaxed);
        }
        files_ = std::make_shared<FileTable>(ring_);
        return {"", 0};
    }

    const char* name() const override { return "io_uring"; }
    size_t depth() const override { return depth_; }

    void add(const Job& job) override {
        if (refusal_ != 0) {
            refuse(job.number);
            return;
        }
        unsent_.push_back(job.number);
        io_uring_sqe* const entry = io_uring_get_sqe(&ring_); // there is one, as the queue is as long as the depth
        if (job.write && job.buffer >= 0) {
            io_uring_prep_write_fixed(entry, job.fd, job.data, job.nbytes, job.offset, job.buffer);
        } else if (job.buffer >= 0) {
            io_uring_prep_read_fixed(entry, job.fd, job.data, job.nbytes, job.offset, job.buffer);
        } else if (job.write) {
            io_uring_prep_write(entry, job.fd, job.data, job.nbytes, job.offset);
        } else {
            io_uring_prep_read(entry, job.fd, job.data, job.nbytes, job.offset);
        }
        if (job.file >= 0) {
            entry->fd = job.file;
            entry->flags |= IOSQE_FIXED_FILE;
        }
        entry->ioprio = priority_of(job.priority);
        if (job.slow) {
            entry->flags |= IOSQE_ASYNC;
        }
        entry->user_data = job.number;
        if (unsent_.size() == kTogether) {
            (void)submit(); // what the system does not take now, the caller's own submit() sends
        }
    }

    bool submit() override {
        while (!unsent_.empty()) {
            const int sent = io_uring_submit(&ring_);
            if (sent == -EINTR || sent == -EAGAIN || sent == -EBUSY || sent == -ENOMEM || sent == 0) {
                return false; // it lacks memory for now, or was interrupted
            }
            if (sent < 0) { // from now on, as what is in the ring must never reach the system any more
                refusal_ = sent;
                std::for_each(unsent_.begin(), unsent_.end(), [&](uint64_t number) { refuse(number); });
                unsent_.clear();
                return true;
            }
            unsent_.erase(unsent_.begin(), unsent_.begin() + sent);
        }
        return true;
    }

    size_t reap(std::span<Result> results) override {
        const size_t refused = std::min(results.size(), refused_.size());
        std::copy_n(refused_.begin(), refused, results.begin());
        refused_.erase(refused_.begin(), refused_.begin() + static_cast<ptrdiff_t>(refused));
        any_refused_.store(!refused_.empty(), std::memory_order_release);
        size_t found = refused;
        io_uring_cqe* entry = nullptr;
        while (found < results.size() && io_uring_peek_cqe(&ring_, &entry) == 0) {
            results[found++] = {entry->user_data, entry->res, false};
            io_uring_cqe_seen(&ring_, entry);
        }
        taken_.fetch_add(static_cast<unsigned>(found - refused), std::memory_order_relaxed);
        return found;
    }

    int fix(std::byte* data, size_t nbytes, std::string& why) override {
        if (!table_ && io_uring_register_buffers_sparse(&ring_, kBuffers) != 0) {
            why = "the system has no table of fixed buffers (Linux 5.19)";
            return -1;
        }
        if (!table_) {
            table_ = true;
            for (int i = kBuffers; i-- > 0;) {
                free_.push_back(i);
            }
        }
        if (free_.empty()) {
            why = "all " + std::to_string(kBuffers) + " fixed buffers are taken";
            return -1;
        }
        const int error = change(free_.back(), data, nbytes);
        if (error < 0) {
            why = std::string("io_uring_register_buffers_update: ") + std::strerror(-error);
            return -1;
        }
        const int buffer = free_.back();
        free_.pop_back();
        return buffer;
    }

    void unfix(int buffer) override {
        if (open_) { // else this is a forked child: the descriptor is that of the parent's buffers
            change(buffer, nullptr, 0);
            free_.push_back(buffer);
        }
    }

    std::unique_ptr<const FixedFile> fix_file(int cached, int direct) override {
        return std::make_unique<FileInTable>(files_, files_->take(cached), files_->take(direct));
    }

    int fd() const override { return ring_.ring_fd; }
    // liburing's own function reads what reap() writes.
    bool ready() const override {
        return any_refused_.load(std::memory_order_acquire) ||
               io_uring_smp_load_acquire(ring_.cq.ktail) != taken_.load(std::memory_order_relaxed);
    }
    void abandon() override { // the rings are not mapped in the child
        open_ = false;
        files_->abandon();
    }

private:
    static constexpr int kBuffers = 1024;
    // Jobs that go to the system in one call: a disk begins with them while the next are being made ready.
    static constexpr size_t kTogether = 8;

    void refuse(uint64_t number) {
        refused_.push_back({number, refusal_, true});
        any_refused_.store(true, std::memory_order_release);
    }

    // Returns a negative errno if the system refuses.
    int change(int buffer, std::byte* data, size_t nbytes) {
        const iovec range{data, nbytes};
        const __u64 tag = 0;
        return io_uring_register_buffers_update_tag(&ring_, static_cast<unsigned>(buffer), &range, &tag, 1);
    }

    const unsigned depth_;
    bool open_ = false;
    std::atomic<unsigned> taken_{0};
    std::vector<uint64_t> unsent_; // the numbers of the jobs that the system has not taken yet
    int refusal_ = 0;              // a negative errno, once the system takes no jobs any more
    std::vector<Result> refused_;
    std::atomic<bool> any_refused_{false};
    bool table_ = false; // of fixed buffers
    std::vector<int> free_;
    io_uring ring_{};
    std::shared_ptr<FileTable> files_;
};

} // namespace

std::unique_ptr<FileIo> open_uring(unsigned depth, std::string& why) {
    auto made = std::make_unique<Uring>(depth);
    const auto [call, error] = made->open();
    if (error != 0) {
        why = std::string(call) + ": " + std::strerror(-error);
        return nullptr;
    }
    return made;
}

} // namespace zerohop::storage

#else

namespace zerohop::storage {

std::unique_ptr<FileIo> open_uring(unsigned /*depth*/, std::string& why) {
    why = "this build has no io_uring: liburing.h was not there (apt-get install liburing-dev)";
    return nullptr;
}

} // namespace zerohop::storage

#endif
