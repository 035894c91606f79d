// Floor: copies between two GPUs by the driver's own calls, from one process that has both, and a kernel that moves
// pages whose numbers lie on the GPU already.
#include "gpu.hpp"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>

namespace floors {

namespace {

constexpr unsigned kThreads = 256;

// 2 KiB of a page for each 32 threads in turn, 16 bytes each at a time, four loads under way.
constexpr const char* kKernels = R"(
extern "C" __global__ void floor_pages(char* dst, const char* src, const unsigned* dst_pages,
                                       const unsigned* src_pages, unsigned long long count,
                                       unsigned long long page_bytes) {
    const unsigned long long pieces = (page_bytes + 2047) / 2048;
    const unsigned lane = threadIdx.x % 32;
    unsigned long long item = (blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x) / 32;
    for (; item < count * pieces; item += gridDim.x * (unsigned long long)blockDim.x / 32) {
        const unsigned long long page = item / pieces, offset = item % pieces * 2048;
        const unsigned words = (unsigned)(min(2048ULL, page_bytes - offset) / 16);
        const int4* from = (const int4*)(src + src_pages[page] * page_bytes + offset);
        int4* to = (int4*)(dst + dst_pages[page] * page_bytes + offset);
        unsigned i = lane;
        for (; i + 96 < words; i += 128) {
            const int4 a = from[i], b = from[i + 32], c = from[i + 64], d = from[i + 96];
            to[i] = a, to[i + 32] = b, to[i + 64] = c, to[i + 96] = d;
        }
        for (; i < words; i += 32) to[i] = from[i];
    }
}
// A range for each 32 threads in turn; offsets and lengths are multiples of 16.
extern "C" __global__ void floor_ranges(char* dst, const char* src, const long long* to, const long long* from,
                                        const long long* lengths, unsigned long long count) {
    const unsigned lane = threadIdx.x % 32;
    unsigned long long item = (blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x) / 32;
    for (; item < count; item += gridDim.x * (unsigned long long)blockDim.x / 32) {
        const long long words = lengths[item] / 16;
        const int4* in = (const int4*)(src + from[item]);
        int4* out = (int4*)(dst + to[item]);
        long long i = lane;
        for (; i + 96 < words; i += 128) {
            const int4 a = in[i], b = in[i + 32], c = in[i + 64], d = in[i + 96];
            out[i] = a, out[i + 32] = b, out[i + 64] = c, out[i + 96] = d;
        }
        for (; i < words; i += 32) out[i] = in[i];
    }
}
)";

// A list in memory of a GPU.
class DeviceList {
public:
    DeviceList(const Gpu& gpu, const void* data, size_t nbytes) {
        check(api_.alloc(&address_, nbytes), "cuMemAlloc");
        gpu.copy(address_, reinterpret_cast<Address>(data), nbytes);
        gpu.synchronize();
    }
    ~DeviceList() { api_.free(address_); }
    DeviceList(const DeviceList&) = delete;
    DeviceList& operator=(const DeviceList&) = delete;

    [[nodiscard]] Address address() const { return address_; }

private:
    const Driver& api_ = driver();
    Address address_ = 0;
};

void* kernel_of(const nb::bytes& image, const char* name) {
    void* module = nullptr;
    void* kernel = nullptr;
    check(driver().module_load(&module, image.c_str()), "cuModuleLoadData");
    check(driver().module_function(&kernel, module, name), "cuModuleGetFunction");
    return kernel;
}

// From memory of one GPU into memory of another, or of the same one. "pull": by the one that it goes to.
class GpuCopies {
public:
    GpuCopies(int from, int to, size_t nbytes) : nbytes_(nbytes), from_(from, nbytes), to_(to, nbytes) {
        if (from != to) {
            from_.reach(to_);
            to_.reach(from_);
        }
    }

    void fill(const ConstBytes& source) {
        require_fits(source.size());
        const std::vector<uint8_t> zeros(nbytes_);
        put(from_, source.data(), source.size());
        put(to_, zeros.data(), nbytes_);
    }

    void take(const Bytes& target) const {
        require_fits(target.size());
        const Current current = to_.enter();
        to_.copy(reinterpret_cast<Address>(target.data()), to_.memory(), target.size());
        to_.synchronize();
    }

    Samples copy(size_t nbytes, size_t rounds, bool pull) const {
        require_fits(nbytes);
        const Gpu& mover = pull ? to_ : from_;
        return timed(rounds, mover, [&](size_t) {
            mover.copy(to_.memory(), from_.memory(), nbytes);
            mover.synchronize();
        });
    }

    // The host spins on a word that the stream writes after the copy.
    Samples copy_word(size_t nbytes, size_t rounds) const {
        require_fits(nbytes);
        const Current current = from_.enter();
        void* page = nullptr;
        check(driver().host_alloc(&page, sizeof(uint32_t), 1), "cuMemHostAlloc");
        std::atomic_ref<uint32_t> word(*static_cast<uint32_t*>(page));
        word = 0;
        Samples samples = timed(rounds, from_, [&](size_t round) {
            const auto value = static_cast<uint32_t>(round + 1);
            from_.copy(to_.memory(), from_.memory(), nbytes);
            check(driver().write32(from_.stream(), reinterpret_cast<Address>(page), value, 0), "cuStreamWriteValue32");
            spin_until([&] { return word.load(std::memory_order_acquire) == value; }, deadline_after(30), "the word");
        });
        driver().host_free(page);
        return samples;
    }

    // Round r moves batch r modulo the number of batches; `image` is the compiled kernel.
    Samples pages(const nb::bytes& image, const Pages& source_pages, const Pages& target_pages, size_t page_bytes,
                  size_t batch, size_t rounds, bool pull, unsigned blocks) const {
        check_pages(source_pages, page_bytes, nbytes_, "a source page lies outside the memory");
        check_pages(target_pages, page_bytes, nbytes_, "a target page lies outside the memory");
        if (source_pages.size() != target_pages.size() || batch == 0 || source_pages.size() < batch ||
            page_bytes % 16 != 0)
            throw nb::value_error("two page lists of one length, one batch or more, and pages of 16-byte words");
        const Gpu& mover = pull ? to_ : from_;
        const Current current = mover.enter();
        void* const kernel = kernel_of(image, "floor_pages");
        const size_t count = source_pages.size();
        std::vector<uint32_t> numbers(2 * count);
        std::copy_n(source_pages.data(), count, numbers.begin());
        std::copy_n(target_pages.data(), count, numbers.begin() + static_cast<std::ptrdiff_t>(count));
        const DeviceList lists(mover, numbers.data(), numbers.size() * sizeof(uint32_t));
        return timed(rounds, mover, [&](size_t round) {
            const size_t first = round % (count / batch) * batch;
            Address dst = to_.memory();
            Address src = from_.memory();
            Address dst_list = lists.address() + (count + first) * sizeof(uint32_t);
            Address src_list = lists.address() + first * sizeof(uint32_t);
            uint64_t of = batch;
            uint64_t each = page_bytes;
            std::array<void*, 6> arguments{&dst, &src, &dst_list, &src_list, &of, &each};
            check(driver().launch(kernel, blocks, 1, 1, kThreads, 1, 1, 0, mover.stream(), arguments.data(), nullptr),
                  "cuLaunchKernel");
            mover.synchronize();
        });
    }

    Samples ranges(const nb::bytes& image, const Pages& from, const Pages& to, const Pages& lengths, size_t rounds,
                   bool pull, unsigned blocks) const {
        RangeLists{from, to, lengths}.check(nbytes_, nbytes_);
        const Gpu& mover = pull ? to_ : from_;
        const Current current = mover.enter();
        void* const kernel = kernel_of(image, "floor_ranges");
        const size_t list_bytes = lengths.size() * sizeof(int64_t);
        const DeviceList source_list(mover, from.data(), list_bytes);
        const DeviceList target_list(mover, to.data(), list_bytes);
        const DeviceList length_list(mover, lengths.data(), list_bytes);
        return timed(rounds, mover, [&](size_t /*round*/) {
            Address dst = to_.memory();
            Address src = from_.memory();
            Address to_there = target_list.address();
            Address from_here = source_list.address();
            Address each = length_list.address();
            uint64_t count = lengths.size();
            std::array<void*, 6> arguments{&dst, &src, &to_there, &from_here, &each, &count};
            check(driver().launch(kernel, blocks, 1, 1, kThreads, 1, 1, 0, mover.stream(), arguments.data(), nullptr),
                  "cuLaunchKernel");
            mover.synchronize();
        });
    }

private:
    void require_fits(size_t nbytes) const {
        if (nbytes > nbytes_)
            throw nb::value_error("more bytes than there is memory");
    }

    static void put(const Gpu& gpu, const void* source, size_t nbytes) {
        const Current current = gpu.enter();
        gpu.copy(gpu.memory(), reinterpret_cast<Address>(source), nbytes);
        gpu.synchronize();
    }

    template <typename Once>
    static Samples timed(size_t rounds, const Gpu& mover, Once once) {
        Samples samples(rounds);
        const Current current = mover.enter();
        const nb::gil_scoped_release released;
        for (size_t round = 0; round < rounds; ++round) {
            const int64_t start = now_ns();
            once(round);
            samples[round] = now_ns() - start;
        }
        return samples;
    }

    size_t nbytes_;
    Gpu from_;
    Gpu to_;
};

// Each GPU copies to each other one at the same time; one measurement lasts until the last copy has ended.
Samples copy_all_pairs(int gpus, size_t nbytes, size_t rounds) {
    struct Move {
        std::unique_ptr<Gpu> from;
        std::unique_ptr<Gpu> to;
    };
    std::vector<Move> moves;
    for (int from = 0; from < gpus; ++from) {
        for (int to = 0; to < gpus; ++to) {
            if (from != to) {
                moves.push_back({std::make_unique<Gpu>(from, nbytes), std::make_unique<Gpu>(to, nbytes)});
                moves.back().from->reach(*moves.back().to);
            }
        }
    }
    Samples samples(rounds);
    const nb::gil_scoped_release released;
    for (int64_t& sample : samples) {
        const int64_t start = now_ns();
        for (const Move& move : moves) {
            const Current current = move.from->enter();
            move.from->copy(move.to->memory(), move.from->memory(), nbytes);
        }
        for (const Move& move : moves)
            move.from->synchronize();
        sample = now_ns() - start;
    }
    return samples;
}

} // namespace

void bind_gpu(nb::module_& m) {
    m.attr("KERNELS") = kKernels;
    nb::class_<GpuCopies>(m, "GpuCopies", "Copies between memory of two GPUs of this process.")
        .def(nb::init<int, int, size_t>(), nb::arg("source"), nb::arg("target"), nb::arg("nbytes"))
        .def("fill", &GpuCopies::fill, nb::arg("source"), "Fills the source, and clears the target.")
        .def("take", &GpuCopies::take, nb::arg("target"), "Copies what has arrived to `target`.")
        .def("copy", &GpuCopies::copy, nb::arg("nbytes"), nb::arg("rounds"), nb::arg("pull"),
             "A copy and a synchronisation of the stream; nanoseconds of each round.")
        .def("copy_word", &GpuCopies::copy_word, nb::arg("nbytes"), nb::arg("rounds"),
             "A copy and a word that the stream writes, until the host sees it; nanoseconds of each round.")
        .def("pages", &GpuCopies::pages, nb::arg("image"), nb::arg("source_pages"), nb::arg("target_pages"),
             nb::arg("page_bytes"), nb::arg("batch"), nb::arg("rounds"), nb::arg("pull"), nb::arg("blocks"),
             "One kernel per round, compiled from KERNELS; nanoseconds of each round.")
        .def("ranges", &GpuCopies::ranges, nb::arg("image"), nb::arg("source_offsets"), nb::arg("target_offsets"),
             nb::arg("lengths"), nb::arg("rounds"), nb::arg("pull"), nb::arg("blocks"),
             "One kernel per round, compiled from KERNELS; nanoseconds of each round. Offsets and lengths are "
             "multiples of 16.");
    m.def("copy_all_pairs", &copy_all_pairs, nb::arg("gpus"), nb::arg("nbytes"), nb::arg("rounds"),
          "Every GPU copies to every other one at once; nanoseconds of each round.");
}

} // namespace floors
