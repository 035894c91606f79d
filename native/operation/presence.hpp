// Tells a process whether another one on this host is alive, and whether it must be woken.
//
// Each Context owns one page that its peers map read-only. Its progress thread holds a robust futex in that page: when
// the process dies, the kernel marks the futex word while the thread exits, before it frees the address space. That is
// 70 ms per GiB of touched memory before any of its sockets ends.
//
// Each peer has a doorbell of its own, a pipe: whoever can ring a pipe can also empty it, so that one for all of them
// could be kept silent by any of them.
#pragma once

#include "base/descriptor.hpp"

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>

namespace zerohop {

// Shared between processes, so its layout is fixed.
struct PresencePage {
    std::atomic<uint32_t> magic;
    std::atomic<uint32_t> owner;    // robust futex word: thread id while alive, 0 after a clean close
    std::atomic<uint32_t> sleeping; // not 0: nobody polls; a peer that leaves work here must ring the doorbell
};

// A peer's doorbell: the end that the peer gets, and the number by which it is closed.
struct Doorbell {
    Descriptor theirs;
    int number = -1;
};

class Presence {
public:
    Presence();

    // Take and release the futex. The progress thread itself calls them, as the first and last thing it does.
    void hold();
    void release();

    void set_sleeping(bool sleeping) { page_->sleeping.store(sleeping ? 1 : 0, std::memory_order_seq_cst); }
    int page_fd() const { return fd_.get(); }
    // Makes a doorbell for a peer. Throws NativeError if there are no descriptors left.
    [[nodiscard]] Doorbell make_doorbell();
    void close_doorbell(int number);
    // Returns the descriptor that doorbells make readable, for epoll.
    int bell_fd() const { return bells_.get(); }
    // Makes bell_fd() readable; drain() undoes that.
    void ring() const;
    void drain();

    // How many times this process has woken a peer.
    [[nodiscard]] uint64_t rings() const { return rings_.load(std::memory_order_relaxed); }
    // True if this process has woken a sleeping peer since the last call.
    bool take_woke_peer() {
        return woke_peer_.load(std::memory_order_relaxed) && woke_peer_.exchange(false, std::memory_order_relaxed);
    }

private:
    friend class PeerPresence;
    Descriptor fd_;
    Descriptor bells_; // an epoll of all doorbells
    std::mutex lock_;  // of those below: a descriptor that is closed while it is drained may be another's by then
    std::unordered_map<int, Descriptor> doorbells_; // their reading ends, by number
    Doorbell own_;
    std::shared_ptr<void> pages_;
    PresencePage* page_ = nullptr;
    std::atomic<bool> woke_peer_{false};
    std::atomic<uint64_t> rings_{0};
};

// Maps a peer's page read-only, and rings its doorbell.
class PeerPresence {
public:
    // Duplicates the page's descriptor, and opens the doorbell for itself. Notes each wake-up in `own`, if given.
    // Throws NativeError if the descriptors are not those of a presence page and a doorbell.
    PeerPresence(int page_fd, int doorbell_fd, Presence* own = nullptr);

    enum class Life : uint8_t { alive, closed, dead };
    Life life() const;
    // True if nobody polls in the peer just now.
    [[nodiscard]] bool sleeping() const { return page_->sleeping.load(std::memory_order_relaxed) != 0; }
    // Wakes the peer if it sleeps. Call it after publishing the work with a sequentially consistent store.
    void wake() const {
        if (page_->sleeping.load(std::memory_order_seq_cst) != 0) {
            ring();
        }
    }
    void ring() const;

private:
    Descriptor bell_; // the peer's
    std::shared_ptr<void> pages_;
    const PresencePage* page_ = nullptr;
    Presence* own_;
};

} // namespace zerohop
