// Numbers of open files in io_uring's own table. Only for files that are compiled where liburing is.
#pragma once

#include "storage/file_io.hpp"

#include <atomic>
#include <liburing.h>
#include <memory>
#include <mutex>
#include <sys/resource.h>
#include <utility>
#include <vector>

namespace zerohop::storage {

// The ring's table of descriptors. Files leave it on any thread, also after the ring.
class FileTable {
public:
    explicit FileTable(io_uring& ring) : ring_(ring) {
        rlimit descriptors{};
        // The system takes no larger table, and liburing would raise the limit of the process.
        if (::getrlimit(RLIMIT_NOFILE, &descriptors) != 0 || descriptors.rlim_cur < kFiles) {
            return;
        }
        if (io_uring_register_files_sparse(&ring_, kFiles) != 0) {
            return; // before Linux 5.19
        }
        for (int i = kFiles; i-- > 0;) {
            free_.push_back(i);
        }
    }
    // Returns the descriptor's number; -1 if it has none.
    int take(int fd) {
        const std::lock_guard lock(mutex_);
        if (fd < 0 || free_.empty() || !change(free_.back(), fd)) {
            return -1;
        }
        const int number = free_.back();
        free_.pop_back();
        return number;
    }
    void give(int number) {
        if (number < 0 || closed_.load(std::memory_order_acquire)) {
            return; // also in a forked child, where the table is the parent's, and another thread may have the lock
        }
        const std::lock_guard lock(mutex_);
        if (!closed_.load(std::memory_order_relaxed) && change(number, -1)) {
            free_.push_back(number);
        }
    }
    void close() {
        const std::lock_guard lock(mutex_);
        closed_.store(true, std::memory_order_release);
    }
    void abandon() { closed_.store(true, std::memory_order_release); }

private:
    static constexpr int kFiles = 1024;

    bool change(int number, int fd) {
        return io_uring_register_files_update(&ring_, static_cast<unsigned>(number), &fd, 1) == 1;
    }

    io_uring& ring_;
    std::mutex mutex_;
    std::atomic<bool> closed_{false};
    std::vector<int> free_;
};

class FileInTable final : public FixedFile {
public:
    FileInTable(std::shared_ptr<FileTable> table, int cached, int direct)
        : FixedFile(cached, direct), table_(std::move(table)) {}
    ~FileInTable() override {
        table_->give(number(false));
        table_->give(number(true));
    }

private:
    const std::shared_ptr<FileTable> table_;
};

} // namespace zerohop::storage
