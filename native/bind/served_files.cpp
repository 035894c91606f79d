// Binds both halves of transfers that a server carries out for a process of its host.
#include "bind/files.hpp"
#include "storage/file_serving.hpp"

#include <nanobind/stl/optional.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace zerohop::bind {

namespace {

using storage::FileAsking;
using storage::FileServing;
using storage::Purpose;
using storage::Range;
using storage::RangePart;
using storage::ServedNumber;

constexpr uint64_t kPartBytes = 8ULL << 20;

// Not the other itself, whose last reference a poller may drop, which has no Python.
struct PyServedBytes {
    std::shared_ptr<storage::ServedBytes> bytes = std::make_shared<storage::ServedBytes>();
};

// Keeps neither alive: the engine has the other until that is closed.
struct PyFileServing {
    std::weak_ptr<Engine> engine;
    std::weak_ptr<FileServing> serving;

    // Both are null once the other is closed.
    [[nodiscard]] std::pair<std::shared_ptr<Engine>, std::shared_ptr<FileServing>> hold() const {
        std::shared_ptr<Engine> held = engine.lock(); // destroyed after the other
        return {held, held && !held->closed() ? serving.lock() : nullptr};
    }
};

std::optional<PyOp> transfer(const PyFileAsking& self, const PyServedNumber& file, const PyServedNumber& memory,
                             const PyRegion& region, bool write, uint64_t part_offset, uint64_t part_nbytes,
                             nb::handle file_offsets, nb::handle memory_offsets, nb::handle lengths, bool whole,
                             uint64_t deadline_ns) {
    const auto [engine, asking] = self.hold();
    const Part part{{region.get(), {}}, part_offset, part_nbytes};
    const std::vector<Range> ranges = ranges_of(part, file_offsets, memory_offsets, lengths, nb::none());
    if (!asking || ranges.empty()) {
        return std::nullopt;
    }
    // Parts that are short enough to be asked for, and leave room for those of other clients.
    std::vector<Range> asked;
    std::vector<RangePart> parts;
    std::vector<uint64_t> sizes;
    asked.reserve(ranges.size());
    parts.reserve(ranges.size());
    sizes.reserve(ranges.size());
    uint64_t least = 0;
    for (const Range& range : ranges) {
        uint64_t done = 0;
        do {
            const uint64_t nbytes = std::min(kPartBytes, range.nbytes - done);
            asked.push_back({range.file_offset + done, range.memory_offset + done, nbytes, parts.size()});
            parts.push_back({sizes.size(), done, nbytes});
            done += nbytes;
        } while (done < range.nbytes);
        sizes.push_back(range.nbytes);
        least += whole ? range.nbytes : 0;
    }
    OpRef op = engine->operations().create(deadline_ns);
    const Released release;
    auto sink = std::make_shared<storage::PartsSink>(*engine, op, std::move(parts), std::move(sizes), least);
    Place place;
    if (const Outcome pinned = part.target.pin_for(write, place); !pinned.ok()) {
        op->finish(pinned);
        throw NativeError(pinned, "");
    }
    if (!asking->post({file.number, memory.number, write, storage::Priority::normal, std::move(place)}, asked,
                      std::move(sink))) {
        op->finish({Status::cancelled, Reason::user}); // nobody has seen it
        return std::nullopt;
    }
    if (!op->done()) {
        engine->note_pending(deadline_ns, now_ns());
    }
    return PyOp{engine, std::move(op)};
}

void register_asking(nb::module_& m) {
    nb::class_<PyServedNumber>(m, "ServedNumber",
                               "The number of a file or of memory at a server, which is told when it is dropped.")
        .def_prop_ro("value", [](const PyServedNumber& self) { return self.number->value(); });
    nb::class_<PyFileAsking>(m, "FileAsking", "Asks a server of this host for transfers, over a lane.")
        .def(
            "__init__",
            [](PyFileAsking* self, const std::shared_ptr<Engine>& engine, const PyEndpoint& lane) {
                check_open(*engine);
                const auto asking = std::make_shared<FileAsking>(*engine, lane.endpoint);
                new (self) PyFileAsking{engine, asking};
                const Released release;
                engine->add_work(asking);
            },
            nb::arg("engine"), nb::arg("lane"))
        .def_prop_ro(
            "queue",
            [](const PyFileAsking& self) {
                const auto [engine, asking] = self.hold();
                return asking ? asking->queue() : 0;
            },
            "The queue of notifications that the server answers by.")
        .def_prop_ro(
            "usable",
            [](const PyFileAsking& self) {
                const auto [engine, asking] = self.hold();
                return asking && asking->usable();
            },
            "False: the server or the lane takes no more.")
        .def(
            "ask_by",
            [](const PyFileAsking& self, uint16_t queue) {
                const auto [engine, asking] = self.hold();
                if (asking) {
                    const Released release;
                    asking->ask_by(queue);
                }
            },
            nb::arg("queue"), "Names the server's queue of notifications.")
        .def(
            "number",
            [](const PyFileAsking& self, uint16_t number, bool of_file) -> std::optional<PyServedNumber> {
                const auto [engine, asking] = self.hold();
                if (!asking) {
                    return std::nullopt;
                }
                const Purpose::What what = of_file ? Purpose::What::forget_file : Purpose::What::forget_memory;
                return PyServedNumber{std::make_shared<const ServedNumber>(asking, what, number)};
            },
            nb::arg("number"), nb::arg("of_file"), "Holds a number that the server has given out.")
        .def(
            "close_unused",
            [](const PyFileAsking& self) {
                const auto [engine, asking] = self.hold();
                const Released release;
                if (asking && !asking->has_asked()) {
                    engine->close_work(asking, {Status::closed, Reason::owner_closed});
                }
            },
            "Gives it up if the server has not named its queue, and so was asked for nothing.")
        .def("transfer", &transfer, nb::arg("file"), nb::arg("memory"), nb::arg("region"), nb::arg("write"),
             nb::arg("part_offset"), nb::arg("part_nbytes"), nb::arg("file_offsets"), nb::arg("memory_offsets"),
             nb::arg("lengths"), nb::arg("whole"), nb::arg("deadline_ns"),
             "Begins transfers like FileQueue.transfer(); the part is of what the memory's number means. None, and "
             "nothing is done: the server takes no more over the lane.");
}

void register_serving(nb::module_& m) {
    nb::class_<PyServedBytes>(m, "ServedBytes", "The bytes that a server has moved for clients of its host.")
        .def(nb::init<>())
        .def_prop_ro("read", [](const PyServedBytes& self) { return self.bytes->read.load(); })
        .def_prop_ro("written", [](const PyServedBytes& self) { return self.bytes->written.load(); });
    nb::class_<PyFileServing>(m, "FileServing", "Carries out the transfers that one client of this host asks for.")
        .def(
            "__init__",
            [](PyFileServing* self, const PyFileQueue& files, const PyEndpoint& lane, uint16_t answers,
               const PyServedBytes& bytes) {
                const Held held = files.hold();
                const auto serving =
                    std::make_shared<FileServing>(*held.engine, held.queue, lane.endpoint, answers, bytes.bytes);
                new (self) PyFileServing{held.engine, serving};
                const Released release;
                held.engine->add_work(serving);
            },
            nb::arg("files"), nb::arg("lane"), nb::arg("answers"), nb::arg("bytes"),
            "`answers`: the client's queue of notifications for them; `bytes` counts.")
        .def_prop_ro(
            "queue",
            [](const PyFileServing& self) {
                const auto [engine, serving] = self.hold();
                return serving ? serving->queue() : 0;
            },
            "The queue of notifications that the client asks by.")
        .def(
            "add_file",
            [](const PyFileServing& self, const PyOpenFile& file, bool reads, bool writes) -> std::optional<uint16_t> {
                const auto [engine, serving] = self.hold();
                return serving ? serving->add_file(file.file, reads, writes) : std::nullopt;
            },
            nb::arg("file"), nb::arg("reads"), nb::arg("writes"),
            "Gives out a number, until the client has forgotten it; None: there are too many.")
        .def(
            "add_memory",
            [](const PyFileServing& self, const PyReached& memory, uint64_t start,
               uint64_t nbytes) -> std::optional<uint16_t> {
                if (start > memory.nbytes || nbytes > memory.nbytes - start) {
                    throw nb::value_error("the part does not lie within the peer's memory");
                }
                const auto [engine, serving] = self.hold();
                return serving ? serving->add_memory(memory.access, start, nbytes, memory.rights) : std::nullopt;
            },
            nb::arg("memory"), nb::arg("start"), nb::arg("nbytes"), "Gives out a number for a part, like add_file().")
        .def(
            "close",
            [](const PyFileServing& self) {
                const auto [engine, serving] = self.hold();
                if (serving) {
                    const Released release;
                    engine->close_work(serving, {Status::closed, Reason::owner_closed});
                }
            },
            "Takes no more, and cancels what has not begun. The client hears when nothing touches its memory.");
}

} // namespace

void register_served_files(nb::module_& m) {
    register_asking(m);
    register_serving(m);
}

} // namespace zerohop::bind
