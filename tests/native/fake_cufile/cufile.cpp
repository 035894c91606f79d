#include "shim/cufile.hpp"

#include "fake_cufile/control.hpp"

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <fcntl.h>
#include <memory>
#include <mutex>
#include <unistd.h>

// fake_cuda defines these.
extern "C" int cuMemcpyAsync(uint64_t dst, uint64_t src, size_t nbytes, void* stream);
extern "C" int cuStreamCreate(void** stream, unsigned flags);
extern "C" int cuStreamSynchronize(void* stream);
extern "C" int cuStreamDestroy_v2(void* stream);

namespace {

using zerohop::shim::CuFileDescription;
using zerohop::shim::CuFileError;

constexpr int kNotOpen = 5001;
constexpr int kBadAddress = 5012;
constexpr int kNoDirectIo = 5020;
constexpr int kBadArgument = 5022;
constexpr int kAlreadyOpen = 5026;
constexpr int kNoContext = 5047;
constexpr int kCudaNoContext = 201;
constexpr size_t kAlignment = 4096;

struct State {
    std::mutex mutex;
    std::condition_variable changed;
    bool open = false;
    bool compat = true; // as cuFile's own settings are
    bool force = false;
    int refuses_driver = 0;
    int refuses_files = 0;
    int failures = 0;
    long result = 0;
    int error = 0;
    size_t most = 0;
    bool hold = false;
    int held = 0;
    int calls = 0;
    int files = 0;
};

struct File {
    int fd;
};

State& state() {
    static State* const one = [] {
        auto* const made = new State;
        const char* const code = std::getenv("FAKE_CUFILE_REFUSES");
        made->refuses_driver = code == nullptr ? 0 : std::atoi(code);
        return made;
    }();
    return *one;
}

// Tells whether the call is to move something; otherwise `result` is its result. May cut `nbytes`.
bool enter(size_t& nbytes, off_t offset, uint64_t address, ssize_t& result) {
    std::unique_lock lock(state().mutex);
    ++state().calls;
    ++state().held;
    state().changed.wait(lock, [] { return !state().hold; });
    --state().held;
    if (state().failures > 0) {
        --state().failures;
        errno = state().error;
        result = state().result;
        return false;
    }
    if ((nbytes | static_cast<size_t>(offset) | address) % kAlignment != 0) {
        result = -kBadArgument;
        return false;
    }
    nbytes = state().most == 0 ? nbytes : std::min(nbytes, state().most);
    return true;
}

// Copies on a stream of its own, so that no thread of one stays. Returns 0 or a code.
int copy(uint64_t to, uint64_t from, size_t nbytes) {
    void* stream = nullptr;
    if (const int error = cuStreamCreate(&stream, 0); error != 0) {
        return error == kCudaNoContext ? kNoContext : kBadArgument;
    }
    const int error = cuMemcpyAsync(to, from, nbytes, stream);
    const bool done = error == 0 && cuStreamSynchronize(stream) == 0;
    cuStreamDestroy_v2(stream);
    return done ? 0 : kBadAddress;
}

using Buffer = std::unique_ptr<void, decltype(&std::free)>;

Buffer buffer_of(size_t nbytes) {
    return {std::aligned_alloc(kAlignment, (nbytes + kAlignment - 1) / kAlignment * kAlignment), &std::free};
}

} // namespace

void fake_cufile_reset() {
    const std::lock_guard lock(state().mutex);
    state().open = state().force = state().hold = false;
    state().compat = true;
    state().refuses_driver = state().refuses_files = state().failures = state().calls = 0;
    state().most = 0;
    state().changed.notify_all();
}

void fake_cufile_refuse_driver(int code) {
    state().refuses_driver = code;
}

void fake_cufile_open_by_other() {
    state().open = state().compat = true;
}

void fake_cufile_refuse_files(int code) {
    state().refuses_files = code;
}

void fake_cufile_fail(int count, long result, int error) {
    const std::lock_guard lock(state().mutex);
    state().failures = count;
    state().result = result;
    state().error = error;
}

void fake_cufile_stop_short(size_t nbytes) {
    const std::lock_guard lock(state().mutex);
    state().most = nbytes;
}

void fake_cufile_hold(bool hold) {
    const std::lock_guard lock(state().mutex);
    state().hold = hold;
    state().changed.notify_all();
}

int fake_cufile_held() {
    const std::lock_guard lock(state().mutex);
    return state().hold ? state().held : 0;
}

int fake_cufile_calls() {
    const std::lock_guard lock(state().mutex);
    return state().calls;
}

int fake_cufile_files() {
    const std::lock_guard lock(state().mutex);
    return state().files;
}

FAKE_CUFILE CuFileError cuFileDriverOpen() {
    const std::lock_guard lock(state().mutex);
    if (state().refuses_driver != 0) {
        return {state().refuses_driver, 0};
    }
    const bool before = state().open;
    state().open = true;
    return {before ? kAlreadyOpen : 0, 0};
}

FAKE_CUFILE CuFileError cuFileSetParameterBool(int which, bool value) {
    const std::lock_guard lock(state().mutex);
    if (state().open) {
        return {kAlreadyOpen, 0};
    }
    if (which != 1 && which != 2) {
        return {kBadArgument, 0};
    }
    (which == 1 ? state().compat : state().force) = value;
    return {};
}

FAKE_CUFILE CuFileError cuFileGetParameterBool(int which, bool* value) {
    const std::lock_guard lock(state().mutex);
    *value = which == 1 ? state().compat : state().force;
    return {};
}

FAKE_CUFILE CuFileError cuFileHandleRegister(void** handle, CuFileDescription* file) {
    const std::lock_guard lock(state().mutex);
    if (!state().open) {
        return {kNotOpen, 0};
    }
    if (state().refuses_files != 0) {
        return {state().refuses_files, 0};
    }
    if (file->type != 1 || file->functions != nullptr) {
        return {kBadArgument, 0};
    }
    if ((::fcntl(file->fd, F_GETFL) & O_DIRECT) == 0) {
        return {kNoDirectIo, 0};
    }
    *handle = new File{file->fd};
    ++state().files;
    return {};
}

FAKE_CUFILE void cuFileHandleDeregister(void* handle) {
    const std::lock_guard lock(state().mutex);
    delete static_cast<File*>(handle);
    --state().files;
}

FAKE_CUFILE ssize_t cuFileRead(void* handle, void* base, size_t nbytes, off_t offset, off_t at) {
    const uint64_t address = reinterpret_cast<uint64_t>(base) + static_cast<uint64_t>(at);
    ssize_t result = 0;
    if (!enter(nbytes, offset, address, result)) {
        return result;
    }
    const Buffer buffer = buffer_of(nbytes);
    const ssize_t moved = ::pread(static_cast<File*>(handle)->fd, buffer.get(), nbytes, offset);
    if (moved <= 0) {
        return moved;
    }
    const auto from = reinterpret_cast<uint64_t>(buffer.get());
    const int error = copy(address, from, static_cast<size_t>(moved));
    return error != 0 ? -error : moved;
}

FAKE_CUFILE ssize_t cuFileWrite(void* handle, const void* base, size_t nbytes, off_t offset, off_t at) {
    const uint64_t address = reinterpret_cast<uint64_t>(base) + static_cast<uint64_t>(at);
    ssize_t result = 0;
    if (!enter(nbytes, offset, address, result)) {
        return result;
    }
    const Buffer buffer = buffer_of(nbytes);
    const auto to = reinterpret_cast<uint64_t>(buffer.get());
    if (const int error = copy(to, address, nbytes); error != 0) {
        return -error;
    }
    return ::pwrite(static_cast<File*>(handle)->fd, buffer.get(), nbytes, offset);
}
