// Measures what kernels over NVSHMEM need for the rows of `zerohop bench device_ping device_put`: one process per GPU.
//
//     nvshmem RANK FILE
//
// FILE is where rank 0 leaves the identifier by which the processes meet. Rank 0 prints one line of JSON per row:
// `{"name", "bytes", "blocks", "ns"}`, the nanoseconds of half a round trip, or of one put of all blocks together.
// Bytes that arrived are compared; a wrong one ends the program with an error.

#include <cuda_runtime.h>
#include <nvshmem.h>
#include <nvshmemx.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr std::size_t kMost = 256u << 20;
constexpr int kRepeats = 5;

void must(bool good, const char* what) {
    if (!good) {
        std::fprintf(stderr, "nvshmem.cu: %s\n", what);
        std::exit(1);
    }
}

void check(cudaError_t error) {
    must(error == cudaSuccess, cudaGetErrorString(error));
}

__device__ std::uint64_t now() {
    std::uint64_t time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    return time;
}

__global__ void ping(char* target, const char* source, std::uint64_t* flag, std::size_t nbytes, std::uint64_t base,
                     int rounds, int rank, std::uint64_t* times) {
    for (int turn = 1; turn <= rounds; ++turn) {
        if (threadIdx.x == 0 && turn == rounds / 8) {
            times[0] = now();
        }
        if (rank != 0) {
            if (threadIdx.x == 0) {
                nvshmem_signal_wait_until(flag, NVSHMEM_CMP_GE, base + turn);
            }
            __syncthreads();
        }
        nvshmemx_putmem_signal_block(target, source, nbytes, flag, base + turn, NVSHMEM_SIGNAL_SET, 1 - rank);
        if (rank == 0) {
            if (threadIdx.x == 0) {
                nvshmem_signal_wait_until(flag, NVSHMEM_CMP_GE, base + turn);
            }
            __syncthreads();
        }
    }
    if (threadIdx.x == 0) {
        times[1] = now();
    }
}

__global__ void put(char* target, const char* source, std::size_t nbytes, int rounds, int peer) {
    const std::size_t share = nbytes / gridDim.x / 16 * 16;
    const std::size_t begin = blockIdx.x * share;
    const std::size_t part = blockIdx.x == gridDim.x - 1 ? nbytes - begin : share;
    for (int turn = 0; turn < rounds; ++turn) {
        nvshmemx_putmem_block(target + begin, source + begin, part, peer);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        nvshmem_quiet();
    }
}

void join(int rank, const std::string& path) {
    nvshmemx_uniqueid_t id = NVSHMEMX_UNIQUEID_INITIALIZER;
    if (rank == 0) {
        must(nvshmemx_get_uniqueid(&id) == 0, "there is no identifier");
        const std::string part = path + ".part";
        std::FILE* file = std::fopen(part.c_str(), "wb");
        must(file != nullptr && std::fwrite(&id, sizeof id, 1, file) == 1, "the file cannot be written");
        std::fclose(file);
        must(std::rename(part.c_str(), path.c_str()) == 0, "the file cannot be renamed");
    } else {
        std::FILE* file = nullptr;
        // The file appears whole, once rank 0 has renamed it.
        for (int tries = 0; tries < 3000 && file == nullptr; ++tries) {
            file = std::fopen(path.c_str(), "rb");
            std::this_thread::sleep_for(std::chrono::milliseconds(file == nullptr ? 10 : 0));
        }
        must(file != nullptr && std::fread(&id, sizeof id, 1, file) == 1, "rank 0 has left no identifier");
        std::fclose(file);
    }
    nvshmemx_init_attr_t attributes = NVSHMEMX_INIT_ATTR_INITIALIZER;
    must(nvshmemx_set_attr_uniqueid_args(rank, 2, &id, &attributes) == 0, "the identifier is not taken");
    must(nvshmemx_init_attr(NVSHMEMX_INIT_WITH_UNIQUEID, &attributes) == 0, "NVSHMEM does not start");
}

// Fills the source with bytes of this rank and turn, and poisons the target.
void fill(char* source, char* target, std::size_t nbytes, int seed) {
    check(cudaMemset(source, seed & 0x7F, nbytes));
    check(cudaMemset(target, 0xA5, nbytes));
    check(cudaDeviceSynchronize());
    nvshmem_barrier_all();
}

void compare(const char* target, std::size_t nbytes, int seed) {
    nvshmem_barrier_all();
    std::vector<char> found(nbytes);
    check(cudaMemcpy(found.data(), target, nbytes, cudaMemcpyDeviceToHost));
    for (const char each : found) {
        must(each == static_cast<char>(seed & 0x7F), "a byte is wrong");
    }
}

void report(int rank, const char* name, std::size_t nbytes, int blocks, double nanoseconds) {
    if (rank == 0) {
        std::printf("{\"name\": \"%s\", \"bytes\": %zu, \"blocks\": %d, \"ns\": %.1f}\n", name, nbytes, blocks,
                    nanoseconds);
    }
}

}  // namespace

int main(int argc, char** argv) {
    must(argc == 3, "type: nvshmem RANK FILE");
    const int rank = std::atoi(argv[1]);
    check(cudaSetDevice(rank));
    join(rank, argv[2]);
    auto* source = static_cast<char*>(nvshmem_malloc(kMost));
    auto* target = static_cast<char*>(nvshmem_malloc(kMost));
    auto* flag = static_cast<std::uint64_t*>(nvshmem_calloc(1, sizeof(std::uint64_t)));
    must(source != nullptr && target != nullptr && flag != nullptr, "there is no symmetric memory");
    std::uint64_t* times = nullptr;
    check(cudaMallocHost(&times, 2 * sizeof *times));
    std::uint64_t base = 0;
    int seed = 0;
    for (int repeat = 0; repeat <= kRepeats; ++repeat) {  // the first one only warms up
        for (const std::size_t nbytes : {std::size_t{4}, std::size_t{8} << 10, std::size_t{64} << 10}) {
            const int rounds = nbytes < (32u << 10) ? 2000 : 500;
            const int threads = nbytes <= 1024 ? 32 : nbytes < (32u << 10) ? 128 : 512;
            ++seed;
            fill(source, target, nbytes, seed * 2 + rank);
            ping<<<1, threads>>>(target, source, flag, nbytes, base, rounds, rank, times);
            check(cudaDeviceSynchronize());
            base += rounds;
            compare(target, nbytes, seed * 2 + 1 - rank);
            if (repeat > 0) {
                report(rank, "device_ping", nbytes, 1,
                       static_cast<double>(times[1] - times[0]) / (rounds - rounds / 8 + 1) / 2);
            }
        }
        for (const std::size_t nbytes : {std::size_t{1} << 20, kMost}) {
            for (const int blocks : {128, 8}) {
                const int rounds = nbytes < kMost ? 400 : 16;
                ++seed;
                fill(source, target, nbytes, seed * 2 + rank);
                if (rank == 0) {
                    const auto begin = std::chrono::steady_clock::now();
                    put<<<blocks, 512>>>(target, source, nbytes, rounds, 1);
                    check(cudaDeviceSynchronize());
                    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
                    if (repeat > 0) {
                        report(rank, "device_put", nbytes, blocks, took.count() / rounds);
                    }
                }
                nvshmem_barrier_all();
                if (rank == 1) {
                    compare(target, nbytes, seed * 2);
                } else {
                    nvshmem_barrier_all(); // compare() begins with one
                }
            }
        }
    }
    nvshmem_finalize();
    return 0;
}
