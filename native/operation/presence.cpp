#include "operation/presence.hpp"

#include "base/pages.hpp"
#include "base/status.hpp"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace zerohop {

namespace {

constexpr uint32_t kMagic = 0x7a68'7001; // "zhp", version 1

// The kernel walks this list when the thread exits. It has one entry; `futex_offset` leads from the entry to the futex
// word.
struct RobustList {
    robust_list_head head{};
    robust_list entry{};
};
thread_local RobustList robust;

} // namespace

Presence::Presence()
    : fd_(make_memfd("zerohop-presence", page_bytes(), F_SEAL_SHRINK | F_SEAL_GROW)),
      doorbell_(Descriptor::event("a doorbell")),
      pages_(map_shared(fd_.get(), page_bytes(), PROT_READ | PROT_WRITE, "the presence page")),
      page_(static_cast<PresencePage*>(pages_.get())) {
    page_->magic.store(kMagic);
    // Our mapping is the last writable one. A kernel before 5.1 lacks this seal, and there a peer is trusted as its
    // user is.
    fcntl(fd_.get(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SEAL);
}

void Presence::hold() {
    robust.head.list.next = &robust.entry;
    robust.entry.next = &robust.head.list;
    robust.head.futex_offset = reinterpret_cast<char*>(&page_->owner) - reinterpret_cast<char*>(&robust.entry);
    robust.head.list_op_pending = nullptr;
    page_->owner.store(static_cast<uint32_t>(gettid()), std::memory_order_seq_cst);
    syscall(SYS_set_robust_list, &robust.head, sizeof robust.head);
}

void Presence::release() {
    page_->owner.store(0, std::memory_order_seq_cst);
    robust.head.list.next = &robust.head.list;
}

PeerPresence::PeerPresence(int page_fd, int doorbell_fd, Presence* own)
    : doorbell_(Descriptor::duplicate(doorbell_fd)), own_(own) {
    if (sealed_bytes(page_fd) < page_bytes()) {
        throw NativeError(Status::protocol, Reason::malformed, "the peer's presence page is too small or not sealed");
    }
    pages_ = map_shared(page_fd, page_bytes(), PROT_READ, "the peer's presence page");
    page_ = static_cast<const PresencePage*>(pages_.get());
    if (page_->magic.load() != kMagic) {
        throw NativeError(Status::protocol, Reason::malformed, "the peer's presence page has another version");
    }
    // A doorbell that blocks would let a peer stop our poller.
    fcntl(doorbell_.get(), F_SETFL, fcntl(doorbell_.get(), F_GETFL) | O_NONBLOCK);
}

PeerPresence::Life PeerPresence::life() const {
    const uint32_t word = page_->owner.load(std::memory_order_seq_cst);
    if ((word & FUTEX_OWNER_DIED) != 0) {
        return Life::dead;
    }
    return word == 0 ? Life::closed : Life::alive;
}

void PeerPresence::ring() const {
    doorbell_.ring();
    if (own_ != nullptr) {
        own_->woke_peer_.store(true, std::memory_order_relaxed);
    }
}

} // namespace zerohop
