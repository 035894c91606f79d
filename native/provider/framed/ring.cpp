#include "provider/framed/ring.hpp"

#include "base/pages.hpp"
#include "memory/copy.hpp"
#include "memory/region.hpp"
#include "provider/framed/byte_stream.hpp"
#include "provider/framed/piece_walk.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <string>
#include <sys/mman.h>

namespace zerohop::framed {

namespace {

constexpr size_t kIndexBytes = 4096; // one page, so that the data behind it can be mapped twice

} // namespace

RingMemory::RingMemory()
    : fd_(make_memfd("zerohop-ring", kIndexBytes + kRingBytes, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)) {
    map();
}

RingMemory::RingMemory(int fd) : fd_(Descriptor::duplicate(fd)) {
    if (sealed_bytes(fd_.get()) != kIndexBytes + kRingBytes) {
        throw NativeError(Status::protocol, Reason::malformed, "the peer's ring has an unknown size or no seal");
    }
    map();
}

void RingMemory::map() {
    // Reserve the whole range first, then lay the two views of the data side by side into it.
    pages_ = map_private(kIndexBytes + 2 * kRingBytes, PROT_NONE);
    if (!pages_) {
        throw NativeError(Status::no_memory, Reason::out_of_shared_memory,
                          std::string("cannot reserve a ring: ") + std::strerror(errno));
    }
    auto* start = static_cast<std::byte*>(pages_.get());
    const int protection = PROT_READ | PROT_WRITE;
    const int flags = MAP_SHARED | MAP_FIXED;
    if (mmap(start, kIndexBytes + kRingBytes, protection, flags, fd_.get(), 0) == MAP_FAILED ||
        mmap(start + kIndexBytes + kRingBytes, kRingBytes, protection, flags, fd_.get(), kIndexBytes) == MAP_FAILED) {
        throw NativeError(Status::no_memory, Reason::out_of_shared_memory,
                          std::string("cannot map a ring: ") + std::strerror(errno));
    }
    indices_ = static_cast<RingIndices*>(pages_.get());
    data_ = start + kIndexBytes;
}

bool RingProducer::has_room() const {
    return tail_.load(std::memory_order_relaxed) - memory_.indices().head.load(std::memory_order_seq_cst) < kRingBytes;
}

size_t RingProducer::send(std::span<const iovec> pieces, const PeerPresence* consumer) {
    RingIndices& indices = memory_.indices();
    uint64_t tail = tail_.load(std::memory_order_relaxed);
    PieceWalk walk(pieces);
    size_t sent = 0;
    size_t unpublished = 0;
    bool gone = false;
    while (!walk.done() && !gone) {
        if (tail - head_seen_ == kRingBytes) {
            head_seen_ = indices.head.load(std::memory_order_acquire);
            if (head_seen_ > tail || tail - head_seen_ > kRingBytes) {
                corrupt_.store(true, std::memory_order_relaxed);
                return 0;
            }
            if (tail - head_seen_ == kRingBytes) {
                break;
            }
        }
        const size_t room = kRingBytes - (tail - head_seen_);
        const Copied copied = walk.copy_out(memory_.at(tail), std::min(room, kPublishBytes - unpublished));
        tail += copied.nbytes;
        sent += copied.nbytes;
        unpublished += copied.nbytes;
        if (unpublished == kPublishBytes) {
            indices.tail.store(tail, std::memory_order_release);
            unpublished = 0;
        }
        gone = copied.gone != Gone::nothing;
    }
    if (sent != 0) {
        tail_.store(tail, std::memory_order_relaxed);
        indices.tail.store(tail, std::memory_order_seq_cst);
        if (consumer != nullptr) {
            consumer->wake();
        }
    }
    return gone && sent == 0 ? ByteStream::kGone : sent;
}

size_t RingConsumer::receive(std::span<const iovec> pieces, bool streaming, const PeerPresence* producer) {
    RingIndices& indices = memory_.indices();
    uint64_t head = head_.load(std::memory_order_relaxed);
    const uint64_t available = indices.tail.load(std::memory_order_acquire) - head;
    if (available > kRingBytes) {
        corrupt_.store(true, std::memory_order_relaxed);
        return 0;
    }
    PieceWalk walk(pieces);
    size_t got = 0;
    bool gone = false;
    while (!walk.done() && !gone && got != available) {
        const Copied copied = walk.copy_in(memory_.at(head), std::min(available - got, kPublishBytes), streaming);
        head += copied.nbytes;
        got += copied.nbytes;
        indices.head.store(head, std::memory_order_release);
        gone = copied.gone != Gone::nothing;
    }
    if (streaming) {
        stream_fence();
    }
    if (got != 0) {
        head_.store(head, std::memory_order_relaxed);
        indices.head.store(head, std::memory_order_seq_cst);
        if (indices.producer_waiting.load(std::memory_order_seq_cst) != 0 && producer != nullptr) {
            producer->wake();
        }
    }
    return gone && got == 0 ? ByteStream::kGone : got;
}

} // namespace zerohop::framed
