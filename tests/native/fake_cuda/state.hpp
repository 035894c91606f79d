// Stands in for libcuda with GPUs in software: its functions work on simulated devices, so that everything above the
// driver's interface runs and is tested without a GPU.
//
// The same sources stand in for AMD's library, libamdhip64, with tests/native/fake_hip.
//
// There are FAKE_CUDA_DEVICES (2) devices, seen through CUDA_VISIBLE_DEVICES like real ones; AMD's are
// FAKE_HIP_DEVICES, seen through HIP_VISIBLE_DEVICES. Memory is a sim device's, which the processor cannot touch;
// streams are threads. Kernels are those of src/zerohop/core/kernels by their names.
#pragma once

#include "accel/sim/sim.hpp"
#include "accel/sim/sim_stream_core.hpp"
#include "fake_cuda/vendor.hpp"

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <vector>

namespace fake {

using zerohop::accel::Event;
using zerohop::accel::sim::StreamCore;

constexpr int kSuccess = 0;
constexpr int kInvalidValue = 1;
constexpr int kOutOfMemory = 2;
constexpr int kNoDevice = 100;
constexpr int kInvalidContext = 201;
constexpr int kInvalidHandle = 400;
constexpr int kNotFound = 500;
constexpr int kNotReady = 600;
constexpr int kHostRegistered = 712;
constexpr int kNotSupported = 801;
constexpr int kCaptureUnsupported = 900;

struct Stream {
    std::unique_ptr<zerohop::accel::Stream> stream;
    uint64_t native = 0;
    std::shared_ptr<Event> last;
    StreamCore& core() const { return *reinterpret_cast<StreamCore*>(native); }
    int device() const { return core().device->index; }
};

struct Context {
    int device = 0; // by this process's number
    Stream legacy;  // stream 0
};

struct Range {
    size_t nbytes = 0;
    int device = -1; // -1: host
    uint64_t id = 0;
    bool ours = false;    // this process's own, which can be shared
    void* pool = nullptr; // the pool that it comes from
    bool managed = false;
    bool sync_memops = false;
};

// A handle of memory for another process: a descriptor of its owner, which others reach through /proc.
struct SharedHandle {
    int pid;
    int fd;
    uint64_t mapped;
    uint64_t nbytes;
    char padding[40];
};
static_assert(sizeof(SharedHandle) == 64);

struct State {
    std::recursive_mutex mutex;
    std::shared_ptr<zerohop::accel::SimDriver> driver;
    std::vector<std::shared_ptr<zerohop::accel::Device>> devices;
    std::vector<int> numbers; // the machine's numbers, by this process's
    std::vector<std::unique_ptr<Context>> contexts;
    std::map<uint64_t, Range> ranges;
    std::map<uint64_t, std::pair<std::shared_ptr<zerohop::accel::Imported>, int>> opened; // with the number of opens
    std::map<uint64_t, SharedHandle> given;                                               // by the id of the range
    uint64_t next_id = 1;
    std::shared_mutex entry;

    [[nodiscard]] std::map<uint64_t, Range>::iterator find(uint64_t address);
};

[[nodiscard]] State& state();
// Returns the current context of this thread; null if there is none.
[[nodiscard]] Context* current();
// Returns the device's primary context, made on first use.
[[nodiscard]] Context* context_of(int device);
// Returns the stream, or stream 0 if `stream` is null; null without a context.
[[nodiscard]] Stream* stream_of(void* stream);
[[nodiscard]] int give(uint64_t address, const Range& range, SharedHandle& handle);
[[nodiscard]] int take(const SharedHandle& handle, int device, uint64_t& address);
// Translates an address of virtual memory to the one that streams use. refused: not all of the range is mapped, or the
// device was given no access. elsewhere: the range is no virtual memory.
enum class Reach : uint8_t { elsewhere, refused, reached };
[[nodiscard]] Reach reach(uint64_t& address, size_t nbytes, int device);
// Returns the file of the allocation that begins there, still owned by it; -1 if none of virtual memory does.
[[nodiscard]] int file_of(uint64_t address);
// Translates the address for the stream. As with the real driver, the range lies within one that the driver knows, or
// touches none.
[[nodiscard]] bool find(uint64_t& address, size_t nbytes, const Stream& stream);
void wait_for(const Event& event);
// As seen on an H200 with driver 580, the calls that free, unregister, close and load wait until all streams of the
// device (of all devices if it is negative) have finished what is queued on them, and meanwhile let no call in that
// queues, allocates, registers or opens something. Each call of the second kind has an Entry.
struct IdleEntry {
    explicit IdleEntry(int device);
    std::unique_lock<std::shared_mutex> lock;
};
struct Entry {
    Entry();
    std::shared_lock<std::shared_mutex> lock;
};
// True if FAKE_CUDA_FULL is set: nothing more can be allocated.
[[nodiscard]] bool full();
// True if FAKE_CUDA_DMA_BUF is set: NICs may have memory by dma-buf, which here is a plain file of it.
[[nodiscard]] bool exports_dma_buf();
[[nodiscard]] bool make_stream(int device, Stream& stream);

} // namespace fake

#define FAKE_CUDA extern "C" [[gnu::visibility("default")]] int
