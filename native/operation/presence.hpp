// How a process on this host knows that another is alive, and whether it must be woken.
//
// Each Context owns one page that its peers map read-only. Its progress thread holds a robust futex there: when the
// process dies, the kernel marks the word while the thread exits, before it tears the address space down, which for
// a process that touched much memory comes 70 ms per GiB earlier than the end of any socket.
#pragma once

#include "base/descriptor.hpp"

#include <atomic>
#include <cstdint>

namespace zerohop {

// Shared between processes: fixed layout.
struct PresencePage {
    std::atomic<uint32_t> magic;
    std::atomic<uint32_t> owner;    // robust futex word: thread id while alive, 0 after a clean close
    std::atomic<uint32_t> sleeping; // not 0: nobody polls; ring the doorbell after leaving work
};

class Presence {
public:
    Presence();
    ~Presence();
    Presence(const Presence&) = delete;
    Presence& operator=(const Presence&) = delete;

    // To be called on the progress thread itself, first and last thing it does.
    void hold();
    void release();

    void set_sleeping(bool sleeping) { page_->sleeping.store(sleeping ? 1 : 0, std::memory_order_seq_cst); }
    int page_fd() const { return fd_.get(); }
    int doorbell_fd() const { return doorbell_.get(); }
    // Makes doorbell_fd() readable.
    void ring() const;
    void drain() const;

    // Whether a sleeping peer was woken from here since the last time that this was asked.
    bool take_woke_peer() {
        return woke_peer_.load(std::memory_order_relaxed) && woke_peer_.exchange(false, std::memory_order_relaxed);
    }

private:
    friend class PeerPresence;
    Descriptor fd_;
    Descriptor doorbell_;
    PresencePage* page_ = nullptr;
    std::atomic<bool> woke_peer_{false};
};

// A peer's page, mapped read-only, and its doorbell.
class PeerPresence {
public:
    // Duplicates both descriptors; notes in `own`, if given, whom it woke. Throws NativeError when the descriptors are
    // not what they should be.
    PeerPresence(int page_fd, int doorbell_fd, Presence* own = nullptr);
    ~PeerPresence();
    PeerPresence(const PeerPresence&) = delete;
    PeerPresence& operator=(const PeerPresence&) = delete;

    enum class Life : uint8_t { alive, closed, dead };
    Life life() const;
    // Whether nobody there polls, just now.
    [[nodiscard]] bool sleeping() const { return page_->sleeping.load(std::memory_order_relaxed) != 0; }
    // To be called after the work was published with a sequentially consistent store.
    void wake() const {
        if (page_->sleeping.load(std::memory_order_seq_cst) != 0) {
            ring();
        }
    }
    void ring() const;

private:
    Descriptor doorbell_;
    const PresencePage* page_ = nullptr;
    Presence* own_;
};

} // namespace zerohop
