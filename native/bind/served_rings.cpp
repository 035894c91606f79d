// Binds what rings have beyond file_rings.cpp if a server carries out their transfers: over a lane where the server
// reaches the memory and knows the file by a number, and by Python's messages where it does not.
#include "bind/files.hpp"

#include <nanobind/stl/optional.h>

#include <algorithm>
#include <cassert>
#include <cstring>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace zerohop::bind {

namespace {

using storage::Completion;
using storage::FileAsking;
using storage::Range;
using storage::Ring;

std::optional<uint32_t> prepare_served(PyRing& self, const PyServedNumber* file, const PyServedNumber* memory,
                                       nb::object keep, const PyRegion& region, uint64_t part_offset,
                                       uint64_t part_nbytes, nb::handle file_offsets, nb::handle memory_offsets,
                                       nb::handle lengths, nb::handle userdata) {
    const Part part{{region.get(), {}}, part_offset, part_nbytes};
    Prepared added{.file = nullptr,
                   .memory = part.target,
                   .ranges = ranges_of(part, file_offsets, memory_offsets, lengths, userdata),
                   .keep = std::move(keep)};
    const bool small = std::all_of(added.ranges.begin(), added.ranges.end(),
                                   [](const Range& range) { return range.nbytes <= storage::kMostAskBytes; });
    if (file != nullptr && memory != nullptr && small) {
        added.file_number = file->number;
        added.memory_number = memory->number;
    }
    return self.add(std::move(added));
}

// Returns false, and nothing is done, if only Python can ask for the transfers.
bool post(const PyRing& self, FileAsking& asking, const Prepared& prepared, std::span<const Range> ranges) {
    Place place;
    if (const Outcome outcome = prepared.memory.pin_for(self.write, place); !outcome.ok()) {
        for (const Range& range : ranges) {
            self.ring->ended(range, {0, outcome, 0});
        }
        return true;
    }
    return asking.post({prepared.file_number, prepared.memory_number, self.write, self.priority, std::move(place)},
                       ranges, self.ring);
}

template <typename Number> nb::bytes bytes_of(std::span<const Range> ranges, Number Range::* member) {
    std::vector<Number> numbers(ranges.size());
    std::transform(ranges.begin(), ranges.end(), numbers.begin(), [&](const Range& range) { return range.*member; });
    return nb::bytes(numbers.data(), numbers.size() * sizeof(Number));
}

// Begins the first `count` transfers that were added. Those that only Python can ask for are left to take_left():
// whatever interrupts Python's call in between, they are not lost.
void submit_served(PyRing& self, size_t count) {
    const std::shared_ptr<Engine> engine = self.home.hold_engine();
    const std::shared_ptr<FileAsking> asking = self.asking.lock();
    while (count > 0 && !self.prepared.empty()) {
        const Prepared& first = self.prepared.front();
        const std::span<const Range> ranges = first.first(count);
        // There was room when they were prepared, and only the caller, who has the lock, takes any.
        [[maybe_unused]] const bool room = self.ring->reserve(ranges.size());
        assert(room);
        const bool last = ranges.size() == first.ranges.size() - first.begun;
        bool posted = false;
        try {
            self.dropped.reserve(self.dropped.size() + 1);
            self.left.reserve(self.left.size() + 1);
            if (asking && first.file_number && first.memory_number) {
                const Released release;
                posted = post(self, *asking, first, ranges);
            }
            if (!posted) {
                Left left{first.keep, {ranges.begin(), ranges.end()}};
                if (!last) {
                    first.keep.attr("hold")(); // one use more: the rest of the transfers has its own
                }
                self.left.push_back(std::move(left));
            }
        } catch (...) { // Python may lack memory, and so may native code: none of these transfers has begun
            self.ring->release(ranges.size());
            throw; // the others are still there
        }
        if (posted && last) {
            self.dropped.push_back(first.keep);
        }
        count -= ranges.size();
        self.begun(ranges.size());
    }
}

// Returns the transfers that have to be asked for by messages: what Python has kept for them, and their numbers.
nb::typed<nb::list, nb::any> take_left(PyRing& self) {
    nb::list taken;
    // Python makes objects below, and may let another thread add to what is left meanwhile.
    std::vector<Left> left = std::exchange(self.left, {});
    try {
        for (const Left& each : left) {
            const std::span<const Range> ranges = each.ranges;
            taken.append(nb::make_tuple(each.keep, bytes_of(ranges, &Range::file_offset),
                                        bytes_of(ranges, &Range::memory_offset), bytes_of(ranges, &Range::nbytes),
                                        bytes_of(ranges, &Range::userdata), bytes_of(ranges, &Range::index)));
        }
    } catch (...) { // whatever it is, such as no memory: nothing was taken, and the next call takes all
        std::move(self.left.begin(), self.left.end(), std::back_inserter(left));
        self.left = std::move(left);
        throw;
    }
    return nb::borrow<nb::typed<nb::list, nb::any>>(taken);
}

// Gives transfers that Python has asked for their results.
void complete(const PyRing& self, const nb::bytes& records) {
    if (records.size() % sizeof(Completion) != 0) {
        throw nb::value_error("a record has 32 bytes");
    }
    std::vector<Completion> results(records.size() / sizeof(Completion));
    std::memcpy(results.data(), records.c_str(), records.size());
    const Released release;
    self.ring->complete(results);
}

} // namespace

void def_served_rings(nb::class_<PyRing>& ring) {
    ring.def(
            "__init__",
            [](PyRing* self, const std::shared_ptr<Engine>& engine, const PyFileAsking* asking, size_t entries,
               bool write, int priority) {
                check_open(*engine);
                new (self) PyRing{{.engine = engine, .queue = {}, .backend = {}, .why_no_uring = {}},
                                  std::make_shared<Ring>(*engine, entries),
                                  write,
                                  static_cast<storage::Priority>(priority),
                                  true};
                if (asking != nullptr) {
                    self->asking = asking->asking;
                }
            },
            nb::arg("engine"), nb::arg("asking").none(), nb::arg("entries"), nb::arg("write"), nb::arg("priority"),
            "Makes one whose transfers a server carries out.")
        .def("prepare_served", &prepare_served, nb::arg("file").none(), nb::arg("memory").none(), nb::arg("keep"),
             nb::arg("region"), nb::arg("part_offset"), nb::arg("part_nbytes"), nb::arg("file_offsets"),
             nb::arg("memory_offsets"), nb::arg("lengths"), nb::arg("userdata").none(),
             "Adds transfers like prepare(); the part is of what the memory's number means. `keep` comes back.")
        .def(
            "keeps",
            [](const PyRing& self, nb::handle keep) {
                return std::any_of(self.prepared.begin(), self.prepared.end(),
                                   [&](const Prepared& each) { return each.keep.is(keep); }) ||
                       std::any_of(self.dropped.begin(), self.dropped.end(),
                                   [&](const nb::object& each) { return each.is(keep); });
            },
            nb::arg("keep"),
            "True if transfers that have not begun have this `keep`, or take_dropped() will return it.")
        .def("submit_served", &submit_served, nb::arg("count"),
             "Begins the first transfers that were added. Those that have to be asked for by messages are left.")
        .def_prop_ro("has_left", [](const PyRing& self) { return !self.left.empty(); })
        .def("take_left", &take_left,
             "The transfers that were left: what was kept, which has one more use, and their numbers, eight bytes "
             "each: offsets in the file and in the memory, lengths, userdata; and four bytes each: indices.")
        .def(
            "take_dropped",
            [](PyRing& self) -> nb::typed<nb::list, nb::any> {
                nb::list dropped;
                for (nb::object& each : std::exchange(self.dropped, {})) {
                    dropped.append(std::move(each));
                }
                return nb::borrow<nb::typed<nb::list, nb::any>>(dropped);
            },
            "What was kept for transfers that nobody has to ask for by messages any more.")
        .def("complete", &complete, nb::arg("records"),
             "Gives transfers that were asked for by messages their results, as records like those of take().");
}

} // namespace zerohop::bind
