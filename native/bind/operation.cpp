// Binds operations, groups of operations, completion queues and the bell of an event loop.
#include "operation/operation.hpp"

#include "bind/common.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

namespace zerohop::bind {

namespace {

// Waits, and returns true if the operation has ended.
bool wait(const PyOp& self, uint64_t deadline_ns, uint64_t spin_ns, bool may_sleep) {
    if (!self.op || self.op->done()) {
        return true;
    }
    const OpRef op = self.op; // another thread may copy the result meanwhile, and drop the slot
    const std::shared_ptr<Engine> engine = self.engine;
    const Released release;
    return engine->wait([&] { return op->done(); }, deadline_ns, spin_ns, may_sleep);
}

} // namespace

bool ended_well(PyOp& self, bool patient) {
    if (!self.op) {
        return self.ended.ok();
    }
    if (self.engine->closed()) {
        return false; // this may be a forked child, where nothing ends
    }
    const OpRef op = self.op;
    const uint64_t spin_ns = std::min(self.engine->poller().spin_ns(), kLongestSpin);
    if (!(op->done() || (patient && wait(self, 0, spin_ns, false))) || op->status() != Status::ok) {
        return false;
    }
    if (self.op) { // another thread may have been first
        self.detach();
    }
    return true;
}

void register_operation(nb::module_& m) {
    nb::class_<PyGroup>(m, "Group",
                        "Operations of one owner, which end together when that goes; Engine.end_group says so.")
        .def(nb::init<>());
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
        .def(
            "listen", [](const PyBell& self) { self.bell->listen(); }, nb::call_guard<Released>())
        .def(
            "drain", [](const PyBell& self) { return self.bell->drain(); }, nb::call_guard<Released>())
        .def("close", [](const PyBell& self) { self.bell->close(); });

    nb::class_<PyHeldOp>(m, "HeldOp", "An operation that has ended. It keeps no engine.")
        .def_prop_ro(
            "held", [](const PyHeldOp& self) { return self.ended->op->holders() > 1; },
            "Whether a lane holds it still, and may move its bytes.");

    nb::class_<PyOp>(m, "Op", "An operation in flight. Dropping it never blocks and cancels nothing.")
        // done() polls, too, because a thread that calls it in a loop may be the only one to do so.
        .def("done",
             [](const PyOp& self) {
                 const bool done = wait(self, 0, 0, false);
                 self.asked |= done;
                 return done;
             })
        .def(
            "wait",
            [](const PyOp& self, uint64_t deadline_ns, uint64_t spin_ns) {
                self.asked = true;
                return wait(self, deadline_ns, spin_ns, true);
            },
            nb::arg("deadline_ns"), nb::arg("spin_ns"))
        .def(
            "spin", [](const PyOp& self, uint64_t spin_ns) { return wait(self, 0, spin_ns, false); },
            nb::arg("spin_ns"))
        .def_prop_ro("asked", [](const PyOp& self) { return self.asked; })
        .def_prop_ro("status", [](const PyOp& self) { return self.op ? self.op->status() : self.ended.status; })
        .def_prop_ro("reason", [](const PyOp& self) { return self.op ? self.op->reason() : self.ended.reason; })
        .def(
            "outlived",
            [](PyOp& self) -> std::optional<PyHeldOp> {
                if (self.op && self.op->holders() > 1) {
                    self.held = std::make_shared<const EndedOp>(EndedOp{self.engine->shared_operations(), self.op});
                    self.detach();
                }
                return self.held ? std::optional(PyHeldOp{self.held}) : std::nullopt;
            },
            "What tells until when a lane holds the operation, which has ended; None if none does.")
        .def_prop_ro("bytes_done", [](const PyOp& self) { return self.op ? self.op->bytes_done() : self.bytes_done; })
        .def_prop_ro("value", [](const PyOp& self) { return self.op ? self.op->value() : self.value; })
        .def_prop_ro("started_ns", [](const PyOp& self) { return self.op ? self.op->started_ns() : self.started_ns; })
        .def_prop_ro("finished_ns",
                     [](const PyOp& self) { return self.op ? self.op->finished_ns() : self.finished_ns; })
        .def("cancel",
             [](const PyOp& self) {
                 // Looks first: an operation whose end was not noticed yet has ended, too.
                 if (wait(self, 0, 0, false)) {
                     return false;
                 }
                 const bool ended = self.op && self.op->finish({Status::cancelled, Reason::user});
                 if (ended) {
                     // the operation's memory may be freed now, and nobody else may be awake to do it
                     self.engine->poller().kick();
                 }
                 return ended;
             })
        .def(
            "arm",
            [](const PyOp& self, const PyQueue& queue, uint64_t token) {
                self.asked = true;
                const bool armed = self.op && self.op->arm(queue.queue, token);
                if (armed) {
                    const std::shared_ptr<Engine> engine = self.engine; // another thread may copy the result
                    if (engine->poller().devices_unarmed()) {
                        const Released release;
                        engine->poller().arm_devices();
                    }
                    engine->note_awaited(); // also for work that arming the devices has found and left
                }
                return armed;
            },
            nb::arg("queue"), nb::arg("token"))
        .def(
            "disarm",
            [](const PyOp& self, const PyQueue& queue, uint64_t token) {
                if (self.op) {
                    self.op->disarm(*queue.queue, token);
                }
            },
            nb::arg("queue"), nb::arg("token"))
        .def(
            "complete",
            [](const PyOp& self, Status status, Reason reason, uint64_t value, uint64_t bytes) {
                if (self.op) {
                    self.op->finish({status, reason}, bytes, value);
                }
            },
            nb::arg("status"), nb::arg("reason"), nb::arg("value"), nb::arg("bytes"));
}

} // namespace zerohop::bind
