// Declares a send queue in the form of mlx5 NICs, as it lies in memory, and the steps by which one thread uses it.
#pragma once

#include "zerohop/device/mlx5.hpp"
#include "zerohop/device/platform.hpp"
#include "zerohop/device/waits.hpp"

namespace zerohop::device::mlx5 {

// Stands at the beginning of a WorkQueue, and changes with everything below.
constexpr Word kQueueLayout = 0x7a686d6c78350003;

struct WorkQueue {
    Word layout; // kQueueLayout
    Word number; // of the queue pair
    Word slots;  // blocks of the send queue, a power of two, 32,768 at most
    Word blocks; // address of the first Block
    Word record; // address of the doorbell record: two words of 32 bits, of which the second is the send queue's
    Word doorbell;
    Word completions;       // address of the first Entry
    Word completion_slots;  // entries of the ring, a power of two; 1: all are written to one place
    Word completion_record; // address of the number of completions that were taken, in 24 bits
    Word head;              // address of the index of the next free block; in memory of the device
    Word turn;              // address of the index up to which requests are ready, and kRinging; likewise
    Word done;              // address of the index up to which requests have completed; likewise
    Word state;             // address of the state of the queue; the host and kernels write it
    Word timeout_ns;        // of every wait
    // Requests that may be under way, a power of two: `slots`, or half of a NIC's completions.
    Word most;
};

// An entry of the completion queue; big-endian.
struct alignas(64) Completed {
    unsigned char bytes[64];
};
constexpr unsigned kSyndromeAt = 55; // of an error
constexpr unsigned kCounterAt = 60;  // the 16-bit index of the request
constexpr unsigned kOwnerAt = 63;    // opcode in the upper four bits, owner in the lowest
constexpr unsigned kRequestEnded = 0;
constexpr unsigned kRequestFailed = 13;
constexpr unsigned kInvalid = 15; // nothing was written there yet

// The lowest bit of `turn`, set while a thread rings the doorbell. That thread also rings for the requests that become
// ready before it clears the bit.
constexpr Word kRinging = 1;

struct Posted {
    Word status;
    Word index; // of its block
    Word rings; // the index up to which this thread rings the doorbell; 0: another one does
};

namespace detail {

// Ends the queue for all, unless it has ended; returns with which status it has.
ZEROHOP_DEVICE_FN Word give_up(const WorkQueue* queue, Word status) {
    const Word before = platform::compare_swap(queue->state, kOk, status);
    return before == kOk ? status : before;
}

// Waits until `done`, a function, gives another answer than kBusy; ends with the queue's time, or its state.
constexpr Word kBusy = ~Word(0);
template <typename Done> ZEROHOP_DEVICE_FN Word wait(const WorkQueue* queue, Done done) {
    Word found = done();
    if (found != kBusy) {
        return found;
    }
    const Word until = platform::now_ns() + queue->timeout_ns;
    for (;;) {
        ZEROHOP_NO_UNROLL
        for (unsigned spins = 0; spins < zerohop::device::detail::kSpins; ++spins) {
            platform::relax();
            found = done();
            if (found != kBusy) {
                return found;
            }
        }
        const Word state = platform::load_acquire(queue->state);
        if (state == kOk && platform::now_ns() <= until) {
            continue;
        }
        found = done(); // it may have come with the state
        return found != kBusy ? found : state != kOk ? state : kTimedOut;
    }
}

// Moves `done` on to a later index; another thread may have moved it further.
ZEROHOP_DEVICE_FN void move_on(const WorkQueue* queue, Word index) {
    Word seen = platform::load_near(queue->done);
    while (static_cast<long long>(index - seen) > 0) {
        const Word found = platform::compare_swap_near(queue->done, seen, index);
        if (found == seen) {
            return;
        }
        seen = found;
    }
}

ZEROHOP_DEVICE_FN Word ready_of(Word turn) {
    return turn / (2 * kRinging);
}
ZEROHOP_DEVICE_FN Word turn_of(Word ready) {
    return ready * (2 * kRinging);
}

// Takes completions from where all are written to the same place: the counter there is that of the last one. It counts
// only if it names a request that was posted and has not completed: otherwise it is from 65,536 requests before.
ZEROHOP_DEVICE_FN Word take_collapsed(const WorkQueue* queue) {
    const Word last = platform::load_acquire(queue->completions + 56); // counter, signature and owner in one load
    const auto owner = static_cast<unsigned>(last >> 56);
    const auto counter = static_cast<unsigned>((last >> 32 & 0xff) << 8 | (last >> 40 & 0xff));
    if (owner >> 4 == kInvalid) {
        return kOk;
    }
    const Word done = platform::load_near(queue->done);
    const Word ahead = (counter + 1 - done) & kIndexMask;
    if (ahead == 0 || ahead > ready_of(platform::load_near(queue->turn)) - done) {
        return kOk;
    }
    if (owner >> 4 != kRequestEnded) {
        return give_up(queue, kFailed);
    }
    move_on(queue, done + ahead);
    return kOk;
}

// Takes the next completion from a ring, if it is there: each has the parity of its lap.
ZEROHOP_DEVICE_FN Word take_from_ring(const WorkQueue* queue) {
    const Word done = platform::load_near(queue->done);
    const Word at = queue->completions + (done & (queue->completion_slots - 1)) * sizeof(Completed);
    const auto owner = static_cast<unsigned>(platform::load_acquire(at + 56) >> 56);
    const unsigned lap = (done & queue->completion_slots) != 0 ? 1 : 0;
    if (owner >> 4 == kInvalid || (owner & 1) != lap) {
        return kOk;
    }
    if (owner >> 4 != kRequestEnded) {
        return give_up(queue, kFailed);
    }
    move_on(queue, done + 1);
    return kOk;
}

ZEROHOP_DEVICE_FN Word take_completions(const WorkQueue* queue) {
    return queue->completion_slots == 1 ? take_collapsed(queue) : take_from_ring(queue);
}

ZEROHOP_DEVICE_FN bool is_done(const WorkQueue* queue, Word index) {
    return static_cast<long long>(platform::load_near(queue->done) - index) > 0;
}

// Tells the NIC how many completions were taken; the record never stays behind what this thread knows of.
ZEROHOP_DEVICE_FN void record_completions(const WorkQueue* queue) {
    constexpr unsigned kMask = 0xffffff;
    Word done = platform::load_near(queue->done);
    // Again if completions were taken meanwhile: the thread that took them may have written the record before.
    for (Word seen = ~done; seen != done; done = platform::load_near(queue->done)) {
        seen = done;
        platform::store_half(queue->completion_record, big(static_cast<unsigned>(seen) & kMask));
        platform::fence();
    }
}

// Tells the NIC, by the record, of all requests before an index.
ZEROHOP_DEVICE_FN void record(const WorkQueue* queue, Word index) {
    platform::fence(); // the NIC sees the requests after the bytes that they send, and the record after the requests
    platform::store_half(queue->record + sizeof(unsigned), record_of(index));
}

// Takes places for requests, and waits while the queue is full; gives the index of the first one. One thread.
ZEROHOP_DEVICE_FN Found reserve(const WorkQueue* queue, Word count) {
    // Under way together with the index. The stores below depend on it, and come after what it tells of.
    const Word done = platform::load_relaxed(queue->done);
    const Word first = platform::fetch_add_near(queue->head, count);
    const Word last = first + count - 1;
    Word status = kOk;
    if (last - done >= queue->most) {
        status = wait(queue, [&] {
            if (last - platform::load_near(queue->done) < queue->most) {
                return kOk;
            }
            const Word taken = take_completions(queue);
            return taken == kOk ? kBusy : taken;
        });
    }
    if (status != kOk) {
        // Others wait for these requests to be ready, and they never are: the queue ends here.
        status = give_up(queue, status);
    } else if (((first ^ (first + count)) & ~((queue->most + 1) / 2 - 1)) != 0) { // `most` is a power of two
        // Once for each half: a NIC whose completions are all taken, as far as the record says, ends the queue pair.
        record_completions(queue);
    }
    return {status, first};
}

ZEROHOP_DEVICE_FN void write_block(const WorkQueue* queue, Word index, const Block& block) {
    const Word at = queue->blocks + (index & (queue->slots - 1)) * sizeof(Block);
    for (unsigned i = 0; i < kWordsOfBlock; i += 4) {
        platform::store_pair(at + i * 4, block.words[i] | static_cast<Word>(block.words[i + 1]) << 32,
                             block.words[i + 2] | static_cast<Word>(block.words[i + 3]) << 32);
    }
}

} // namespace detail

} // namespace zerohop::device::mlx5
