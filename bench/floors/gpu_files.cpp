// Floor: threads read a file into pinned memory, each into two buffers in turn, and copy each buffer to a GPU while the
// other is read into.
#include "gpu.hpp"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <array>
#include <atomic>
#include <exception>
#include <fcntl.h>
#include <memory>
#include <thread>
#include <unistd.h>

namespace floors {

namespace {

constexpr size_t kBuffers = 2;
constexpr unsigned kPortable = 1;

// A stream of the current context.
class Stream {
public:
    Stream() { check(api_.stream_create(&stream_, kNonBlocking), "cuStreamCreate"); }
    ~Stream() { api_.stream_destroy(stream_); }
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;

    void copy(Address to, const void* from, size_t nbytes) const {
        check(api_.copy(to, reinterpret_cast<Address>(from), nbytes, stream_), "cuMemcpyAsync");
    }
    void synchronize() const { check(api_.synchronize(stream_), "cuStreamSynchronize"); }

private:
    const Driver& api_ = driver();
    void* stream_ = nullptr;
};

// Pinned memory for one block, and where in the file the block that it has is from.
struct Buffer {
    explicit Buffer(size_t nbytes) {
        void* made = nullptr;
        check(driver().host_alloc(&made, nbytes, kPortable), "cuMemHostAlloc");
        data.reset(static_cast<uint8_t*>(made));
    }
    struct Free {
        void operator()(uint8_t* memory) const { driver().host_free(memory); }
    };

    std::unique_ptr<uint8_t, Free> data;
    Stream stream;
    int64_t offset = -1;
};

class Descriptor {
public:
    explicit Descriptor(const std::string& path) : fd(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
        if (fd < 0)
            raise_errno("open");
    }
    ~Descriptor() { close(fd); }
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;

    const int fd;
};

// Reads a block whole.
void read_block(int fd, uint8_t* target, size_t nbytes, int64_t offset) {
    while (nbytes > 0) {
        const ssize_t got = pread(fd, target, nbytes, offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            raise_errno("pread");
        if (got == 0)
            throw std::runtime_error("the file ends in the middle of a block");
        target += got;
        offset += got;
        nbytes -= static_cast<size_t>(got);
    }
}

class FileToGpu {
public:
    FileToGpu(const std::string& path, int device, size_t block_bytes, size_t threads)
        : file_(path), block_bytes_(block_bytes), threads_(threads), gpu_(device, threads * kBuffers * block_bytes) {
        struct stat facts{};
        if (fstat(file_.fd, &facts) != 0)
            raise_errno("fstat");
        if (block_bytes == 0 || threads == 0 || static_cast<size_t>(facts.st_size) < block_bytes)
            throw nb::value_error("a file of one block at least, and a thread, are needed");
        blocks_ = static_cast<size_t>(facts.st_size) / block_bytes;
        const Current current = gpu_.enter();
        for (size_t i = 0; i < threads * kBuffers; ++i)
            buffers_.push_back(std::make_unique<Buffer>(block_bytes));
    }
    ~FileToGpu() {
        void* popped = nullptr;
        api_.context_push(gpu_.context());
        buffers_.clear();
        api_.context_pop(&popped);
    }
    FileToGpu(const FileToGpu&) = delete;
    FileToGpu& operator=(const FileToGpu&) = delete;

    std::pair<int64_t, int64_t> read(double seconds) {
        const nb::gil_scoped_release released;
        std::atomic<size_t> next{0};
        std::vector<std::exception_ptr> failures(threads_);
        std::vector<std::thread> threads;
        threads.reserve(threads_);
        const int64_t start = now_ns(), deadline = deadline_after(seconds);
        for (size_t i = 0; i < threads_; ++i) {
            threads.emplace_back([&, i] {
                try {
                    work(i, next, deadline);
                } catch (...) { // the caller gets it, once all threads have ended
                    failures[i] = std::current_exception();
                }
            });
        }
        for (std::thread& each : threads)
            each.join();
        const int64_t took = now_ns() - start;
        for (const std::exception_ptr& each : failures) {
            if (each)
                std::rethrow_exception(each);
        }
        return {static_cast<int64_t>(next.load()), took};
    }

    Samples take(const Bytes& target) const {
        if (target.size() != buffers_.size() * block_bytes_)
            throw nb::value_error("room for each buffer's block is needed");
        Samples offsets;
        const Current current = gpu_.enter();
        gpu_.copy(reinterpret_cast<Address>(target.data()), gpu_.memory(), target.size());
        gpu_.synchronize();
        for (const auto& each : buffers_)
            offsets.push_back(each->offset);
        return offsets;
    }

private:
    void work(size_t thread, std::atomic<size_t>& next, int64_t deadline) {
        const Current current = gpu_.enter();
        for (size_t turn = 0; now_ns() < deadline; ++turn) {
            const size_t slot = thread * kBuffers + turn % kBuffers;
            Buffer& buffer = *buffers_[slot];
            buffer.stream.synchronize();
            buffer.offset = static_cast<int64_t>(next.fetch_add(1) % blocks_ * block_bytes_);
            read_block(file_.fd, buffer.data.get(), block_bytes_, buffer.offset);
            buffer.stream.copy(gpu_.memory() + slot * block_bytes_, buffer.data.get(), block_bytes_);
        }
        for (size_t i = 0; i < kBuffers; ++i)
            buffers_[thread * kBuffers + i]->stream.synchronize();
    }

    const Driver& api_ = driver();
    Descriptor file_;
    size_t block_bytes_;
    size_t threads_;
    size_t blocks_ = 0;
    Gpu gpu_;
    std::vector<std::unique_ptr<Buffer>> buffers_;
};

} // namespace

void bind_gpu_files(nb::module_& m) {
    nb::class_<FileToGpu>(m, "FileToGpu", "Threads that read a file's blocks and copy them to memory of a GPU.")
        .def(nb::init<const std::string&, int, size_t, size_t>(), nb::arg("path"), nb::arg("device"),
             nb::arg("block_bytes"), nb::arg("threads"))
        .def("read", &FileToGpu::read, nb::arg("seconds"), "Reads for so long; blocks that arrived, and nanoseconds.")
        .def("take", &FileToGpu::take, nb::arg("target"),
             "Copies the last two blocks of each thread to `target`; their offsets in the file, -1 where none came.");
}

} // namespace floors
