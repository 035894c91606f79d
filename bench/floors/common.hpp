// What the floors share: a clock, a mapping that unmaps itself, a bounded spin, and the argument types.
//
// A floor is the least that the machine asks for a job: plain C++ that uses no zerohop code. Each one moves real
// payload, and whoever runs it compares what arrived with what was sent.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/vector.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <stdexcept>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>
#include <system_error>
#include <vector>

namespace floors {

namespace nb = nanobind;

using Bytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using ConstBytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Pages = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Samples = std::vector<int64_t>;

inline constexpr size_t kCacheLine = 128; // two lines: the adjacent-line prefetcher pairs them

inline int64_t now_ns() {
    timespec t{};
    clock_gettime(CLOCK_MONOTONIC, &t);
    return static_cast<int64_t>(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}

[[noreturn]] inline void raise_errno(const char* what) {
    throw std::system_error(errno, std::generic_category(), what);
}

inline void pause_cpu() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("isb" ::: "memory");
#endif
}

// Runs the handlers of the signals that have come, and throws what they raise. Call it without the GIL, in each wait.
inline void check_signals() {
    const nb::gil_scoped_acquire held;
    if (PyErr_CheckSignals() != 0)
        throw nb::python_error();
}

[[noreturn]] inline void raise_timed_out(const char* what) {
    throw std::runtime_error(std::string("timed out: ") + what);
}

// Spins until `ready()` holds. Looks at the clock once in 1024 turns, so that a dead peer ends the wait and the clock
// stays out of the measurement, and for signals once in 8192.
template <typename Ready>
void spin_until(Ready ready, int64_t deadline_ns, const char* what) {
    for (uint32_t turn = 1; !ready(); ++turn) {
        pause_cpu();
        if ((turn & 1023U) == 0 && now_ns() > deadline_ns)
            raise_timed_out(what);
        if ((turn & 8191U) == 0)
            check_signals();
    }
}

inline int64_t deadline_after(double seconds) {
    return now_ns() + static_cast<int64_t>(seconds * 1e9);
}

// Two page lists, cut into batches: round r moves batch r modulo the number of batches, so that rounds need not find
// the pages of the last one in a cache.
struct PageLists {
    const Pages& from;
    const Pages& to;
    size_t page_bytes;
    size_t batch;

    void check() const {
        if (from.size() != to.size() || page_bytes == 0 || batch == 0 || from.size() < batch)
            throw nb::value_error("two page lists of one length, at least one batch, and a page size are needed");
    }

    template <typename Copy>
    void each(size_t round, Copy copy) const {
        const size_t first = round % (from.size() / batch) * batch;
        for (size_t i = first; i < first + batch; ++i)
            copy(static_cast<size_t>(from.data()[i]) * page_bytes, static_cast<size_t>(to.data()[i]) * page_bytes);
    }
};

// Ranges to move: lengths[i] bytes from from[i] on, to to[i] on.
struct RangeLists {
    const Pages& from;
    const Pages& to;
    const Pages& lengths;

    void check(size_t source_bytes, size_t target_bytes) const {
        if (from.size() != lengths.size() || to.size() != lengths.size())
            throw nb::value_error("three lists of one length are needed");
        for (size_t i = 0; i < lengths.size(); ++i) {
            const auto length = static_cast<uint64_t>(lengths.data()[i]);
            const auto outside = [&](const Pages& offsets, size_t limit) {
                const auto offset = static_cast<uint64_t>(offsets.data()[i]);
                return offset > limit || length > limit - offset;
            };
            if (outside(from, source_bytes) || outside(to, target_bytes))
                throw nb::index_error("a range lies outside of its buffer");
        }
    }
};

inline void check_pages(const Pages& pages, size_t page_bytes, size_t limit, const char* what) {
    for (size_t i = 0; i < pages.size(); ++i) {
        const int64_t page = pages.data()[i];
        if (page < 0 || (static_cast<uint64_t>(page) + 1) * page_bytes > limit)
            throw nb::index_error(what);
    }
}

// A MAP_SHARED mapping of a descriptor, every page present before the first measurement.
class Mapping {
public:
    Mapping(int fd, size_t nbytes) : nbytes_(nbytes) {
        struct stat facts{};
        if (fstat(fd, &facts) != 0)
            raise_errno("fstat");
        if (nbytes == 0 || static_cast<uint64_t>(facts.st_size) < nbytes)
            throw nb::value_error("the descriptor holds fewer bytes than the mapping asks for");
        void* address = mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
        if (address == MAP_FAILED)
            raise_errno("mmap");
        data_ = static_cast<uint8_t*>(address);
    }
    ~Mapping() { munmap(data_, nbytes_); }
    Mapping(const Mapping&) = delete;
    Mapping& operator=(const Mapping&) = delete;

    [[nodiscard]] uint8_t* data() const { return data_; }
    [[nodiscard]] size_t size() const { return nbytes_; }

private:
    uint8_t* data_ = nullptr;
    size_t nbytes_;
};

void bind_shared_copy(nb::module_& m);
void bind_flag(nb::module_& m);
void bind_gpu(nb::module_& m);
void bind_gpu_files(nb::module_& m);
void bind_gpu_memory(nb::module_& m);
void bind_ring(nb::module_& m);
void bind_socket(nb::module_& m);
void bind_tls(nb::module_& m);

} // namespace floors
