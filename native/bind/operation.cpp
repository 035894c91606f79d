#include "engine/operation.hpp"

#include "bind/common.hpp"

#include <nanobind/stl/vector.h>

#include <algorithm>

namespace zerohop::bind {

namespace {

constexpr uint64_t kLongestSpin = 200 * kMillisecond; // in one call, so that Ctrl-C is heard

} // namespace

void register_operation(nb::module_& m) {
    nb::class_<PyQueue>(m, "CompletionQueue", "Tokens of operations that ended, with one event descriptor for all.")
        .def(
            "__init__",
            [](PyQueue* self, const std::shared_ptr<Engine>& engine) {
                new (self) PyQueue{engine, std::make_shared<CompletionQueue>()};
            },
            nb::arg("engine"))
        .def_prop_ro("fd", [](const PyQueue& self) { return self.queue->fd(); })
        .def("drain", [](const PyQueue& self) { return self.queue->drain(); })
        .def(
            "push", [](const PyQueue& self, uint64_t token) { self.queue->push(token); }, nb::arg("token"))
        .def(
            "wait",
            [](const PyQueue& self, uint64_t deadline_ns, uint64_t spin_ns) {
                {
                    const Released release;
                    self.engine->wait([&] { return !self.queue->empty() || self.engine->closed(); }, deadline_ns,
                                      spin_ns);
                }
                return self.queue->drain();
            },
            nb::arg("deadline_ns"), nb::arg("spin_ns"))
        .def("close", [](const PyQueue& self) { self.queue->close(); });

    nb::class_<PyBell>(m, "LoopBell",
                       "What an event loop watches: its queue, and on demand the next message of a peer.")
        .def(
            "__init__",
            [](PyBell* self, const PyQueue& queue) {
                new (self) PyBell{queue.engine, std::make_unique<LoopBell>(queue.engine->poller(), queue.queue)};
            },
            nb::arg("queue"))
        .def_prop_ro("fd", [](const PyBell& self) { return self.bell->fd(); })
        .def("listen",
             [](const PyBell& self) {
                 const Released release;
                 self.bell->listen();
             })
        .def("drain",
             [](const PyBell& self) {
                 const Released release;
                 return self.bell->drain();
             })
        .def("close", [](const PyBell& self) { self.bell->close(); });

    nb::class_<PyOp>(m, "Op", "An operation in flight. Dropping it never blocks and cancels nothing.")
        .def("done",
             [](const PyOp& self) {
                 if (!self.op->done()) { // whoever asks again and again waits, and may be the only one to poll
                     const Released release;
                     self.engine->wait([&] { return self.op->done(); }, 0, 0, false);
                 }
                 return self.op->done();
             })
        .def(
            "wait",
            [](const PyOp& self, uint64_t deadline_ns, uint64_t spin_ns) {
                if (self.op->done()) {
                    return true;
                }
                const Released release;
                return self.engine->wait([&] { return self.op->done(); }, deadline_ns, spin_ns);
            },
            nb::arg("deadline_ns"), nb::arg("spin_ns"))
        .def(
            "ended_well",
            [](const PyOp& self, uint64_t spin_ns) -> int64_t {
                if (!self.op->done()) {
                    const Released release;
                    self.engine->wait([&] { return self.op->done(); }, 0, std::min(spin_ns, kLongestSpin), false);
                }
                const bool well = self.op->status() == Status::ok;
                return well ? static_cast<int64_t>(self.op->finished_ns() - self.op->started_ns()) : -1;
            },
            nb::arg("spin_ns"), "Nanoseconds that it took, if it has ended well or does so within spin_ns; else -1.")
        .def(
            "spin",
            [](const PyOp& self, uint64_t spin_ns) {
                if (self.op->done()) {
                    return true;
                }
                const Released release;
                return self.engine->wait([&] { return self.op->done(); }, 0, spin_ns, false);
            },
            nb::arg("spin_ns"))
        .def_prop_ro("status", [](const PyOp& self) { return self.op->status(); })
        .def_prop_ro("reason", [](const PyOp& self) { return self.op->reason(); })
        .def_prop_ro("bytes_done", [](const PyOp& self) { return self.op->bytes_done(); })
        .def_prop_ro("value", [](const PyOp& self) { return self.op->value(); })
        .def_prop_ro("started_ns", [](const PyOp& self) { return self.op->started_ns(); })
        .def_prop_ro("finished_ns", [](const PyOp& self) { return self.op->finished_ns(); })
        .def("cancel",
             [](const PyOp& self) {
                 const bool ended = self.op->finish({Status::cancelled, Reason::user});
                 if (ended) {
                     self.engine->poller().kick(); // its memory may go now, and nobody else may be awake to see to it
                 }
                 return ended;
             })
        .def(
            "arm",
            [](const PyOp& self, const PyQueue& queue, uint64_t token) {
                const bool armed = self.op->arm(queue.queue, token);
                if (armed && self.engine->poller().devices_unarmed()) {
                    const Released release;
                    self.engine->poller().arm_devices();
                }
                return armed;
            },
            nb::arg("queue"), nb::arg("token"))
        .def(
            "disarm",
            [](const PyOp& self, const PyQueue& queue, uint64_t token) { self.op->disarm(*queue.queue, token); },
            nb::arg("queue"), nb::arg("token"))
        .def(
            "complete",
            [](const PyOp& self, Status status, Reason reason, uint64_t value, uint64_t bytes) {
                self.op->finish({status, reason}, bytes, value);
            },
            nb::arg("status"), nb::arg("reason"), nb::arg("value"), nb::arg("bytes"));
}

} // namespace zerohop::bind
