// Binds streams of simulated devices, like those that users have, for tests and examples.
#include "accel/sim/sim.hpp"
#include "bind/common.hpp"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <string>

namespace zerohop::bind {

namespace {

struct PySimStream {
    std::shared_ptr<Engine> engine;
    std::unique_ptr<accel::Stream> stream;
    uint64_t number = 0;
    std::string device;
    std::shared_ptr<accel::Event> last;
};

PySimStream make(const std::shared_ptr<Engine>& engine, int number) {
    const auto& found = engine->accelerators().devices().at(static_cast<size_t>(sim_device(*engine, number)));
    PySimStream made{engine, nullptr, 0, found->facts().name, nullptr};
    made.stream = accel::user_stream(*found, made.number);
    if (!made.stream) {
        throw NativeError(Status::device_error, Reason::device_lost, "the device gives no stream");
    }
    return made;
}

} // namespace

void register_sim_stream(nb::module_& m) {
    nb::class_<PySimStream>(m, "SimStream", "A stream of a simulated device.")
        .def(
            "__init__",
            [](PySimStream* self, const std::shared_ptr<Engine>& engine, int number) {
                new (self) PySimStream(make(engine, number));
            },
            nb::arg("engine"), nb::arg("number"))
        .def("__cuda_stream__", [](const PySimStream& self) { return std::pair(0, self.number); })
        .def_ro("zerohop_device", &PySimStream::device)
        .def(
            "copy",
            [](PySimStream& self, uint64_t dst, uint64_t src, uint64_t nbytes) {
                const accel::CopySegment segment{dst, src, nbytes};
                self.last = self.stream->copy({&segment, 1});
            },
            nb::arg("dst"), nb::arg("src"), nb::arg("nbytes"), "Addresses of this process, of the host or the device.")
        .def(
            "wait32",
            [](PySimStream& self, uint64_t address, uint32_t value) {
                self.last = self.stream->wait32(address, value);
            },
            nb::arg("address"), nb::arg("value"), "Stands still until the word is that.")
        .def(
            "capture", [](const PySimStream& self, bool on) { accel::set_capturing(self.number, on); }, nb::arg("on"),
            "Looks as if it were being captured into a graph.")
        .def(
            "close",
            [](PySimStream& self) {
                self.last.reset();
                self.stream.reset();
                self.engine.reset();
            },
            nb::call_guard<Released>())
        .def("query",
             [](PySimStream& self) {
                 self.last = self.stream->record();
                 return self.last->query() != accel::EventState::pending;
             })
        .def(
            "synchronize",
            [](PySimStream& self, uint64_t deadline_ns) {
                const std::shared_ptr<accel::Event> end = self.stream->record();
                const Released release;
                while (end->query() == accel::EventState::pending) {
                    if (now_ns() > deadline_ns) {
                        return false;
                    }
                    nap_shortly();
                }
                return true;
            },
            nb::arg("deadline_ns"), "Whether all that is queued has ended by then.");
}

} // namespace zerohop::bind
