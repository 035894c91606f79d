// Binds the rings of transfers between files and memory.
#include "bind/files.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>

#include <algorithm>
#include <cassert>
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

std::optional<uint32_t> prepare(PyRing& self, const PyOpenFile& file, nb::handle memory, uint64_t part_offset,
                                uint64_t part_nbytes, nb::handle file_offsets, nb::handle memory_offsets,
                                nb::handle lengths, nb::handle userdata) {
    const Part part = Part::of(memory, part_offset, part_nbytes);
    return self.add({.file = file.file,
                     .memory = part.target,
                     .ranges = ranges_of(part, file_offsets, memory_offsets, lengths, userdata)});
}

// Begins the first `count` of the transfers that were added. One that cannot begin has its result like the others.
void submit(PyRing& self, size_t count) {
    const Held held = self.home.hold();
    const Released release;
    while (count > 0 && !self.prepared.empty()) {
        Prepared& first = self.prepared.front();
        const std::span<const Range> ranges = first.first(count);
        // There was room when they were prepared, and only the caller, who has the lock, takes any.
        [[maybe_unused]] const bool room = self.ring->reserve(ranges.size());
        assert(room);
        Outcome outcome;
        try {
            Place place;
            outcome = first.memory.pin_for(self.write, place);
            if (outcome.ok()) {
                outcome =
                    held.queue->post({first.file, std::move(place), self.write, self.priority}, ranges, self.ring);
            }
        } catch (...) { // whatever it is, such as no memory: nothing has begun
            self.ring->release(ranges.size());
            throw;
        }
        for (const Range& range : ranges) {
            if (!outcome.ok()) {
                self.ring->ended(range, {0, outcome, 0});
            }
        }
        count -= ranges.size();
        self.begun(ranges.size());
    }
}

// Gives a transfer that is not carried out its result, and returns its index; none if the ring has no room for it.
std::optional<uint32_t> refuse(PyRing& self, uint64_t userdata, int error) {
    if (!self.ring->has_room(self.prepared_count + 1)) {
        return {};
    }
    [[maybe_unused]] const bool room = self.ring->reserve(1);
    assert(room);
    const Range range{.userdata = userdata, .index = self.next_index++};
    self.ring->ended(range, {0, {Status::file_error, Reason::none}, error});
    return range.index;
}

// Ends transfers with this userdata, or all; returns their number, and how many of them were among the first `first`
// that were added.
std::pair<size_t, size_t> cancel(PyRing& self, std::optional<uint64_t> userdata, size_t first) {
    const Held held = self.is_served ? Held{self.home.hold_engine(), nullptr} : self.home.hold();
    const std::shared_ptr<FileAsking> asking = self.asking.lock();
    size_t ended = 0;
    size_t ended_first = 0;
    size_t place = 0;
    for (Prepared& each : self.prepared) {
        each.ranges.erase(each.ranges.begin(), each.ranges.begin() + static_cast<ptrdiff_t>(each.begun));
        each.begun = 0;
        ended += std::erase_if(each.ranges, [&](const Range& range) {
            const bool meant = !userdata || range.userdata == *userdata;
            if (meant) {
                [[maybe_unused]] const bool room = self.ring->reserve(1);
                assert(room);
                self.ring->ended(range, {0, storage::kCancelled, 0});
            }
            ended_first += meant && place < first ? 1 : 0;
            ++place;
            return meant;
        });
    }
    std::erase_if(self.prepared, [&](Prepared& each) {
        if (each.ranges.empty() && each.keep) {
            self.dropped.push_back(std::move(each.keep));
        }
        return each.ranges.empty();
    });
    self.prepared_count -= ended;
    for (Left& each : self.left) {
        ended += std::erase_if(each.ranges, [&](const Range& range) {
            const bool meant = !userdata || range.userdata == *userdata;
            if (meant) {
                self.ring->ended(range, {0, storage::kCancelled, 0});
            }
            return meant;
        });
    }
    const Released release;
    ended += held.queue ? held.queue->cancel(*self.ring, userdata, storage::kCancelled) : 0;
    ended += asking ? asking->cancel(*self.ring, userdata) : 0;
    return {ended, ended_first};
}

nb::bytes take(const PyRing& self, size_t most, size_t least) {
    std::vector<Completion> taken(std::min(most, self.ring->ready()));
    taken.resize(self.ring->take(taken, least));
    return nb::bytes(taken.data(), taken.size() * sizeof(Completion));
}

} // namespace

std::optional<uint32_t> PyRing::add(Prepared added) {
    const size_t count = added.ranges.size();
    if (!ring->has_room(prepared_count + count)) {
        return {};
    }
    const uint32_t first = next_index;
    for (Range& range : added.ranges) {
        range.index = next_index++;
    }
    if (count != 0) {
        prepared.push_back(std::move(added));
        prepared_count += count;
    } else if (added.keep) {
        dropped.push_back(std::move(added.keep));
    }
    return first;
}

void PyRing::begun(size_t count) {
    Prepared& first = prepared.front();
    prepared_count -= count;
    first.begun += count;
    if (first.begun == first.ranges.size()) {
        prepared.pop_front();
    }
}

void PyRing::drop_prepared() {
    prepared_count = 0;
    for (Prepared& each : prepared) {
        each.memory.drop();
        if (each.keep) {
            dropped.push_back(std::move(each.keep));
        }
    }
    prepared.clear();
}

void register_file_rings(nb::class_<PyFileQueue>& queue, nb::module_& m) {
    queue.def(
        "ring",
        [](const PyFileQueue& self, size_t entries, bool write, int priority) {
            return PyRing{self, std::make_shared<Ring>(*self.hold().engine, entries), write,
                          static_cast<storage::Priority>(priority), false};
        },
        nb::arg("entries"), nb::arg("write"), nb::arg("priority"), "Priority: 0 is high, 1 normal, 2 low.");

    nb::class_<PyRing> ring(m, "FileRing", "Keeps the results of transfers until they are taken.");
    ring.def("prepare", &prepare, nb::arg("file"), nb::arg("memory"), nb::arg("part_offset"), nb::arg("part_nbytes"),
             nb::arg("file_offsets"), nb::arg("memory_offsets"), nb::arg("lengths"), nb::arg("userdata").none(),
             "Adds transfers that submit() begins, and returns the index of the first; the others follow. None, and "
             "nothing is done, if the ring has no room for them all.")
        .def_prop_ro(
            "prepared", [](const PyRing& self) { return self.prepared_count; },
            "The transfers that were added and have not begun.")
        .def("submit", &submit, nb::arg("count"),
             "Begins the first transfers that were added. After an error the rest is still there.")
        .def("refuse", &refuse, nb::arg("userdata"), nb::arg("error"),
             "Gives a transfer that is not carried out its result, an errno, and returns its index; None if the ring "
             "has no room for it.")
        .def("cancel", &cancel, nb::arg("userdata").none(), nb::arg("first"),
             "Ends transfers with this userdata, or all, as soon as nothing uses their memory; returns their number, "
             "and how many of them were among the first that were added.")
        .def("take", &take, nb::arg("most"), nb::arg("least") = 0,
             "Results as records of 32 bytes: userdata, result, done, status, reason, index. None if there are fewer "
             "than `least`, and more can still come.")
        .def_prop_ro("ready", [](const PyRing& self) { return self.ring->ready(); })
        .def_prop_ro(
            "taken_up", [](const PyRing& self) { return self.ring->taken_up(); },
            "The transfers that have begun, and whose results were not taken.")
        .def(
            "wait",
            [](const PyRing& self, size_t results, uint64_t deadline_ns, uint64_t spin_ns) {
                const std::shared_ptr<Engine> engine = self.home.hold_engine();
                const Released release;
                return engine->wait(
                    [&] { return self.ring->ready() >= std::min(results, self.ring->taken_up()) || engine->closed(); },
                    deadline_ns, spin_ns);
            },
            nb::arg("results"), nb::arg("deadline_ns"), nb::arg("spin_ns"),
            "Waits until that many results are there, or all that can still come.")
        .def(
            "end_when",
            [](const PyRing& self, size_t results, uint64_t deadline_ns) {
                const std::shared_ptr<Engine> engine = self.home.hold_engine();
                OpRef op = engine->operations().create(deadline_ns);
                self.ring->end_when(results, op);
                engine->note_pending(deadline_ns, now_ns());
                return PyOp{engine, std::move(op)};
            },
            nb::arg("results"), nb::arg("deadline_ns"), nb::call_guard<Released>())
        .def(
            "close",
            [](PyRing& self) {
                self.ring->close();
                self.drop_prepared();
            },
            "Drops what was added, and what has not begun.");
    def_served_rings(ring);
}

} // namespace zerohop::bind
