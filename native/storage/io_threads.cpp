// Reads and writes files by a pool of threads, and carries out the jobs of carriers, which block.
#include "base/descriptor.hpp"
#include "base/signals_blocked.hpp"
#include "base/thread_start.hpp"
#include "storage/file_io.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <new>
#include <pthread.h>
#include <sys/uio.h>
#include <system_error>
#include <thread>
#include <unistd.h>
#include <vector>

namespace zerohop::storage {

namespace {

constexpr size_t kDepth = 256;

Result carry_out(const Job& job) {
    if (job.carrier != nullptr) {
        return {job.number, job.carrier->carry_out(job)};
    }
    const iovec piece{job.data, job.nbytes};
    const auto offset = static_cast<off_t>(job.offset);
    ssize_t moved = -1;
    if (job.write) {
        moved = pwritev2(job.fd, &piece, 1, offset, 0);
    } else {
        moved = preadv2(job.fd, &piece, 1, offset, job.at_once ? RWF_NOWAIT : 0);
        if (moved < 0 && errno == EOPNOTSUPP) { // of a file system that cannot tell
            moved = preadv2(job.fd, &piece, 1, offset, 0);
        }
    }
    return {job.number, static_cast<int32_t>(moved < 0 ? -errno : moved)};
}

class IoThreads final : public FileIo {
public:
    explicit IoThreads(unsigned threads) : most_(std::max(1U, threads)) {
        results_.reserve(kDepth); // so that no thread needs memory to tell a result
        added_.reserve(kDepth);
        threads_.reserve(most_);
        start_one(); // a process without room for a single thread hears it now
    }
    IoThreads(const IoThreads&) = delete;
    IoThreads& operator=(const IoThreads&) = delete;
    ~IoThreads() override {
        {
            const std::lock_guard lock(mutex_);
            stop_ = true;
        }
        work_.notify_all();
        for (std::thread& each : threads_) {
            each.join();
        }
    }

    const char* name() const override { return "threads"; }
    size_t depth() const override { return kDepth; }
    void add(const Job& job) override { added_.push_back(job); }

    bool submit() override {
        if (added_.empty()) {
            return true;
        }
        size_t waiting = 0;
        {
            const std::lock_guard lock(mutex_);
            jobs_.insert(jobs_.end(), added_.begin(), added_.end());
            waiting = jobs_.size();
        }
        for (size_t woken = std::min(added_.size(), threads_.size()); woken-- > 0;) {
            work_.notify_one();
        }
        added_.clear();
        try {
            while (threads_.size() < most_ && threads_.size() < waiting + busy_.load(std::memory_order_relaxed)) {
                start_one();
            }
        } catch (const std::system_error&) {
            return true; // those that there are do it all
        } catch (const std::bad_alloc&) {
            return true; // the same: the jobs are theirs already
        }
        return true;
    }

    size_t reap(std::span<Result> results) override {
        if (!ready()) {
            return 0;
        }
        const std::lock_guard lock(mutex_);
        const size_t found = std::min(results.size(), results_.size());
        std::copy_n(results_.begin(), found, results.begin());
        results_.erase(results_.begin(), results_.begin() + static_cast<ptrdiff_t>(found));
        if (results_.empty()) {
            waiting_.store(false, std::memory_order_relaxed);
            [[maybe_unused]] const bool rung = event_.drain();
        }
        return found;
    }

    int fix(std::byte* /*data*/, size_t /*nbytes*/, std::string& why) override {
        why = "threads read and write";
        return -1;
    }
    void unfix(int /*buffer*/) override {}
    int fd() const override { return event_.get(); }
    bool ready() const override { return waiting_.load(std::memory_order_acquire); }

    void abandon() override {
        for (std::thread& each : threads_) {
            // Leaked, not detached: the C library must not touch a thread that this process lacks.
            static_cast<void>(new std::thread(std::move(each)));
        }
        threads_.clear();
    }

private:
    void start_one() {
        const SignalsBlocked blocked; // the new thread inherits the mask
        threads_.emplace_back([this] {
            prepare_for_exceptions();
            run();
        });
        pthread_setname_np(threads_.back().native_handle(), "zerohop-file");
    }

    void run() {
        std::unique_lock lock(mutex_);
        while (true) {
            work_.wait(lock, [&] { return stop_ || !jobs_.empty(); });
            if (jobs_.empty()) {
                return;
            }
            const Job job = jobs_.front();
            jobs_.pop_front();
            busy_.fetch_add(1, std::memory_order_relaxed);
            lock.unlock();
            const Result result = carry_out(job);
            lock.lock();
            busy_.fetch_sub(1, std::memory_order_relaxed);
            results_.push_back(result);
            if (!waiting_.exchange(true, std::memory_order_release)) {
                event_.ring();
            }
        }
    }

    const size_t most_;
    const Descriptor event_ = Descriptor::event();
    std::vector<Job> added_; // of the thread that adds
    std::vector<std::thread> threads_;
    std::atomic<size_t> busy_{0};
    std::atomic<bool> waiting_{false};
    std::mutex mutex_;
    std::condition_variable work_;
    bool stop_ = false;
    std::deque<Job> jobs_;
    std::vector<Result> results_;
};

} // namespace

std::unique_ptr<FileIo> open_threads(unsigned threads) {
    return std::make_unique<IoThreads>(threads);
}

} // namespace zerohop::storage
