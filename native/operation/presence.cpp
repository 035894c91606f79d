#include "operation/presence.hpp"

#include "base/pages.hpp"
#include "base/status.hpp"
#include "base/wake.hpp"

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fcntl.h>
#include <linux/futex.h>
#include <mutex>
#include <string>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <utility>

namespace zerohop {

namespace {

constexpr uint32_t kMagic = 0x7a68'7001; // "zhp", version 1

// The kernel walks this list when the thread exits. It has one entry; `futex_offset` leads from the entry to the futex
// word.
struct RobustList {
    robust_list_head head{};
    robust_list entry{};
};
// In the space that every thread has from its start: a thread without memory for more could not begin to be watched.
[[gnu::tls_model("initial-exec")]] thread_local RobustList robust;

void watch(const Descriptor& epoll, const Descriptor& bell) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = bell.get();
    if (epoll_ctl(epoll.get(), EPOLL_CTL_ADD, bell.get(), &event) != 0) {
        raise_watching(errno);
    }
}

// Returns the pipe of a doorbell, opened anew. Whoever has a duplicate of a descriptor can make it block, or no longer
// block, for all who have one; so everybody rings and waits by a descriptor of their own. It can both read and write,
// so that a doorbell whose owner is gone raises no SIGPIPE.
Descriptor open_bell(int doorbell) {
    struct stat info{};
    if (fstat(doorbell, &info) != 0) {
        raise_if_refused("cannot look at a doorbell (fstat)", errno);
    }
    if (!S_ISFIFO(info.st_mode)) {
        throw NativeError(Status::protocol, Reason::malformed, "the peer's doorbell is no pipe");
    }
    const std::string path = "/proc/self/fd/" + std::to_string(doorbell);
    return Descriptor::made(open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC), "a doorbell (open /proc/self/fd)");
}

void ring_bell(const Descriptor& bell) {
    if (bell.lost()) {
        return;
    }
    const char one = 1;
    write_to_wake(bell.get(), &one, sizeof one);
}

} // namespace

Presence::Presence()
    : fd_(make_memfd("zerohop-presence", page_bytes(), F_SEAL_SHRINK | F_SEAL_GROW)),
      bells_(Descriptor::made(epoll_create1(EPOLL_CLOEXEC), "an epoll descriptor (epoll_create1)")),
      pages_(map_shared(fd_.get(), page_bytes(), PROT_READ | PROT_WRITE, "the presence page")),
      page_(static_cast<PresencePage*>(pages_.get())) {
    page_->magic.store(kMagic);
    own_ = make_doorbell();
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

Doorbell Presence::make_doorbell() {
    std::array<int, 2> ends{-1, -1};
    if (pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0) {
        ends = {-1, -1};
    }
    const Descriptor reader(ends[0]);
    Doorbell made{Descriptor::made(ends[1], "a doorbell (pipe2)"), ends[0]};
    Descriptor ours = open_bell(ends[0]);
    made.number = ours.get();
    const std::lock_guard lock(lock_);
    watch(bells_, ours);
    doorbells_[made.number] = std::move(ours);
    return made;
}

void Presence::ring() const {
    ring_bell(own_.theirs);
}

void Presence::close_doorbell(int number) {
    const std::lock_guard lock(lock_);
    if (const auto found = doorbells_.find(number); found != doorbells_.end()) {
        // By hand: a forked child may have a duplicate, and it would stay watched.
        epoll_ctl(bells_.get(), EPOLL_CTL_DEL, number, nullptr);
        doorbells_.erase(found);
    }
}

// A peer that rings without end keeps its bell readable, and holds nobody up here.
void Presence::drain() {
    constexpr int kMost = 16; // more of them keep bell_fd() readable
    std::array<epoll_event, kMost> rung;
    std::array<char, 4096> rings;
    const std::lock_guard lock(lock_);
    const int count = epoll_wait(bells_.get(), rung.data(), kMost, 0);
    for (int i = 0; i < count; ++i) {
        [[maybe_unused]] const ssize_t got = read(rung[static_cast<size_t>(i)].data.fd, rings.data(), rings.size());
    }
}

PeerPresence::PeerPresence(int page_fd, int doorbell_fd, Presence* own) : own_(own) {
    if (sealed_bytes(page_fd) < page_bytes()) {
        throw NativeError(Status::protocol, Reason::malformed, "the peer's presence page is too small or not sealed");
    }
    pages_ = map_shared(page_fd, page_bytes(), PROT_READ, "the peer's presence page");
    page_ = static_cast<const PresencePage*>(pages_.get());
    if (page_->magic.load() != kMagic) {
        throw NativeError(Status::protocol, Reason::malformed, "the peer's presence page has another version");
    }
    bell_ = open_bell(doorbell_fd);
}

PeerPresence::Life PeerPresence::life() const {
    const uint32_t word = page_->owner.load(std::memory_order_seq_cst);
    if ((word & FUTEX_OWNER_DIED) != 0) {
        return Life::dead;
    }
    return word == 0 ? Life::closed : Life::alive;
}

void PeerPresence::ring() const {
    ring_bell(bell_);
    if (own_ != nullptr) {
        own_->woke_peer_.store(true, std::memory_order_relaxed);
        own_->rings_.fetch_add(1, std::memory_order_relaxed);
    }
}

} // namespace zerohop
