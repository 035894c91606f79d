// The functions by which kernels write work requests into a send queue, ring its doorbell, and poll for completions.
// They have MORI's names.
//
// A KernelQueue's `pointer` is a `const zerohop::device::mlx5::WorkQueue*`. Kernels write requests in the form of mlx5
// NICs. With `doorbell="host"` the host's process reads them, and posts them to any RDMA device; with `doorbell="nic"`
// an mlx5 NIC reads them (not verified on hardware).
//
// Any number of threads may share a queue. With Scope::thread a thread posts by itself. With Scope::warp all threads of
// a full warp make each call together, each with its own addresses and keys. Each request goes in these steps:
//
//     Posted posted = PostWrite(queue, local_address, local_key, remote_address, remote_key, nbytes);
//     UpdateSendDbrRecord(queue, posted);
//     RingDoorbell(queue, posted);
//     const Word status = PollCq(queue, posted);
//     UpdateCqDbrRecord(queue);
//
// Each step returns kOk, kTimedOut, kFailed or kClosed. After a failed step the next ones, up to PollCq(), do nothing
// and return the same status. A thread that has called PostWrite() has to call UpdateSendDbrRecord() and
// RingDoorbell(). Otherwise the other threads wait until the queue's timeout, and a timeout in PostWrite() or
// UpdateSendDbrRecord() ends the queue for all.
//
// One of the threads that post at the same time writes the record and rings the doorbell for all of them, because the
// fences around both take long; the other threads only hand their requests over. Indices have 64 bits and never wrap;
// the NIC's 16 bits are made of them.
#pragma once

#include "zerohop/device/mlx5.hpp"
#include "zerohop/device/platform.hpp"
#include "zerohop/device/queue_steps.hpp"
#include "zerohop/device/threads.hpp"

namespace zerohop::device::mlx5 {

// Writes a request into the send queue: a write of 1 to kMostBytes. Waits while the queue is full. Of a warp either all
// requests are posted or none.
template <Scope kScope = Scope::thread>
ZEROHOP_DEVICE_FN Posted PostWrite(const WorkQueue* queue, Word local_address, unsigned local_key, Word remote_address,
                                   unsigned remote_key, Word nbytes) {
    static_assert(kScope != Scope::block, "threads post alone, or as a warp");
    const Word count = platform::size<kScope>();
    if (queue->layout != kQueueLayout) {
        return {kFailed, 0, 0};
    }
    if (!platform::is_whole<kScope>() || (count > 1 && 2 * count > queue->most)) {
        return {detail::give_up(queue, kFailed), 0, 0};
    }
    if (platform::any<kScope>(nbytes == 0 || nbytes > kMostBytes)) {
        return {kFailed, 0, 0};
    }
    Found place{kOk, 0};
    if (platform::is_first<kScope>()) {
        place = detail::reserve(queue, count);
    }
    const Word index = platform::from_first<kScope>(place.value) + platform::rank<kScope>();
    const Word status = platform::from_first<kScope>(place.status);
    if (status != kOk) {
        return {status, index, 0};
    }
    Block block{};
    build_transfer(block, Opcode::write, index, static_cast<unsigned>(queue->number), {remote_address, remote_key},
                   {local_address, local_key}, nbytes, Completion::always);
    detail::write_block(queue, index, block);
    return {kOk, index, 0};
}

// Waits until all requests before are ready, and makes this one ready, or those of the warp. If no other thread rings
// the doorbell, this one is to, and tells the NIC by the record that the requests are there.
template <Scope kScope = Scope::thread>
ZEROHOP_DEVICE_FN Word UpdateSendDbrRecord(const WorkQueue* queue, Posted& posted) {
    if (posted.status != kOk) { // the same for a whole warp
        return posted.status;
    }
    platform::barrier<kScope>();
    if (platform::is_first<kScope>()) {
        const Word end = posted.index + platform::size<kScope>();
        const Word before = detail::turn_of(posted.index);
        const Word after = detail::turn_of(end);
        posted.status = detail::wait(queue, [&] {
            const Word found = platform::load_relaxed(queue->turn);
            if (detail::ready_of(found) != posted.index ||
                platform::compare_swap_near(queue->turn, found, after | kRinging) != found) {
                return detail::kBusy;
            }
            posted.rings = found == before ? end : 0; // otherwise the one that rings finds these when it ends
            return kOk;
        });
        if (posted.status != kOk) {
            posted.status = detail::give_up(queue, posted.status);
        } else if (posted.rings != 0) {
            detail::record(queue, posted.rings);
        }
    }
    posted.status = platform::from_first<kScope>(posted.status);
    return posted.status;
}

// Rings the doorbell after UpdateSendDbrRecord(), for all requests that have become ready.
template <Scope kScope = Scope::thread>
ZEROHOP_DEVICE_FN Word RingDoorbell(const WorkQueue* queue, Posted& posted) {
    while (posted.status == kOk && posted.rings != 0) { // only of one thread
        platform::fence();                              // the doorbell comes after the record
        platform::store_relaxed(queue->doorbell, doorbell_of(posted.rings - 1, static_cast<unsigned>(queue->number)));
        const Word rung = detail::turn_of(posted.rings);
        const Word found = platform::compare_swap_near(queue->turn, rung | kRinging, rung);
        posted.rings = found == (rung | kRinging) ? 0 : detail::ready_of(found);
        if (posted.rings != 0) {
            detail::record(queue, posted.rings);
        }
    }
    platform::barrier<kScope>();
    return posted.status;
}

// Waits until a request has completed, with all before it; of a warp, until all of its requests have.
template <Scope kScope = Scope::thread> ZEROHOP_DEVICE_FN Word PollCq(const WorkQueue* queue, const Posted& posted) {
    if (posted.status != kOk) {
        return posted.status;
    }
    Word status = kOk;
    if (platform::is_first<kScope>()) {
        const Word last = posted.index + platform::size<kScope>() - 1;
        status = detail::wait(queue, [&] {
            if (detail::is_done(queue, last)) {
                return kOk;
            }
            const Word taken = detail::take_completions(queue);
            return taken != kOk ? taken : detail::is_done(queue, last) ? kOk : detail::kBusy;
        });
    }
    return platform::from_first<kScope>(status);
}

// Tells the NIC how many completions were taken, so that their places are free again. PostWrite() does that, too, from
// time to time.
template <Scope kScope = Scope::thread> ZEROHOP_DEVICE_FN void UpdateCqDbrRecord(const WorkQueue* queue) {
    if (platform::is_first<kScope>()) {
        detail::record_completions(queue);
    }
}

} // namespace zerohop::device::mlx5
