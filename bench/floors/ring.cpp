// Floor: a plain single-producer single-consumer ring in shared memory. The sender copies records in, the receiver
// places them in its own memory, and an operation is done when the receiver has placed the last of its bytes.
#include "common.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>

namespace floors {

namespace {

constexpr size_t kHeaderBytes = 16;
constexpr size_t kSliceBytes = 64 * 1024;  // the largest record: both sides copy at the same time
constexpr size_t kPublishBytes = 8 * 1024; // small records are published in groups of this size
constexpr uint64_t kWrapMark = ~uint64_t{0};

struct Record {
    uint64_t offset; // where the payload goes in the receiver's memory, or kWrapMark
    uint64_t nbytes;
};
static_assert(sizeof(Record) == kHeaderBytes);

struct Counters {
    alignas(kCacheLine) std::atomic<uint64_t> tail; // bytes published by the sender
    alignas(kCacheLine) std::atomic<uint64_t> head; // bytes consumed by the receiver
};

constexpr size_t padded(size_t nbytes) {
    return (nbytes + kHeaderBytes - 1) & ~(kHeaderBytes - 1);
}

class Ring {
public:
    Ring(int fd, size_t nbytes)
        : mapping_(fd, nbytes), counters_(reinterpret_cast<Counters*>(mapping_.data())),
          data_(mapping_.data() + sizeof(Counters)), capacity_((nbytes - sizeof(Counters)) & ~(kHeaderBytes - 1)) {
        if (nbytes < sizeof(Counters) + 4 * kSliceBytes)
            throw nb::value_error("a ring of 4 slices or more is needed");
    }

    void reset() {
        counters_->tail.store(0);
        counters_->head.store(0);
    }

    Samples write(const ConstBytes& source, size_t rounds, double timeout) {
        Samples samples(rounds);
        const nb::gil_scoped_release released;
        begin_sending(timeout);
        for (int64_t& sample : samples) {
            const int64_t start = now_ns();
            for (size_t at = 0; at < source.size(); at += kSliceBytes)
                push(at, source.data() + at, std::min(kSliceBytes, source.size() - at));
            drain();
            sample = now_ns() - start;
        }
        return samples;
    }

    Samples write_pages(const ConstBytes& source, const Pages& source_pages, const Pages& target_pages,
                        size_t page_bytes, size_t batch, size_t rounds, double timeout) {
        const PageLists lists{source_pages, target_pages, page_bytes, batch};
        lists.check();
        if (page_bytes > kSliceBytes)
            throw nb::value_error("a page of at most 65536 bytes is needed");
        check_pages(source_pages, page_bytes, source.size(), "a source page lies outside the source");
        Samples samples(rounds);
        const nb::gil_scoped_release released;
        begin_sending(timeout);
        for (size_t round = 0; round < rounds; ++round) {
            const int64_t start = now_ns();
            lists.each(round, [&](size_t from, size_t to) { push(to, source.data() + from, page_bytes); });
            drain();
            samples[round] = now_ns() - start;
        }
        return samples;
    }

    void receive(const Bytes& target, size_t nbytes, double timeout) {
        const nb::gil_scoped_release released;
        deadline_ = deadline_after(timeout);
        head_ = counters_->head.load();
        size_t placed = 0;
        while (placed < nbytes) {
            uint64_t tail = 0;
            spin_until([&] { return (tail = counters_->tail.load(std::memory_order_acquire)) != head_; }, deadline_,
                       "the sender is silent");
            while (head_ != tail)
                placed += pop(target);
            counters_->head.store(head_, std::memory_order_release);
        }
    }

private:
    void begin_sending(double timeout) {
        deadline_ = deadline_after(timeout);
        tail_ = published_ = counters_->tail.load();
    }

    void wait_for_space(size_t nbytes) {
        if (tail_ + nbytes - counters_->head.load(std::memory_order_acquire) <= capacity_)
            return;
        publish(); // the receiver can only make room for what it sees
        spin_until([&] { return tail_ + nbytes - counters_->head.load(std::memory_order_acquire) <= capacity_; },
                   deadline_, "the ring stays full");
    }

    void publish() {
        published_ = tail_;
        counters_->tail.store(tail_, std::memory_order_release);
    }

    void push(uint64_t offset, const uint8_t* payload, size_t nbytes) {
        const size_t need = kHeaderBytes + padded(nbytes);
        size_t at = tail_ % capacity_;
        if (capacity_ - at < need) {
            wait_for_space(capacity_ - at);
            reinterpret_cast<Record*>(data_ + at)->offset = kWrapMark;
            tail_ += capacity_ - at;
            at = 0;
        }
        wait_for_space(need);
        *reinterpret_cast<Record*>(data_ + at) = Record{offset, nbytes};
        std::memcpy(data_ + at + kHeaderBytes, payload, nbytes);
        tail_ += need;
        if (tail_ - published_ >= kPublishBytes)
            publish();
    }

    void drain() {
        publish();
        spin_until([&] { return counters_->head.load(std::memory_order_acquire) == tail_; }, deadline_,
                   "the receiver is silent");
    }

    size_t pop(const Bytes& target) {
        const size_t at = head_ % capacity_;
        const Record record = *reinterpret_cast<Record*>(data_ + at);
        if (record.offset == kWrapMark) {
            head_ += capacity_ - at;
            return 0;
        }
        if (record.nbytes > kSliceBytes || record.offset + record.nbytes > target.size())
            throw std::runtime_error("a record lies outside the target");
        std::memcpy(target.data() + record.offset, data_ + at + kHeaderBytes, record.nbytes);
        head_ += kHeaderBytes + padded(record.nbytes);
        return record.nbytes;
    }

    Mapping mapping_;
    Counters* counters_;
    uint8_t* data_;
    size_t capacity_;
    uint64_t tail_ = 0;
    uint64_t published_ = 0;
    uint64_t head_ = 0;
    int64_t deadline_ = 0;
};

} // namespace

void bind_ring(nb::module_& m) {
    nb::class_<Ring>(m, "Ring", "A single-producer single-consumer byte ring in a MAP_SHARED mapping of `fd`.")
        .def(nb::init<int, size_t>(), nb::arg("fd"), nb::arg("nbytes"))
        .def("reset", &Ring::reset, "Empties the ring. Call before either side starts.")
        .def("write", &Ring::write, nb::arg("source"), nb::arg("rounds"), nb::arg("timeout"),
             "Sends `source` to offset 0 of the receiver; nanoseconds of each round, until the receiver placed it all.")
        .def("write_pages", &Ring::write_pages, nb::arg("source"), nb::arg("source_pages"), nb::arg("target_pages"),
             nb::arg("page_bytes"), nb::arg("batch"), nb::arg("rounds"), nb::arg("timeout"),
             "One record per page; nanoseconds of each round, until the receiver placed the last page.")
        .def("receive", &Ring::receive, nb::arg("target"), nb::arg("nbytes"), nb::arg("timeout"),
             "The other side: places records in `target` until `nbytes` payload bytes have come.");
}

} // namespace floors
