#include "device/assist.hpp"

#include <cstring>

namespace zerohop::device::mlx5 {

namespace {

constexpr int kUnwritten = 0xff; // what completion queues are filled with

} // namespace

Assist::Assist(std::byte* memory, uint64_t slots, uint64_t completion_slots, uint32_t queue_pair, Executor& executor)
    : memory_(memory), slots_(slots), completion_slots_(completion_slots), queue_pair_(queue_pair),
      layout_(slots, completion_slots), executor_(executor) {
    std::memset(memory_, 0, layout_.completions);
    std::memset(memory_ + layout_.completions, kUnwritten, completion_slots * sizeof(Completed));
}

bool Assist::poll() {
    bool moved = look();
    moved |= begin();
    news_.clear();
    executor_.collect(news_);
    for (const Executor::Ended& each : news_) {
        complete(each);
        ended_ = each.index + 1;
    }
    // A completion tells of all requests before it, so the one of a refused request comes after theirs.
    if (refused_ && !failed_ && ended_ == begun_) {
        complete({begun_, kBadRequest});
        moved = true;
    }
    return moved || !news_.empty();
}

// Reads the doorbell. A doorbell that no kernel of ours rings ends the queue: nobody knows what it would have meant.
bool Assist::look() {
    const Word doorbell = __atomic_load_n(word_at(QueueLayout::kDoorbell), __ATOMIC_ACQUIRE);
    if (doorbell == 0 || failed_ || refused_) {
        return false;
    }
    // The record was written before, and possibly again, for requests whose doorbell comes later.
    const Word record = __atomic_load_n(word_at(QueueLayout::kRecord), __ATOMIC_ACQUIRE);
    const std::optional<uint64_t> tail = tail_of(doorbell, rung_, slots_, queue_pair_);
    const bool receives = static_cast<uint32_t>(record) != 0;
    const uint64_t recorded = big(static_cast<uint32_t>(record >> 32));
    if (!tail || receives || ((recorded - *tail) & kIndexMask) > slots_) {
        failed_ = refused_ = true;
        close(kFailed);
        return true;
    }
    const bool moved = *tail != rung_;
    rung_ = *tail;
    return moved;
}

bool Assist::begin() {
    bool moved = false;
    while (begun_ != rung_ && !failed_ && !refused_) {
        Block block;
        const std::byte* at = memory_ + QueueLayout::kBlocks + (begun_ & (slots_ - 1)) * sizeof(Block);
        std::memcpy(&block, at, sizeof(Block));
        const std::optional<Request> request = take_apart(block, begun_, queue_pair_);
        if (!request) {
            refused_ = true;
            return true;
        }
        if (!executor_.begin(*request)) {
            break;
        }
        ++begun_;
        moved = true;
    }
    return moved;
}

void Assist::complete(const Executor::Ended& ended) {
    Completed entry{};
    entry.bytes[kSyndromeAt] = ended.syndrome;
    const auto counter = static_cast<uint16_t>(ended.index);
    entry.bytes[kCounterAt] = static_cast<unsigned char>(counter >> 8);
    entry.bytes[kCounterAt + 1] = static_cast<unsigned char>(counter);
    const unsigned opcode = ended.syndrome == 0 ? kRequestEnded : kRequestFailed;
    const unsigned lap = (ended.index & completion_slots_) != 0 ? 1 : 0;
    entry.bytes[kOwnerAt] = static_cast<unsigned char>(opcode << 4 | (completion_slots_ == 1 ? 0 : lap));
    std::byte* at = memory_ + layout_.completions + (ended.index & (completion_slots_ - 1)) * sizeof(Completed);
    std::memcpy(at, entry.bytes, sizeof entry.bytes - sizeof(Word));
    Word last = 0; // counter and owner, after everything else
    std::memcpy(&last, entry.bytes + sizeof entry.bytes - sizeof(Word), sizeof(Word));
    __atomic_store_n(reinterpret_cast<Word*>(at + sizeof entry.bytes - sizeof(Word)), last, __ATOMIC_RELEASE);
    failed_ = failed_ || ended.syndrome != 0;
    if (ended.syndrome != 0) {
        close(kFailed); // waits of kernels that look for no completion end, too
    }
}

// A kernel may have ended the queue before; its reason stays, except when the queue is closed.
void Assist::close(Word status) {
    Word expected = kOk;
    if (status == kClosed) {
        __atomic_store_n(word_at(QueueLayout::kState), status, __ATOMIC_RELEASE);
    } else {
        (void)__atomic_compare_exchange_n(word_at(QueueLayout::kState), &expected, status, false, __ATOMIC_ACQ_REL,
                                          __ATOMIC_ACQUIRE);
    }
}

} // namespace zerohop::device::mlx5
