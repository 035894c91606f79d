// What an event loop watches: one descriptor for the tokens in its completion queue, and for the next message of a
// peer.
//
// A loop that only watched its queue would be woken last: the message wakes the progress thread, which polls, ends an
// operation and wakes the loop. Waking a thread is most of the time that a small message takes, so a loop that waits is
// woken by the message itself and polls once. It helps and is never relied on: the progress thread is woken, too, and
// polls when the loop does not come.
#pragma once

#include "base/descriptor.hpp"
#include "operation/completion_queue.hpp"

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

namespace zerohop {

class Poller;

class LoopBell {
public:
    // The poller must outlive it. Throws NativeError if there are no descriptors left.
    LoopBell(Poller& poller, std::shared_ptr<CompletionQueue> queue);
    ~LoopBell() { close(); }

    // Readable while tokens wait and, after listen(), once a peer has left work; -1 after close().
    int fd() const { return epoll_.get(); }
    // Has the next message wake the loop, until drain().
    void listen();
    // On the loop's thread, when fd() is readable: polls once unless tokens are here already, and takes them.
    [[nodiscard]] std::vector<uint64_t> drain();
    void close();

private:
    void watch_messages(bool wanted);

    Poller& poller_;
    std::shared_ptr<CompletionQueue> queue_;
    Descriptor epoll_;
    std::atomic<bool> listening_{false};
};

} // namespace zerohop
