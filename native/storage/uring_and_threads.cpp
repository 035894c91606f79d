// Reads and writes files by io_uring, beside threads for long copies from and to the page cache, and for carriers.
//
// The system's own workers for such jobs are woken one at a time, however many jobs it is given in one call: 64 reads
// of 1 MiB from the cache then run on one or two processors. A read that finds the cache empty is the system's all the
// same: it starts as many workers as there are reads that wait for a disk.
#include "base/descriptor.hpp"
#include "engine/epoll.hpp"
#include "storage/file_io.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <thread>
#include <utility>
#include <vector>

namespace zerohop::storage {

namespace {

class UringAndThreads final : public FileIo {
public:
    UringAndThreads(std::unique_ptr<FileIo> uring, std::unique_ptr<FileIo> threads)
        : uring_(std::move(uring)), threads_(std::move(threads)), copies_(depth()) {
        add_to(either_, uring_->fd(), EPOLLIN);
        add_to(either_, threads_->fd(), EPOLLIN);
    }

    const char* name() const override { return uring_->name(); }
    size_t depth() const override { return std::min(uring_->depth(), threads_->depth()); }

    void add(const Job& job) override {
        if (!job.slow && job.carrier == nullptr) {
            uring_->add(job);
            return;
        }
        Job& copy = copies_[job.number] = job;
        copy.at_once = !job.write && job.carrier == nullptr;
        threads_->add(copy);
    }

    bool submit() override {
        const bool sent = threads_->submit();
        unsent_.store(!uring_->submit(), std::memory_order_release);
        return sent && !unsent_.load(std::memory_order_relaxed);
    }

    size_t reap(std::span<Result> results) override {
        size_t found = uring_->reap(results);
        const std::span<Result> copied = results.subspan(found, threads_->reap(results.subspan(found)));
        bool any_missed = unsent_.load(std::memory_order_relaxed);
        for (const Result& result : copied) {
            if (result.value == -EAGAIN && copies_[result.number].at_once) {
                copies_[result.number].at_once = false;
                uring_->add(copies_[result.number]);
                any_missed = true;
            } else {
                results[found++] = result;
            }
        }
        if (any_missed) {
            unsent_.store(!uring_->submit(), std::memory_order_release);
        }
        return found;
    }

    int fix(std::byte* data, size_t nbytes, std::string& why) override { return uring_->fix(data, nbytes, why); }
    void unfix(int buffer) override { uring_->unfix(buffer); }
    std::unique_ptr<const FixedFile> fix_file(int cached, int direct) override {
        return uring_->fix_file(cached, direct);
    }
    int fd() const override { return either_.get(); }
    bool ready() const override {
        return uring_->ready() || threads_->ready() || unsent_.load(std::memory_order_acquire);
    }
    void abandon() override {
        uring_->abandon();
        threads_->abandon();
    }

private:
    const std::unique_ptr<FileIo> uring_;
    const std::unique_ptr<FileIo> threads_;
    std::vector<Job> copies_; // by their numbers
    const Descriptor either_ = make_epoll();
    std::atomic<bool> unsent_{false};
};

} // namespace

std::unique_ptr<FileIo> open_io(unsigned depth, unsigned threads, std::string& why) {
    std::unique_ptr<FileIo> uring = open_uring(depth, why);
    if (!uring) {
        return open_threads(threads);
    }
    // More threads than processors copy no faster.
    const unsigned copying = std::min(threads, std::max(1U, std::thread::hardware_concurrency()));
    return std::make_unique<UringAndThreads>(std::move(uring), open_threads(copying));
}

} // namespace zerohop::storage
