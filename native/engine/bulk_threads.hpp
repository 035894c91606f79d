// The bulk threads of an engine: started when a lane first wants one, asleep while there is nothing to move.
#pragma once

#include "base/descriptor.hpp"
#include "base/sync.hpp"
#include "provider/bulk.hpp"

#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace zerohop {

class OneBulkThread final : public BulkThread {
public:
    OneBulkThread(); // throws NativeError, and std::system_error if there can be no more threads
    ~OneBulkThread() override { stop(); }
    void add(std::shared_ptr<BulkLink> link) override;
    void remove(const BulkLink& link) override;
    void kick() override;
    void watch(int fd) override;
    void watch_writable(int fd, bool writable) override;
    void unwatch(int fd) override;
    void stop();
    // For a forked child: forgets the thread, which does not exist there.
    void abandon();

private:
    using Links = std::vector<std::shared_ptr<BulkLink>>;
    void run();
    [[nodiscard]] std::shared_ptr<const Links> links();
    template <class F> void change(F&& f);

    std::mutex changing_;
    SpinLock lock_;                      // of the pointer alone
    std::shared_ptr<const Links> links_; // a new one for each change, so that the thread needs no memory to read it
    std::atomic<bool> kicked_{false};
    std::atomic<bool> stop_{false};
    bool abandoned_ = false; // this is a forked child, which has one thread
    Descriptor kick_fd_;
    Descriptor epoll_;
    std::thread thread_;
};

class BulkThreads {
public:
    // Returns one of them, in turn. There are no more than processors. Throws as OneBulkThread does.
    [[nodiscard]] BulkThread& next();
    // Stops them. Links may still be removed.
    void stop();
    void abandon();

private:
    std::mutex mutex_;
    std::vector<std::unique_ptr<OneBulkThread>> threads_;
    size_t next_ = 0;
};

} // namespace zerohop
