// Binds the transfers between files and memory.
#include "bind/common.hpp"
#include "bind/indices.hpp"
#include "storage/file_queue.hpp"
#include "storage/sinks.hpp"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

namespace zerohop::bind {

namespace {

using storage::Completion;
using storage::FileQueue;
using storage::OpenFile;
using storage::Range;
using storage::Ring;

struct PyOpenFile {
    std::shared_ptr<OpenFile> file;
};

// The engine and its queue, for the length of a call.
struct Held {
    std::shared_ptr<Engine> engine; // destroyed after the queue
    std::shared_ptr<FileQueue> queue;
};

// Keeps neither alive: the engine has the queue until that is closed, and a Store that is closed but kept has nothing.
struct PyFileQueue {
    std::weak_ptr<Engine> engine;
    std::weak_ptr<FileQueue> queue;
    std::string backend;
    uint64_t staging_bytes = 0;
    std::string why_no_uring;

    // Throws NativeError if either is closed.
    [[nodiscard]] Held hold() const {
        Held held{engine.lock(), queue.lock()};
        if (!held.engine || held.engine->closed()) {
            throw NativeError(Status::closed, Reason::context_closed, "this Context is closed");
        }
        if (!held.queue) {
            throw NativeError(Status::closed, Reason::owner_closed, "the Store is closed");
        }
        return held;
    }
};

struct PyRing {
    PyFileQueue home;
    std::shared_ptr<Ring> ring;
};

// A part of a region, and the transfers' offsets count from its start.
struct Part {
    const PyRegion& region;
    uint64_t offset;
    uint64_t nbytes;
};

// Throws ValueError unless each range lies within the part, and its bytes of the file can have numbers.
std::vector<Range> ranges_of(const Part& part, std::span<const int64_t> file_offsets,
                             std::span<const int64_t> memory_offsets, std::span<const int64_t> lengths,
                             std::span<const int64_t> userdata) {
    const size_t count = file_offsets.size();
    if (memory_offsets.size() != count || lengths.size() != count || (!userdata.empty() && userdata.size() != count)) {
        throw nb::value_error("the arrays have different lengths");
    }
    part.region.check(part.offset, part.nbytes);
    std::vector<Range> ranges(count);
    for (size_t i = 0; i < count; ++i) {
        const auto nbytes = static_cast<uint64_t>(lengths[i]);
        const auto at = static_cast<uint64_t>(memory_offsets[i]); // a negative number is a very large one
        if (nbytes > part.nbytes || at > part.nbytes - nbytes) {
            throw nb::value_error("a range lies outside the memory");
        }
        if (file_offsets[i] < 0 || file_offsets[i] > INT64_MAX - lengths[i]) {
            throw nb::value_error("an offset in the file is negative, or too large");
        }
        ranges[i] = {static_cast<uint64_t>(file_offsets[i]), part.offset + at, nbytes,
                     userdata.empty() ? 0 : static_cast<uint64_t>(userdata[i])};
    }
    return ranges;
}

PyOp transfer(const PyFileQueue& self, const PyOpenFile& file, const PyRegion& region, bool write, uint64_t part_offset,
              uint64_t part_nbytes, nb::handle file_offsets, nb::handle memory_offsets, nb::handle lengths, bool whole,
              uint64_t deadline_ns) {
    const Held held = self.hold();
    const Indices files(file_offsets);
    const Indices memories(memory_offsets);
    const Indices counts(lengths);
    std::vector<Range> ranges =
        ranges_of({region, part_offset, part_nbytes}, files.numbers(), memories.numbers(), counts.numbers(), {});
    uint64_t least = 0;
    for (const Range& range : ranges) {
        least += whole ? range.nbytes : 0;
    }
    // NOLINTNEXTLINE(performance-unnecessary-copy-initialization): kept while others may close it
    const std::shared_ptr<Region> memory = region.get();
    OpRef op = held.engine->operations().create(deadline_ns);
    const Released release;
    if (ranges.empty()) {
        op->finish({});
    } else {
        auto sink = std::make_shared<storage::OperationSink>(*held.engine, op, ranges.size(), least);
        if (const Outcome outcome = held.queue->post(file.file, memory, write, std::move(ranges), std::move(sink));
            !outcome.ok()) {
            op->finish(outcome);
            throw NativeError(outcome, "");
        }
    }
    if (!op->done()) {
        held.engine->note_pending(deadline_ns, now_ns());
    }
    return PyOp{held.engine, std::move(op)};
}

bool post_to_ring(const PyRing& self, const PyOpenFile& file, const PyRegion& region, bool write, uint64_t part_offset,
                  uint64_t part_nbytes, nb::handle file_offsets, nb::handle memory_offsets, nb::handle lengths,
                  nb::handle userdata) {
    const Held held = self.home.hold();
    const Indices files(file_offsets);
    const Indices memories(memory_offsets);
    const Indices counts(lengths);
    const Indices numbers(userdata);
    std::vector<Range> ranges = ranges_of({region, part_offset, part_nbytes}, files.numbers(), memories.numbers(),
                                          counts.numbers(), numbers.numbers());
    // NOLINTNEXTLINE(performance-unnecessary-copy-initialization): kept while others may close it
    const std::shared_ptr<Region> memory = region.get();
    const size_t count = ranges.size();
    if (!self.ring->reserve(count)) {
        return false;
    }
    const Released release;
    Outcome outcome;
    try {
        outcome = held.queue->post(file.file, memory, write, std::move(ranges), self.ring);
    } catch (...) { // whatever it is, such as no memory: nothing has begun
        self.ring->release(count);
        throw;
    }
    if (!outcome.ok()) {
        self.ring->release(count);
        throw NativeError(outcome, "");
    }
    return true;
}

nb::bytes take(const PyRing& self, size_t most) {
    std::vector<Completion> taken(std::min(most, self.ring->ready()));
    taken.resize(self.ring->take(taken));
    return nb::bytes(taken.data(), taken.size() * sizeof(Completion));
}

} // namespace

void register_storage(nb::module_& m) {
    nb::class_<PyOpenFile>(m, "OpenFile", "A file that is open for transfers.")
        .def(
            "__init__",
            [](PyOpenFile* self, int fd, int direct_fd, uint32_t alignment, int direct) {
                new (self) PyOpenFile{std::make_shared<OpenFile>(fd, direct_fd, std::max(alignment, 1U),
                                                                 static_cast<storage::Direct>(direct))};
            },
            nb::arg("fd"), nb::arg("direct_fd"), nb::arg("alignment"), nb::arg("direct"),
            "Takes both descriptors; the second has O_DIRECT, or is -1.")
        .def_prop_ro("fd", [](const PyOpenFile& self) { return self.file->fd(); })
        .def_prop_ro(
            "moved", [](const PyOpenFile& self) { return self.file->moved(); },
            "The bytes that were moved past the page cache, and through it.");

    nb::class_<PyFileQueue>(m, "FileQueue", "Carries out transfers between files and memory.")
        .def(
            "__init__",
            [](PyFileQueue* self, const std::shared_ptr<Engine>& engine, unsigned depth, unsigned threads,
               uint64_t staging_bytes, bool uring) {
                check_open(*engine);
                std::string why = "it is turned off";
                std::unique_ptr<storage::FileIo> io = uring ? storage::open_uring(depth, why) : nullptr;
                if (io) {
                    why.clear();
                } else {
                    io = storage::open_threads(threads);
                }
                const auto queue = std::make_shared<FileQueue>(*engine, std::move(io), staging_bytes);
                engine->add_work(queue);
                new (self) PyFileQueue{engine, queue, queue->backend(), queue->staging_bytes(), std::move(why)};
            },
            nb::arg("engine"), nb::arg("depth"), nb::arg("threads"), nb::arg("staging_bytes"), nb::arg("uring"))
        .def_prop_ro("backend", [](const PyFileQueue& self) { return self.backend; })
        .def_prop_ro(
            "why_no_uring", [](const PyFileQueue& self) { return self.why_no_uring; },
            "Why threads carry the transfers out; empty if io_uring does.")
        .def_prop_ro("staging_bytes", [](const PyFileQueue& self) { return self.staging_bytes; })
        .def(
            "fix",
            [](const PyFileQueue& self, const PyRegion& region) {
                // NOLINTNEXTLINE(performance-unnecessary-copy-initialization): kept while others may close it
                const std::shared_ptr<Region> memory = region.get();
                const Held held = self.hold();
                const Released release;
                std::string why;
                return held.queue->fix(memory, why) ? std::string() : why;
            },
            nb::arg("region"), "Has the system keep the pages of memory at hand; returns why it does not, or nothing.")
        .def(
            "unfix",
            [](const PyFileQueue& self, const PyRegion& region) {
                const std::shared_ptr<Region> memory = region.region;
                const Held held{self.engine.lock(), self.queue.lock()};
                if (memory && held.queue && !held.engine->closed()) {
                    const Released release;
                    held.queue->unfix(*memory);
                }
            },
            nb::arg("region"))
        .def(
            "transfer", &transfer, nb::arg("file"), nb::arg("region"), nb::arg("write"), nb::arg("part_offset"),
            nb::arg("part_nbytes"), nb::arg("file_offsets"), nb::arg("memory_offsets"), nb::arg("lengths"),
            nb::arg("whole"), nb::arg("deadline_ns"),
            "Begins one transfer for each entry of the arrays. The Op ends with the last; its bytes are their sum, and "
            "its value the errno of the first failure; `whole`: fewer bytes than all are a failure without one.")
        .def(
            "ring",
            [](const PyFileQueue& self, size_t entries) {
                return PyRing{self, std::make_shared<Ring>(*self.hold().engine, entries)};
            },
            nb::arg("entries"))
        .def(
            "close",
            [](PyFileQueue& self) {
                const Held held{self.engine.lock(), self.queue.lock()};
                self.queue.reset();
                if (held.engine && held.queue) {
                    const Released release;
                    held.engine->close_work(held.queue, {Status::closed, Reason::owner_closed});
                }
            },
            "Ends what has not begun.");

    nb::class_<PyRing>(m, "FileRing", "Keeps the results of transfers until they are taken.")
        .def("post", &post_to_ring, nb::arg("file"), nb::arg("region"), nb::arg("write"), nb::arg("part_offset"),
             nb::arg("part_nbytes"), nb::arg("file_offsets"), nb::arg("memory_offsets"), nb::arg("lengths"),
             nb::arg("userdata"), "Begins transfers; False, and nothing is done, if the ring has no room for them all.")
        .def("take", &take, nb::arg("most"), "Results as records of 24 bytes: userdata, result, status, reason.")
        .def_prop_ro("ready", [](const PyRing& self) { return self.ring->ready(); })
        .def_prop_ro("taken_up", [](const PyRing& self) { return self.ring->taken_up(); })
        .def(
            "wait",
            [](const PyRing& self, size_t results, uint64_t deadline_ns, uint64_t spin_ns) {
                const Held held = self.home.hold();
                const Released release;
                return held.engine->wait(
                    [&] {
                        return self.ring->ready() >= std::min(results, self.ring->taken_up()) || held.engine->closed();
                    },
                    deadline_ns, spin_ns);
            },
            nb::arg("results"), nb::arg("deadline_ns"), nb::arg("spin_ns"),
            "Waits until that many results are there, or all that can still come.")
        .def(
            "end_when",
            [](const PyRing& self, size_t results, uint64_t deadline_ns) {
                const Held held = self.home.hold();
                OpRef op = held.engine->operations().create(deadline_ns);
                self.ring->end_when(results, op);
                held.engine->note_pending(deadline_ns, now_ns());
                return PyOp{held.engine, std::move(op)};
            },
            nb::arg("results"), nb::arg("deadline_ns"), nb::call_guard<Released>())
        .def("close", [](const PyRing& self) { self.ring->close(); });
}

} // namespace zerohop::bind
