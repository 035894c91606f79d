// Declares how kernels reach a peer through a queue pair of their own: the requests of put(), get(), signal() and the
// others, each of which one thread posts. Not verified on hardware.
//
// With relaxed ordering the bytes of two writes may become visible in either order. So a signal follows a read of one
// byte of the peer's memory, and the NIC begins the signal when the read has completed: by then all earlier writes are
// visible, as no read passes them. flush() posts such a read and waits for it.
#pragma once

#include "zerohop/device/layout.hpp"
#include "zerohop/device/platform.hpp"
#include "zerohop/device/tables.hpp"
#include "zerohop/device/waits.hpp"
#include "zerohop/device/work_queue.hpp"

namespace zerohop::device {

// Tells kernels how to post to one peer. `Peer::ended` is its address in the mode kMlx5.
struct Pair {
    Word queue; // address of a mlx5::WorkQueue, whose state is the peer's
    Word remote_key;
    Word unread;      // address of a word that the NIC writes and nobody reads
    Word found;       // address of the word to which the NIC writes what an atomic has found
    Word scratch_key; // of both
    Word lock;        // address of a word that is not 0 while `found` is in use; in memory of the device
    Word local_keys;  // address of the keys of the locals, each in a word; likewise
};

namespace detail {

namespace pair {

ZEROHOP_DEVICE_FN const Pair* of(const Peer& peer) {
    return reinterpret_cast<const Pair*>(platform::pointer(peer.ended));
}

ZEROHOP_DEVICE_FN const mlx5::WorkQueue* queue_of(const Peer& peer) {
    return reinterpret_cast<const mlx5::WorkQueue*>(platform::pointer(of(peer)->queue));
}

// Posts one request, which `build` makes for its index.
template <typename Build> ZEROHOP_DEVICE_FN mlx5::Posted post(const Peer& peer, Build build) {
    const mlx5::WorkQueue* queue = queue_of(peer);
    if (platform::load_relaxed(reinterpret_cast<Word>(&queue->layout)) != mlx5::kQueueLayout) {
        return {kClosed, 0, 0};
    }
    if ((platform::load_near(peer.posted) & kFailure) != 0) { // nothing follows a call that was refused
        return {kFailed, 0, 0};
    }
    const Found place = mlx5::detail::reserve(queue, 1);
    mlx5::Posted posted{place.status, place.value, 0};
    if (posted.status == kOk) {
        mlx5::Block block{};
        build(block, place.value, static_cast<unsigned>(queue->number));
        mlx5::detail::write_block(queue, place.value, block);
        (void)mlx5::UpdateSendDbrRecord(queue, posted);
        (void)mlx5::RingDoorbell(queue, posted);
    }
    return posted;
}

// Posts a read of one byte of the peer's memory. It completes only after all earlier writes are visible there.
ZEROHOP_DEVICE_FN mlx5::Posted post_read_back(const Peer& peer, mlx5::Completion completion) {
    const Pair* pair = of(peer);
    return post(peer, [&](mlx5::Block& block, Word index, unsigned number) {
        mlx5::build_transfer(block, mlx5::Opcode::read, index, number,
                             {peer.base, static_cast<unsigned>(pair->remote_key)},
                             {pair->unread, static_cast<unsigned>(pair->scratch_key)}, 1, completion);
    });
}

// The functions below take indices. Passing an entry by address would force it out of registers in every caller.
ZEROHOP_OUT_OF_LINE Word transfer(const Queue* queue, Op op, Word peer_number, Word there, Word local_number, Word here,
                                  Word nbytes) {
    const Peer peer = peer_of(queue, peer_number);
    const Local local = local_of(queue, local_number);
    const Pair* pair = of(peer);
    const auto local_key = static_cast<unsigned>(platform::pointer(pair->local_keys)[local_number]);
    Word status = kOk;
    for (Word done = 0; done < nbytes && status == kOk;) {
        const Word some = nbytes - done < mlx5::kMostBytes ? nbytes - done : mlx5::kMostBytes;
        const mlx5::Posted posted = post(peer, [&](mlx5::Block& block, Word index, unsigned number) {
            mlx5::build_transfer(block, op == Op::put ? mlx5::Opcode::write : mlx5::Opcode::read, index, number,
                                 {peer.base + there + done, static_cast<unsigned>(pair->remote_key)},
                                 {local.base + here + done, local_key}, some, mlx5::Completion::always);
        });
        status = posted.status;
        done += some;
    }
    return status;
}

ZEROHOP_OUT_OF_LINE Word signal(const Queue* queue, Word peer_number, Word offset, Word value, bool add) {
    const Peer peer = peer_of(queue, peer_number);
    const Pair* pair = of(peer);
    const Word status = post_read_back(peer, mlx5::Completion::always).status;
    if (status != kOk) {
        return status;
    }
    const mlx5::Place word{peer.base + offset, static_cast<unsigned>(pair->remote_key)};
    const mlx5::Posted posted = post(peer, [&](mlx5::Block& block, Word index, unsigned number) {
        if (add) {
            mlx5::build_atomic(block, mlx5::Opcode::fetch_add, index, number, word,
                               {pair->unread, static_cast<unsigned>(pair->scratch_key)}, value, 0,
                               mlx5::Completion::always_fenced);
        } else {
            unsigned char bytes[sizeof(Word)];
            for (unsigned i = 0; i < sizeof(Word); ++i) {
                bytes[i] = static_cast<unsigned char>(value >> (8 * i));
            }
            mlx5::build_inline_write(block, index, number, word, bytes, sizeof(Word), mlx5::Completion::always_fenced);
        }
    });
    return posted.status;
}

// Has the NIC begin nothing more until all that was posted before can be seen at the peer.
ZEROHOP_OUT_OF_LINE Word fence(const Queue* queue, Word peer_number) {
    const Peer peer = peer_of(queue, peer_number);
    const Word status = post_read_back(peer, mlx5::Completion::always).status;
    return status == kOk ? post_read_back(peer, mlx5::Completion::always_fenced).status : status;
}

// Waits until all that was posted before can be seen at the peer, and gets have arrived.
ZEROHOP_OUT_OF_LINE Word flush(const Queue* queue, Word peer_number) {
    const Peer peer = peer_of(queue, peer_number);
    return mlx5::PollCq(queue_of(peer), post_read_back(peer, mlx5::Completion::always));
}

// Changes a word after all earlier requests, and waits for the value from before.
ZEROHOP_OUT_OF_LINE Found atomic(const Queue* queue, Word peer_number, mlx5::Opcode opcode, Word offset, Word operand,
                                 Word compare) {
    const Peer peer = peer_of(queue, peer_number);
    const Pair* pair = of(peer);
    Word status = mlx5::detail::wait(
        queue_of(peer), [&] { return platform::compare_swap_near(pair->lock, 0, 1) == 0 ? kOk : mlx5::detail::kBusy; });
    if (status != kOk) {
        return {status, 0};
    }
    Found found{post_read_back(peer, mlx5::Completion::always).status, 0};
    if (found.status == kOk) {
        found.status =
            mlx5::PollCq(queue_of(peer), post(peer, [&](mlx5::Block& block, Word index, unsigned number) {
                             mlx5::build_atomic(block, opcode, index, number,
                                                {peer.base + offset, static_cast<unsigned>(pair->remote_key)},
                                                {pair->found, static_cast<unsigned>(pair->scratch_key)}, operand,
                                                compare, mlx5::Completion::always_fenced);
                         }));
        found.value = found.status == kOk ? platform::load_acquire(pair->found) : 0;
    }
    // Also where the time is up. Requests end in their order, so the NIC writes the word for the last time when the
    // next holder's request has completed.
    platform::store_near(pair->lock, 0);
    return found;
}

} // namespace pair

} // namespace detail

} // namespace zerohop::device
