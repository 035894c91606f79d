// Binds the transfers between files and memory.
#include "base/pages.hpp"
#include "bind/files.hpp"
#include "bind/held_descriptor.hpp"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <bit>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace zerohop::bind {

namespace {

using storage::FileQueue;
using storage::OpenFile;
using storage::Range;

std::pair<PyOp, PyMoved> transfer(const PyFileQueue& self, const PyOpenFile& file, nb::handle memory, bool write,
                                  uint64_t part_offset, uint64_t part_nbytes, nb::handle file_offsets,
                                  nb::handle memory_offsets, nb::handle lengths, bool whole, uint64_t deadline_ns) {
    const Held held = self.hold();
    const Part part = Part::of(memory, part_offset, part_nbytes);
    const std::vector<Range> ranges = ranges_of(part, file_offsets, memory_offsets, lengths, nb::none());
    uint64_t least = 0;
    for (const Range& range : ranges) {
        least += whole ? range.nbytes : 0;
    }
    OpRef op = held.engine->operations().create(deadline_ns);
    auto moved = std::make_shared<storage::Moved>();
    const Released release;
    if (ranges.empty()) {
        op->finish({});
    } else {
        auto sink = std::make_shared<storage::OperationSink>(*held.engine, op, ranges.size(), least, moved);
        Place place;
        Outcome outcome = part.target.pin_for(write, place);
        if (outcome.ok()) {
            outcome = held.queue->post({file.file, std::move(place), write}, ranges, std::move(sink));
        }
        if (!outcome.ok()) {
            op->finish(outcome);
            throw NativeError(outcome, "");
        }
    }
    if (!op->done()) {
        held.engine->note_pending(deadline_ns, now_ns());
    }
    return {PyOp{held.engine, std::move(op)}, PyMoved{std::move(moved)}};
}

// Returns the number of the first range that cannot be direct, and what keeps it from that.
std::pair<size_t, int> obstacle(const PyOpenFile& self, nb::handle memory, bool write, uint64_t part_offset,
                                uint64_t part_nbytes, nb::handle file_offsets, nb::handle memory_offsets,
                                nb::handle lengths) {
    const Part part = Part::of(memory, part_offset, part_nbytes);
    const std::vector<Range> ranges = ranges_of(part, file_offsets, memory_offsets, lengths, nb::none());
    const Released release;
    Place place;
    if (!part.target.pin_for(write, place).ok()) {
        return {0, 0}; // the transfer itself tells why not
    }
    OpenFile::Length length;
    for (size_t i = 0; i < ranges.size(); ++i) {
        const Range& range = ranges[i];
        const storage::Obstacle found =
            range.nbytes == 0 ? storage::Obstacle::none
            : place.host == nullptr
                ? self.file->gpu_obstacle(write, range.file_offset, range.nbytes, place.address + range.memory_offset,
                                          length)
                : self.file->obstacle(write, range.file_offset, range.nbytes, place.host + range.memory_offset, length);
        if (found != storage::Obstacle::none) {
            return {i, static_cast<int>(found)};
        }
    }
    return {0, 0};
}

} // namespace

Target Target::of(nb::handle memory) {
    if (nb::isinstance<PyReached>(memory)) {
        return {nullptr, nb::cast<const PyReached&>(memory)};
    }
    return {nb::cast<const PyRegion&>(memory).get(), {}};
}

Outcome Target::pin(Place& place) const {
    return region ? pin_place(region, place) : reached.access->pin(place);
}

Outcome Target::pin_for(bool write, Place& place) const {
    const uint8_t needed = write ? kRightRead : kRightWrite; // a write to a file reads the memory
    return !region && (reached.rights & needed) == 0 ? Outcome{Status::access_denied, Reason::rights} : pin(place);
}

Part Part::of(nb::handle memory, uint64_t offset, uint64_t nbytes) {
    if (nb::isinstance<PyReached>(memory)) {
        const auto& reached = nb::cast<const PyReached&>(memory);
        if (offset > reached.nbytes || nbytes > reached.nbytes - offset) {
            throw nb::value_error("the part does not lie within the peer's memory");
        }
        return {{nullptr, reached}, offset, nbytes};
    }
    const auto& region = nb::cast<const PyRegion&>(memory);
    region.check(offset, nbytes);
    return {{region.get(), {}}, offset, nbytes};
}

std::vector<Range> ranges_of(const Part& part, nb::handle file_offsets, nb::handle memory_offsets, nb::handle lengths,
                             nb::handle userdata) {
    const Indices of_files(file_offsets);
    const Indices of_memory(memory_offsets);
    const Indices of_lengths(lengths);
    std::optional<Indices> of_userdata;
    if (!userdata.is_none()) {
        of_userdata.emplace(userdata);
    }
    const std::span<const int64_t> starts = of_files.numbers();
    const std::span<const int64_t> places = of_memory.numbers();
    const std::span<const int64_t> sizes = of_lengths.numbers();
    const std::span<const int64_t> numbers = of_userdata ? of_userdata->numbers() : std::span<const int64_t>();
    const size_t count = starts.size();
    if (places.size() != count || sizes.size() != count || (of_userdata && numbers.size() != count)) {
        const std::string told = "the arrays have different lengths: " + std::to_string(count) + " offsets, " +
                                 std::to_string(sizes.size()) + " lengths, " + std::to_string(places.size()) +
                                 " offsets in the memory" +
                                 (of_userdata ? ", and userdata of " + std::to_string(numbers.size()) : "");
        throw nb::value_error(told.c_str());
    }
    std::vector<Range> ranges(count);
    for (size_t i = 0; i < count; ++i) {
        const auto nbytes = static_cast<uint64_t>(sizes[i]);
        const auto at = static_cast<uint64_t>(places[i]); // a negative number is a very large one
        if (nbytes > part.nbytes || at > part.nbytes - nbytes) {
            throw nb::value_error(
                ("a range does not lie within the " + std::to_string(part.nbytes) + " bytes of the memory").c_str());
        }
        if (starts[i] < 0 || starts[i] > INT64_MAX - sizes[i]) {
            throw nb::value_error("an offset in the file is negative, or too large");
        }
        ranges[i] = {static_cast<uint64_t>(starts[i]), part.offset + at, nbytes,
                     of_userdata ? static_cast<uint64_t>(numbers[i]) : i};
    }
    return ranges;
}

void register_storage(nb::module_& m) {
    nb::class_<PyOpenFile>(m, "OpenFile", "A file that is open for transfers.")
        .def(
            "__init__",
            [](PyOpenFile* self, PyHeldDescriptor& held, PyHeldDescriptor* held_direct, uint32_t memory_alignment,
               uint32_t offset_alignment, int direct, std::string no_gpudirect, bool gpu_required) {
                if (!std::has_single_bit(memory_alignment) || !std::has_single_bit(offset_alignment)) {
                    throw nb::value_error("an alignment is a power of two");
                }
                new (self) PyOpenFile{std::make_shared<OpenFile>(
                    held.descriptor.get(), held_direct != nullptr ? held_direct->descriptor.get() : -1,
                    storage::Alignment{.memory = memory_alignment, .offset = offset_alignment},
                    static_cast<storage::Direct>(direct), std::move(no_gpudirect), gpu_required)};
                static_cast<void>(held.descriptor.release());
                if (held_direct != nullptr) {
                    static_cast<void>(held_direct->descriptor.release());
                }
            },
            nb::arg("held"), nb::arg("held_direct").none(), nb::arg("memory_alignment"), nb::arg("offset_alignment"),
            nb::arg("direct"), nb::arg("no_gpudirect"), nb::arg("gpu_required"),
            "Takes both descriptors; the second has O_DIRECT, if there is one. no_gpudirect: why cuFile is not to be "
            "asked.")
        .def("obstacle", &obstacle, nb::arg("memory"), nb::arg("write"), nb::arg("part_offset"), nb::arg("part_nbytes"),
             nb::arg("file_offsets"), nb::arg("memory_offsets"), nb::arg("lengths"),
             "The first range that cannot be direct, and why; 0: all can.")
        .def_prop_ro(
            "no_gpudirect", [](const PyOpenFile& self) { return self.file->known_no_gpudirect(); },
            "Why cuFile does not have the file, as far as it is known; empty if it may.")
        .def_prop_ro("fd", [](const PyOpenFile& self) { return self.file->fd(); })
        .def_prop_ro(
            "moved", [](const PyOpenFile& self) { return self.file->moved(); },
            "The bytes that were moved past the page cache, and through it.");

    nb::class_<PyMoved>(m, "Moved", "Which way the bytes of a transfer have gone.")
        .def(
            "past_and_through", [](const PyMoved& self) { return self.moved->past_and_through(); },
            "The bytes that were moved past the page cache, and through it.")
        .def_prop_ro(
            "by_gpudirect", [](const PyMoved& self) { return self.moved->by_gpudirect(); },
            "The bytes that were moved between the file and a GPU without host memory.");

    m.attr("URING_DEPTH") = storage::kUringDepth;
    m.def(
        "why_no_uring",
        [] {
            const Released release;
            std::string why;
            return storage::open_uring(storage::kUringDepth, why) ? std::string() : why;
        },
        "Why threads would read and write files instead of io_uring; empty if io_uring would.");

    m.def(
        "why_no_gpudirect",
        [] {
            const Released release;
            return storage::CuFile::of_process().why_not();
        },
        "Why no file goes straight into memory of GPUs; empty if cuFile is ready. The first call opens its driver.");

    m.def(
        "gather_pages",
        [](const PyRegion& region) {
            Pin<Region> pin;
            if (pin_local(region.get(), pin).ok() && pin->is_host() && pin->nbytes() <= storage::kGatheredBytes) {
                const Released release;
                gather_pages(pin->host(), pin->nbytes());
            }
        },
        nb::arg("region"), "Has the system move host memory into huge pages, where it can.");

    nb::class_<PyReached>(m, "Reached", "A peer's memory that files are read into and written from without a lane.")
        .def(
            "__init__",
            [](PyReached* self, Engine& engine, uint64_t route) {
                const std::shared_ptr<const Route> found = engine.route(route);
                if (!found || !found->access) {
                    throw nb::value_error("no such route, or only its lane reaches the memory");
                }
                new (self) PyReached{found->access, found->remote_nbytes, found->rights};
            },
            nb::arg("engine"), nb::arg("route"))
        .def(
            "place",
            [](const PyReached& self) {
                Place place;
                if (const Outcome outcome = self.access->pin(place); !outcome.ok()) {
                    throw NativeError(outcome, "");
                }
                const uint64_t address = place.host != nullptr ? reinterpret_cast<uint64_t>(place.host) : place.address;
                return std::pair(place.device, address);
            },
            "The number of the device that reaches it, or -1, and where it begins.");

    nb::class_<PyFileQueue> queue(m, "FileQueue", "Carries out transfers between files and memory.");
    queue
        .def(
            "__init__",
            [](PyFileQueue* self, const std::shared_ptr<Engine>& engine, unsigned depth, unsigned threads,
               uint64_t staging_bytes, bool uring) {
                check_open(*engine);
                std::string why = "it is turned off";
                std::unique_ptr<storage::FileIo> io;
                if (uring) {
                    why.clear();
                    io = storage::open_io(depth, threads, why);
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
            [](const PyFileQueue& self, nb::handle memory) {
                const Target target = Target::of(memory);
                const Held held = self.hold();
                const Released release;
                Place place; // pinned, so that the pages are those of the memory while they are being fixed
                std::string why;
                if (!target.pin(place).ok()) {
                    return std::string("the memory is closed");
                }
                return held.queue->fix(place, target.pinned(), why) ? std::string() : why;
            },
            nb::arg("memory"), "Has the system keep the pages of memory at hand; returns why it does not, or nothing.")
        .def(
            "unfix",
            [](const PyFileQueue& self, nb::handle memory) {
                const std::shared_ptr<const void> object = nb::isinstance<PyReached>(memory)
                                                               ? nb::cast<const PyReached&>(memory).access->pinned()
                                                               : nb::cast<const PyRegion&>(memory).region;
                const Held held{self.engine.lock(), self.queue.lock()};
                if (object && held.queue && !held.engine->closed()) {
                    const Released release;
                    held.queue->unfix(object.get());
                }
            },
            nb::arg("memory"))
        .def(
            "why_staged",
            [](const PyFileQueue& self, const PyOpenFile& file, nb::handle memory) {
                const Held held = self.hold();
                const Target target = Target::of(memory);
                const Released release;
                Place place;
                if (!target.pin(place).ok()) {
                    return std::string("the memory is closed");
                }
                return held.queue->why_staged(*file.file, place, storage::CuFile::of_process());
            },
            nb::arg("file"), nb::arg("memory"),
            "Why bytes between them pass through host buffers; empty if those that are aligned need not.")
        .def(
            "transfer", &transfer, nb::arg("file"), nb::arg("memory"), nb::arg("write"), nb::arg("part_offset"),
            nb::arg("part_nbytes"), nb::arg("file_offsets"), nb::arg("memory_offsets"), nb::arg("lengths"),
            nb::arg("whole"), nb::arg("deadline_ns"),
            "Begins one transfer for each entry of the arrays. The Op ends with the last; its bytes are their sum, and "
            "its value the errno of the first failure; `whole`: fewer bytes than all are a failure without one.")
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

    register_file_rings(queue, m);
    register_served_files(m);
}

} // namespace zerohop::bind
