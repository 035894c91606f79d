// The functions by which kernels write work requests into a send queue, ring its doorbell, and poll for completions.
// They have MORI's names.
//
// A KernelQueue's `pointer` is a `const zerohop::device::mlx5::WorkQueue*`. Requests, records, doorbells and
// completions are those of mlx5 NICs, and this process carries them out on any RDMA device. One thread makes each call;
// any number of threads may share a queue. Each request goes in these steps:
//
//     Posted posted = PostWrite(queue, local_address, local_key, remote_address, remote_key, nbytes);
//     UpdateSendDbrRecord(queue, posted);
//     RingDoorbell(queue, posted);
//     const Word status = PollCq(queue, posted);
//     UpdateCqDbrRecord(queue);
//
// After a failed step the next ones, up to PollCq(), return its status and do nothing. A kernel that has posted and
// does not ring the doorbell keeps all others waiting, until their time is up and the queue is over. Indices have 64
// bits and never wrap; the NIC's 16 bits are made of them. A queue pair that a NIC reads by itself is not verified on
// hardware.
#pragma once

#include "zerohop/device/mlx5.hpp"
#include "zerohop/device/platform.hpp"

namespace zerohop::device::mlx5 {

// Stands at the beginning of a WorkQueue, and changes with everything below.
constexpr Word kQueueLayout = 0x7a686d6c78350001;

struct WorkQueue {
    Word layout; // kQueueLayout
    Word number; // of the queue pair
    Word slots;  // blocks of the send queue, a power of two, 32,768 at most
    Word blocks; // address of the first Block
    Word record; // address of the doorbell record: two words of 32 bits, of which the second is the send queue's
    Word doorbell;
    Word completions;       // address of the first Entry
    Word completion_slots;  // as many as slots; 1: the NIC writes all of them to the same place ("collapsed")
    Word completion_record; // address of the number of completions that were taken, in 24 bits
    Word head;              // address of the index of the next free block; in memory of the device
    Word rung;              // address of the index up to which the doorbell was rung; likewise
    Word done;              // address of the index up to which requests have completed; likewise
    Word state;             // address of the state of the queue; the host and kernels write it
    Word timeout_ns;        // of every wait
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

struct Posted {
    Word status;
    Word index; // of its block
    Word doorbell;
};

namespace detail {

// Ends the queue for all, unless it has ended.
ZEROHOP_DEVICE_FN void give_up(const WorkQueue* queue, Word status) {
    (void)platform::swap_if(queue->state, kOk, status);
}

// Waits until `done`, a function, gives another answer than kBusy; ends with the queue's time, or its state.
constexpr Word kBusy = ~Word(0);
template <typename Done> ZEROHOP_DEVICE_FN Word wait(const WorkQueue* queue, Done done) {
    const Word until = platform::now_ns() + queue->timeout_ns;
    for (;;) {
        Word found = done();
        if (found != kBusy) {
            return found;
        }
        platform::relax();
        const Word state = platform::look(queue->state);
        if (state == kOk && platform::now_ns() <= until) {
            continue;
        }
        found = done(); // it may have come with the state
        return found != kBusy ? found : state != kOk ? state : kTimedOut;
    }
}

// Moves `done` on to a later index; another thread may have moved it further.
ZEROHOP_DEVICE_FN void move_on(const WorkQueue* queue, Word index) {
    Word seen = platform::look(queue->done);
    while (static_cast<long long>(index - seen) > 0) {
        const Word found = platform::swap_if(queue->done, seen, index);
        if (found == seen) {
            return;
        }
        seen = found;
    }
}

// Takes completions from where all are written to the same place: the counter there is of the last one. It is believed
// only as far as there are requests: it may be an old one, from 65,536 requests before.
ZEROHOP_DEVICE_FN Word take_collapsed(const WorkQueue* queue) {
    const Word last = platform::look(queue->completions + 56); // counter, signature and owner in one load
    const auto owner = static_cast<unsigned>(last >> 56);
    const auto counter = static_cast<unsigned>((last >> 32 & 0xff) << 8 | (last >> 40 & 0xff));
    if (owner >> 4 == kInvalid) {
        return kOk;
    }
    const Word done = platform::look(queue->done);
    const Word ahead = (counter + 1 - done) & kIndexMask;
    if (ahead == 0 || ahead > platform::look(queue->rung) - done) {
        return kOk;
    }
    if (owner >> 4 != kRequestEnded) {
        give_up(queue, kFailed);
        return kFailed;
    }
    move_on(queue, done + ahead);
    return kOk;
}

// Takes the next completion from a ring, if it is there: each has the parity of its lap.
ZEROHOP_DEVICE_FN Word take_from_ring(const WorkQueue* queue) {
    const Word done = platform::look(queue->done);
    const Word at = queue->completions + (done & (queue->completion_slots - 1)) * sizeof(Completed);
    const auto owner = static_cast<unsigned>(platform::look(at + 56) >> 56);
    const unsigned lap = (done & queue->completion_slots) != 0 ? 1 : 0;
    if (owner >> 4 == kInvalid || (owner & 1) != lap) {
        return kOk;
    }
    if (owner >> 4 != kRequestEnded) {
        give_up(queue, kFailed);
        return kFailed;
    }
    move_on(queue, done + 1);
    return kOk;
}

ZEROHOP_DEVICE_FN Word take_completions(const WorkQueue* queue) {
    return queue->completion_slots == 1 ? take_collapsed(queue) : take_from_ring(queue);
}

ZEROHOP_DEVICE_FN bool is_done(const WorkQueue* queue, Word index) {
    return static_cast<long long>(platform::look(queue->done) - index) > 0;
}

} // namespace detail

// Writes a request into the send queue: a write of 1 to kMostBytes. Waits while the queue is full.
ZEROHOP_DEVICE_FN Posted PostWrite(const WorkQueue* queue, Word local_address, unsigned local_key, Word remote_address,
                                   unsigned remote_key, Word nbytes) {
    if (queue->layout != kQueueLayout || nbytes == 0 || nbytes > kMostBytes) {
        return {kFailed, 0, 0};
    }
    const Word index = platform::add(queue->head, 1);
    const Word status = detail::wait(queue, [&] {
        if (index - platform::look(queue->done) < queue->slots) {
            return kOk;
        }
        const Word taken = detail::take_completions(queue);
        return taken == kOk ? detail::kBusy : taken;
    });
    if (status != kOk) {
        // Others wait for this request to be rung, and it never is: the queue ends here.
        detail::give_up(queue, status);
        return {status, index, 0};
    }
    Block block{};
    build_transfer(block, Opcode::write, index, static_cast<unsigned>(queue->number), {remote_address, remote_key},
                   {local_address, local_key}, nbytes, Completion::always);
    const Word at = queue->blocks + (index & (queue->slots - 1)) * sizeof(Block);
    for (unsigned i = 0; i < kWordsOfBlock; i += 2) {
        platform::note(at + i * 4, block.words[i] | static_cast<Word>(block.words[i + 1]) << 32);
    }
    return {kOk, index, doorbell_of(block)};
}

// Waits until the doorbell was rung for all requests before, and tells the NIC that this one is there.
ZEROHOP_DEVICE_FN Word UpdateSendDbrRecord(const WorkQueue* queue, Posted& posted) {
    if (posted.status != kOk) {
        return posted.status;
    }
    posted.status =
        detail::wait(queue, [&] { return platform::look(queue->rung) == posted.index ? kOk : detail::kBusy; });
    if (posted.status != kOk) {
        detail::give_up(queue, posted.status);
        return posted.status;
    }
    platform::order(); // the NIC sees the request after the bytes that it sends, and the record after the request
    platform::publish(queue->record, static_cast<Word>(record_of(posted.index + 1)) << 32);
    return kOk;
}

// Rings the doorbell, after UpdateSendDbrRecord(); the next request's turn comes.
ZEROHOP_DEVICE_FN Word RingDoorbell(const WorkQueue* queue, const Posted& posted) {
    if (posted.status != kOk || platform::look(queue->rung) != posted.index) {
        return posted.status != kOk ? posted.status : kFailed; // its record was not written
    }
    platform::publish(queue->doorbell, posted.doorbell);
    platform::publish(queue->rung, posted.index + 1);
    return kOk;
}

// Waits until a request has completed, with all before it.
ZEROHOP_DEVICE_FN Word PollCq(const WorkQueue* queue, const Posted& posted) {
    if (posted.status != kOk) {
        return posted.status;
    }
    return detail::wait(queue, [&] {
        if (detail::is_done(queue, posted.index)) {
            return kOk;
        }
        const Word taken = detail::take_completions(queue);
        return taken != kOk ? taken : detail::is_done(queue, posted.index) ? kOk : detail::kBusy;
    });
}

// Tells the NIC how many completions were taken, so that their places are free again.
ZEROHOP_DEVICE_FN void UpdateCqDbrRecord(const WorkQueue* queue) {
    constexpr unsigned kMask = 0xffffff;
    platform::publish(queue->completion_record, big(static_cast<unsigned>(platform::look(queue->done)) & kMask));
}

} // namespace zerohop::device::mlx5
