#include "provider/p2p/notify_rings.hpp"

#include "base/pages.hpp"
#include "base/status.hpp"

#include <algorithm>
#include <fcntl.h>
#include <sys/mman.h>

namespace zerohop::p2p {

static_assert(sizeof(NotifySlot) == 16 && sizeof(NotifyPage) % 4096 == 0);

NotifyMemory::NotifyMemory()
    : fd_(make_memfd("zerohop-notify", sizeof(NotifyPage), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)) {
    map();
}

NotifyMemory::NotifyMemory(int fd) : fd_(Descriptor::duplicate(fd)) {
    if (sealed_bytes(fd_.get()) != sizeof(NotifyPage)) {
        throw NativeError(Status::protocol, Reason::malformed,
                          "the peer's notifications have an unknown size or no seal");
    }
    map();
}

void NotifyMemory::map() {
    pages_ = map_shared(fd_.get(), sizeof(NotifyPage), PROT_READ | PROT_WRITE, "notifications");
    page_ = static_cast<NotifyPage*>(pages_.get());
}

uint32_t NotifyInbox::rings_in_use() const {
    return std::min(memory_.page().used.load(std::memory_order_seq_cst), kRings); // the peer's word
}

// Poller, and any thread that only looks.
NotifySlot* NotifyInbox::next(uint32_t ring) const {
    const uint64_t head = heads_[ring].load(std::memory_order_relaxed);
    NotifySlot& slot = memory_.page().rings[ring][head % kSlots];
    const auto lap = static_cast<uint32_t>(head / kSlots + 1);
    return slot.ready.load(std::memory_order_acquire) == lap ? &slot : nullptr;
}

bool NotifyInbox::any() const {
    const uint32_t used = rings_in_use();
    for (uint32_t ring = 0; ring < used; ++ring) {
        if (next(ring) != nullptr) {
            return true;
        }
    }
    return false;
}

NotifyOutbox::NotifyOutbox(Accelerators& accelerators, int fd)
    : memory_(std::make_shared<NotifyMemory>(fd)),
      registration_(std::make_unique<HostRegistration>(accelerators.in_use(), &memory_->page(), sizeof(NotifyPage),
                                                       accel::HostPages::writable, memory_)) {}

NotifyOutbox::Ticket NotifyOutbox::take(uint32_t ring, int64_t notify, uint64_t nbytes) {
    NotifyPage& page = memory_->page();
    uint32_t used = page.used.load(std::memory_order_relaxed);
    while (used <= ring && !page.used.compare_exchange_weak(used, ring + 1, std::memory_order_seq_cst)) {
    }
    const uint64_t tail = tails_[ring];
    // The peer's word: what it says too much costs it notifications of its own.
    if (tail - page.heads[ring].load(std::memory_order_acquire) >= kSlots) {
        return {};
    }
    ++tails_[ring];
    NotifySlot& slot = page.rings[ring][tail % kSlots];
    slot.value = value_of(notify);
    slot.nbytes = uint64_t{queue_of(notify)} << kLengthBits | nbytes;
    return {&slot, static_cast<uint32_t>(tail / kSlots + 1)};
}

void NotifyOutbox::Ticket::skip() const {
    if (slot != nullptr && slot->ready.load(std::memory_order_relaxed) != lap) {
        slot->nbytes = kNothing;
        slot->ready.store(lap, std::memory_order_seq_cst);
    }
}

} // namespace zerohop::p2p
