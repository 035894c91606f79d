// One kernel for each function of zerohop/device.hpp, named as those in kernels.py; each writes what it returns.
//
// SCOPE: which threads make a call together. Compiled for a GPU, or for the host, where one thread is the kernel.
#include "zerohop/device.hpp"

#if defined(ZEROHOP_HOST)
#define KERNEL extern "C"
static thread_local zerohop::device::Word this_block = 0;
extern "C" void set_block(zerohop::device::Word number) {
    this_block = number;
}
#define BLOCK this_block
#else
#define KERNEL extern "C" __global__
#define BLOCK static_cast<Word>(blockIdx.x)
#endif

namespace zd = zerohop::device;
using zd::Word;
constexpr zd::Scope kScope = zd::Scope::SCOPE;

struct Report {
    Word status;
    Word value;
};

ZEROHOP_DEVICE_FN void tell(Report* report, Word status, Word value = 0) {
    if (zd::platform::rank<kScope>() == 0) {
        *report = {status, value};
    }
}

KERNEL void put(const zd::Queue* queue, Report* report, Word peer, Word there, Word local, Word here, Word nbytes) {
    tell(report, zd::put<kScope>(queue, peer, there, local, here, nbytes));
}

KERNEL void get(const zd::Queue* queue, Report* report, Word peer, Word there, Word local, Word here, Word nbytes) {
    const Word status = zd::get<kScope>(queue, peer, there, local, here, nbytes);
    tell(report, status == zd::kOk ? zd::flush<kScope>(queue, peer) : status);
}

KERNEL void put_signal(const zd::Queue* queue, Report* report, Word peer, Word there, Word local, Word here,
                       Word nbytes, Word at, Word value) {
    tell(report, zd::put_signal<kScope>(queue, peer, there, local, here, nbytes, at, value));
}

KERNEL void signal(const zd::Queue* queue, Report* report, Word peer, Word at, Word value) {
    tell(report, zd::signal<kScope>(queue, peer, at, value));
}

KERNEL void signal_add(const zd::Queue* queue, Report* report, Word peer, Word at, Word value) {
    tell(report, zd::signal<kScope>(queue, peer, at, value, true));
}

KERNEL void wait_signal(const zd::Queue* queue, Report* report, Word local, Word at, Word value, Word peer) {
    tell(report, zd::wait_signal<kScope>(queue, local, at, value, peer));
}

KERNEL void flush(const zd::Queue* queue, Report* report, Word peer) {
    tell(report, zd::flush<kScope>(queue, peer));
}

KERNEL void fence(const zd::Queue* queue, Report* report, Word peer) {
    tell(report, zd::fence<kScope>(queue, peer));
}

KERNEL void quiet(const zd::Queue* queue, Report* report) {
    tell(report, zd::quiet<kScope>(queue));
}

// Each of these three calls functions with a status from before, and tells how many have returned another one.
KERNEL void transfers_after(const zd::Queue* queue, Report* report, Word peer, Word nbytes, Word at, Word status) {
    Word others = 0;
    others += zd::put<kScope>(queue, peer, 0, 0, 0, nbytes, zd::After(status)) != status;
    others += zd::get<kScope>(queue, peer, 0, 1, 0, nbytes, zd::After(status)) != status;
    others += zd::put_signal<kScope>(queue, peer, 0, 0, 0, nbytes, at, 1, false, zd::After(status)) != status;
    tell(report, status, others);
}

KERNEL void words_after(const zd::Queue* queue, Report* report, Word peer, Word at, Word status) {
    Word others = 0;
    others += zd::signal<kScope>(queue, peer, at, 1, false, zd::After(status)) != status;
    others += zd::signal<kScope>(queue, peer, at, 1, true, zd::After(status)) != status;
    others += zd::fetch_add<kScope>(queue, peer, at, 1, zd::After(status)).status != status;
    others += zd::compare_swap<kScope>(queue, peer, at, 0, 1, zd::After(status)).status != status;
    tell(report, status, others);
}

KERNEL void waits_after(const zd::Queue* queue, Report* report, Word peer, Word status) {
    Word others = 0;
    others += zd::fence<kScope>(queue, peer, zd::After(status)) != status;
    others += zd::wait_signal<kScope>(queue, 1, 0, ~Word(0) >> 1, peer, zd::After(status)) != status;
    others += zd::flush<kScope>(queue, peer, zd::After(status)) != status;
    others += zd::quiet<kScope>(queue, zd::After(status)) != status;
    tell(report, status, others);
}

KERNEL void fetch_add(const zd::Queue* queue, Report* report, Word peer, Word at, Word value) {
    const zd::Found found = zd::fetch_add<kScope>(queue, peer, at, value);
    tell(report, found.status, found.value);
}

KERNEL void compare_swap(const zd::Queue* queue, Report* report, Word peer, Word at, Word expected, Word desired) {
    const zd::Found found = zd::compare_swap<kScope>(queue, peer, at, expected, desired);
    tell(report, found.status, found.value);
}

// Puts the same bytes `count` times, one behind the other, and a fence between each two.
KERNEL void put_many(const zd::Queue* queue, Report* report, Word peer, Word local, Word nbytes, Word count) {
    Word status = zd::kOk;
    Word done = 0;
    while (done < count && status == zd::kOk) {
        status = zd::put<kScope>(queue, peer, done * nbytes, local, done * nbytes, nbytes);
        status = status == zd::kOk ? zd::fence<kScope>(queue, peer) : status;
        done += status == zd::kOk ? 1 : 0;
    }
    tell(report, status == zd::kOk ? zd::flush<kScope>(queue, peer) : status, done);
}

// Sends each part of local 0 to peer 0 in a round of its own, and waits for its part in local 1.
KERNEL void ping_pong(const zd::Queue* queue, Report* report, Word first, Word rounds, Word nbytes) {
    Word status = zd::kOk;
    Word done = 0;
    for (; done < rounds && status == zd::kOk; ++done) {
        const Word turn = done + 1;
        if (first == 0) {
            status = zd::wait_signal<kScope>(queue, 1, 0, turn, 0);
        }
        if (status == zd::kOk) {
            status = zd::put_signal<kScope>(queue, 0, 8 + done * nbytes, 0, done * nbytes, nbytes, 0, turn);
        }
        if (first != 0 && status == zd::kOk) {
            status = zd::wait_signal<kScope>(queue, 1, 0, turn, 0);
        }
    }
    tell(report, status == zd::kOk ? zd::quiet<kScope>(queue) : status, done);
}

// Each block puts `count` parts of local 0 to places of its own, and then adds 1 to a signal.
KERNEL void put_blocks(const zd::Queue* queue, Report* report, Word nbytes, Word count, Word at) {
    Word status = zd::kOk;
    for (Word i = 0; i < count && status == zd::kOk; ++i) {
        const Word place = (BLOCK * count + i) * nbytes;
        status = zd::put<kScope>(queue, 0, place, 0, place, nbytes);
    }
    status = status == zd::kOk ? zd::signal<kScope>(queue, 0, at, 1, true) : status;
    status = status == zd::kOk ? zd::flush<kScope>(queue, 0) : status;
    if (status != zd::kOk) {
        tell(report, status, BLOCK);
    }
}

// Each block gets a part of the peer's memory into local 1, flushes, and looks whether its last word has come.
KERNEL void get_blocks(const zd::Queue* queue, Report* report, Word nbytes, Word poison) {
    const Word place = BLOCK * nbytes;
    Word status = zd::get<kScope>(queue, 0, place, 1, place, nbytes);
    status = status == zd::kOk ? zd::flush<kScope>(queue, 0) : status;
    if (status == zd::kOk &&
        zd::platform::load_acquire(queue->locals[1].base + place + nbytes - sizeof(Word)) == poison) {
        status = 99;
    }
    if (status != zd::kOk) {
        tell(report, status, BLOCK);
    }
}
