// Floor: memcpy into (or out of) a mapping that another process shares.
#include "common.hpp"

#include <cstring>

namespace floors {

namespace {

class SharedCopy {
public:
    SharedCopy(int fd, size_t nbytes) : mapping_(fd, nbytes) {}

    Samples write(const ConstBytes& source, size_t rounds) {
        require_fits(source.size());
        Samples samples(rounds);
        const nb::gil_scoped_release released;
        for (int64_t& sample : samples) {
            const int64_t start = now_ns();
            std::memcpy(mapping_.data(), source.data(), source.size());
            asm volatile("" ::: "memory"); // the copies of two rounds are two copies
            sample = now_ns() - start;
        }
        return samples;
    }

    Samples read(const Bytes& target, size_t rounds) {
        require_fits(target.size());
        Samples samples(rounds);
        const nb::gil_scoped_release released;
        for (int64_t& sample : samples) {
            const int64_t start = now_ns();
            std::memcpy(target.data(), mapping_.data(), target.size());
            asm volatile("" ::: "memory");
            sample = now_ns() - start;
        }
        return samples;
    }

    Samples write_pages(const ConstBytes& source, const Pages& source_pages, const Pages& shared_pages,
                        size_t page_bytes, size_t batch, size_t rounds) {
        check_pages(source_pages, page_bytes, source.size(), "a source page lies outside the buffer");
        check_pages(shared_pages, page_bytes, mapping_.size(), "a shared page lies outside the mapping");
        return timed_pages({source_pages, shared_pages, page_bytes, batch}, rounds, mapping_.data(), source.data());
    }

    Samples read_pages(const Bytes& target, const Pages& shared_pages, const Pages& target_pages, size_t page_bytes,
                       size_t batch, size_t rounds) {
        check_pages(target_pages, page_bytes, target.size(), "a target page lies outside the buffer");
        check_pages(shared_pages, page_bytes, mapping_.size(), "a shared page lies outside the mapping");
        return timed_pages({shared_pages, target_pages, page_bytes, batch}, rounds, target.data(), mapping_.data());
    }

    Samples write_ranges(const ConstBytes& source, const Pages& from, const Pages& to, const Pages& lengths,
                         size_t rounds) {
        const RangeLists lists{from, to, lengths};
        lists.check(source.size(), mapping_.size());
        return timed_ranges(lists, rounds, mapping_.data(), source.data());
    }

    Samples read_ranges(const Bytes& target, const Pages& from, const Pages& to, const Pages& lengths, size_t rounds) {
        const RangeLists lists{from, to, lengths};
        lists.check(mapping_.size(), target.size());
        return timed_ranges(lists, rounds, target.data(), mapping_.data());
    }

private:
    void require_fits(size_t nbytes) const {
        if (nbytes > mapping_.size())
            throw nb::value_error("the buffer is larger than the mapping");
    }

    static Samples timed_pages(const PageLists& lists, size_t rounds, uint8_t* into, const uint8_t* out_of) {
        lists.check();
        Samples samples(rounds);
        const nb::gil_scoped_release released;
        for (size_t round = 0; round < rounds; ++round) {
            const int64_t start = now_ns();
            lists.each(round, [&](size_t from, size_t to) { std::memcpy(into + to, out_of + from, lists.page_bytes); });
            asm volatile("" ::: "memory");
            samples[round] = now_ns() - start;
        }
        return samples;
    }

    static Samples timed_ranges(const RangeLists& lists, size_t rounds, uint8_t* into, const uint8_t* out_of) {
        Samples samples(rounds);
        const nb::gil_scoped_release released;
        for (int64_t& sample : samples) {
            const int64_t start = now_ns();
            for (size_t i = 0; i < lists.lengths.size(); ++i)
                std::memcpy(into + lists.to.data()[i], out_of + lists.from.data()[i],
                            static_cast<size_t>(lists.lengths.data()[i]));
            asm volatile("" ::: "memory");
            sample = now_ns() - start;
        }
        return samples;
    }

    Mapping mapping_;
};

} // namespace

void bind_shared_copy(nb::module_& m) {
    nb::class_<SharedCopy>(m, "SharedCopy", "memcpy between a local buffer and a MAP_SHARED mapping of `fd`.")
        .def(nb::init<int, size_t>(), nb::arg("fd"), nb::arg("nbytes"))
        .def("write", &SharedCopy::write, nb::arg("source"), nb::arg("rounds"),
             "Copies `source` to the start of the mapping; returns the nanoseconds of each round.")
        .def("read", &SharedCopy::read, nb::arg("target"), nb::arg("rounds"),
             "Copies the start of the mapping into `target`; returns the nanoseconds of each round.")
        .def("write_pages", &SharedCopy::write_pages, nb::arg("source"), nb::arg("source_pages"),
             nb::arg("shared_pages"), nb::arg("page_bytes"), nb::arg("batch"), nb::arg("rounds"),
             "One memcpy per page; nanoseconds of each round. Round r moves batch r modulo the number of batches.")
        .def("read_pages", &SharedCopy::read_pages, nb::arg("target"), nb::arg("shared_pages"), nb::arg("target_pages"),
             nb::arg("page_bytes"), nb::arg("batch"), nb::arg("rounds"),
             "One memcpy per page; nanoseconds of each round. Round r moves batch r modulo the number of batches.")
        .def("write_ranges", &SharedCopy::write_ranges, nb::arg("source"), nb::arg("source_offsets"),
             nb::arg("shared_offsets"), nb::arg("lengths"), nb::arg("rounds"),
             "One memcpy per range; nanoseconds of each round.")
        .def("read_ranges", &SharedCopy::read_ranges, nb::arg("target"), nb::arg("shared_offsets"),
             nb::arg("target_offsets"), nb::arg("lengths"), nb::arg("rounds"),
             "One memcpy per range; nanoseconds of each round.");
}

} // namespace floors
