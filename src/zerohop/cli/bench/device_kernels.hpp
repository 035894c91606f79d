// The C++ kernels of the rows about kernels that send: the same as in device_kernels.py, called by all threads of a
// block, except post(), whose threads each post for themselves.
#include "zerohop/device.hpp"

namespace zd = zerohop::device;
using zd::Word;

enum How : Word { kQueue, kUntimed, kPlain };

struct Out {
    Word status;
    Word begun;
    Word ended;
};

constexpr Word kPayloadAt = 4096; // in an inbox, behind its signal
constexpr Word kSpins = 1 << 26;

struct Places {
    __device__ explicit Places(const zd::Queue* queue)
        : target(queue->peers[0].base), source(queue->locals[0].base), inbox(queue->locals[1].base) {}
    Word target;
    Word source;
    Word inbox;
};

__device__ Word spin(Word at, Word value, bool near) {
    Word spins = 0;
    if (threadIdx.x == 0) {
        while ((near ? zd::platform::load_near(at) : zd::platform::load_relaxed(at)) < value && spins < kSpins) {
            ++spins;
        }
    }
    return __syncthreads_or(spins >= kSpins) ? zd::kTimedOut : zd::kOk;
}

__device__ Word wait(const zd::Queue* queue, Word inbox, Word value, Word how) {
    return how == kQueue ? zd::wait_signal(queue, 1, 0, value, 0) : spin(inbox, value, true);
}

// Both addresses are aligned to 16, and lie in memory of GPUs.
__device__ void copy_plain(Word to, Word from, Word nbytes) {
    constexpr unsigned kAtOnce = 4;
    const unsigned pieces = static_cast<unsigned>(nbytes / sizeof(uint4));
    const unsigned step = blockDim.x;
    auto* out = reinterpret_cast<uint4*>(to);
    auto* in = reinterpret_cast<const uint4*>(from);
    __builtin_assume(__isGlobal(out));
    __builtin_assume(__isGlobal(in));
    unsigned i = threadIdx.x;
    for (; i + (kAtOnce - 1) * step < pieces; i += kAtOnce * step) {
        uint4 held[kAtOnce];
        for (unsigned k = 0; k < kAtOnce; ++k) {
            held[k] = in[i + k * step];
        }
        for (unsigned k = 0; k < kAtOnce; ++k) {
            out[i + k * step] = held[k];
        }
    }
    for (; i < pieces; i += step) {
        out[i] = in[i];
    }
    auto* last_out = reinterpret_cast<unsigned char*>(out + pieces);
    auto* last_in = reinterpret_cast<const unsigned char*>(in + pieces);
    for (unsigned k = threadIdx.x; k < nbytes % sizeof(uint4); k += step) {
        last_out[k] = last_in[k];
    }
}

extern "C" __global__ void ping(const zd::Queue* queue, Out* out, Word first, Word base, Word rounds, Word nbytes,
                                Word how) {
    const Places places(queue);
    Word status = zd::kOk;
    Word begun = zd::platform::now_ns();
    for (Word turn = 1; turn <= rounds && status == zd::kOk; ++turn) {
        if (turn == rounds / 8) {
            begun = zd::platform::now_ns();
        }
        if (first == 0) {
            status = wait(queue, places.inbox, base + turn, how);
        }
        if (how != kPlain) {
            status = zd::put_signal(queue, 0, kPayloadAt, 0, 0, nbytes, 0, base + turn, false, zd::After(status));
        } else if (status == zd::kOk) {
            copy_plain(places.target + kPayloadAt, places.source, nbytes);
            __syncthreads();
            if (threadIdx.x == 0) {
                zd::platform::store_release(places.target, base + turn);
            }
        }
        if (first != 0 && status == zd::kOk) {
            status = wait(queue, places.inbox, base + turn, how);
        }
    }
    if (threadIdx.x == 0) {
        *out = {status, begun, zd::platform::now_ns()};
    }
}

extern "C" __global__ void put(const zd::Queue* queue, Out* out, Word nbytes, Word rounds, Word how) {
    const Places places(queue);
    const Word even = nbytes / gridDim.x / sizeof(uint4) * sizeof(uint4);
    const Word begin = blockIdx.x * even;
    // The last block takes the rest, too.
    const Word share = blockIdx.x + 1 == gridDim.x ? nbytes - begin : even;
    Word status = zd::kOk;
    for (Word turn = 0; turn < rounds && status == zd::kOk; ++turn) {
        if (how == kPlain) {
            copy_plain(places.target + kPayloadAt + begin, places.source + begin, share);
        } else {
            status = zd::put(queue, 0, kPayloadAt + begin, 0, begin, share);
        }
    }
    if (how != kPlain && status == zd::kOk) {
        status = zd::flush(queue, 0);
    }
    if (status != zd::kOk && threadIdx.x == 0) {
        out->status = status;
    }
}

extern "C" __global__ void post(const zd::Queue* queue, Out* out, Word count, Word nbytes) {
    constexpr auto kThread = zd::Scope::thread;
    const Word threads = gridDim.x * blockDim.x;
    const Word first = blockIdx.x * blockDim.x + threadIdx.x;
    Word status = zd::kOk;
    for (Word done = 0; done < count && status == zd::kOk; ++done) {
        const Word at = (first + done * threads) * nbytes;
        status =
            nbytes == 0 ? zd::fence<kThread>(queue, 0) : zd::put<kThread>(queue, 0, kPayloadAt + at, 0, at, nbytes);
    }
    status = status == zd::kOk ? zd::flush<kThread>(queue, 0) : status;
    if (status != zd::kOk) {
        out->status = status;
    }
}

extern "C" __global__ void turns(const zd::Queue* queue, Out* out, Word rounds, Word how) {
    const Places places(queue);
    Word status = zd::kOk;
    Word begun = zd::platform::now_ns();
    for (Word turn = 1; turn <= rounds && status == zd::kOk; ++turn) {
        if (turn == rounds / 8) {
            begun = zd::platform::now_ns();
        }
        if (how == kPlain) {
            if (threadIdx.x == 0) {
                zd::platform::store_relaxed(places.source, turn);
            }
            status = spin(places.inbox, turn, false);
        } else {
            status = zd::fence(queue, 0);
            status = status == zd::kOk ? zd::flush(queue, 0) : status;
        }
    }
    if (threadIdx.x == 0) {
        *out = {status, begun, zd::platform::now_ns()};
    }
}
