// Binds the devices, as the engine knows them, and the synchronization with users' streams on them.
#include "accel/gpu/gpu_driver.hpp"
#include "accel/idle_calls.hpp"
#include "accel/sim/sim.hpp"
#include "bind/common.hpp"

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

namespace zerohop::bind {

namespace {

accel::SimDriver& sim_driver(Engine& engine, int number) {
    return dynamic_cast<accel::SimDriver&>(*engine.accelerators().place(sim_device(engine, number)).first);
}

nb::list devices(const std::shared_ptr<Engine>& engine) {
    std::vector<accel::DeviceFacts> found;
    {
        const Released release; // the first call opens the drivers
        for (const auto& device : engine->accelerators().devices()) {
            found.push_back(device->facts());
        }
    }
    nb::list result;
    int index = 0;
    for (const accel::DeviceFacts& facts : found) {
        nb::dict entry;
        entry["name"] = facts.name;
        entry["kind"] = facts.kind;
        entry["index"] = index++;
        entry["identity"] = facts.identity;
        entry["pci_address"] = facts.pci_address;
        entry["capabilities"] = facts.capabilities;
        entry["total_bytes"] = facts.total_bytes;
        result.append(entry);
    }
    return result;
}

// Returns (device, base, bytes, id) of the allocations that a range of device memory lies in; None if it is no such
// memory.
std::optional<std::tuple<int, uint64_t, uint64_t, uint64_t>> describe(Engine& engine, uint64_t address,
                                                                      uint64_t nbytes) {
    const accel::Description found = engine.accelerators().describe(address, nbytes);
    if (found.kind != accel::MemoryKind::device || found.device < 0) {
        return std::nullopt;
    }
    return std::tuple(found.device, found.base, found.size, found.allocation_id);
}

uint64_t allocation_id(Engine& engine, uint64_t address) {
    return engine.accelerators().allocation_id(address);
}

// Returns, for each kind of GPU with a driver, why it shows no devices; an empty text if it shows some.
nb::dict why_no_gpus(Engine& engine) {
    nb::dict found;
    for (const auto& driver : engine.accelerators().drivers()) {
        if (auto* const gpu = dynamic_cast<accel::GpuDriver*>(driver.get())) {
            const std::string kind = driver->kind();
            found[kind.c_str()] = gpu->why_none();
        }
    }
    return found;
}

void load_kernels(Engine& engine, int device, const nb::bytes& image) {
    const std::string held(image.c_str(), image.size());
    const Released release;
    const auto& [driver, index] = engine.accelerators().place(device);
    if (auto* const gpu = dynamic_cast<accel::GpuDriver*>(driver.get())) {
        gpu->load_kernels(index, held);
    }
}

int capability(Engine& engine, int device) {
    const auto& [driver, index] = engine.accelerators().place(device);
    auto* const gpu = dynamic_cast<accel::GpuDriver*>(driver.get());
    return gpu == nullptr ? 0 : gpu->capability(index);
}

void sim_inject(Engine& engine, int number, const std::string& what, int count) {
    const auto fault = what == "alloc"  ? accel::SimFault::alloc
                       : what == "copy" ? accel::SimFault::copy
                       : what == "link" ? accel::SimFault::link
                       : what == "lost" ? accel::SimFault::lost
                                        : throw nb::value_error("a fault is 'alloc', 'copy', 'link' or 'lost'");
    sim_driver(engine, number).inject(number, fault, count);
}

} // namespace

int sim_device(Engine& engine, int number) {
    const auto& devices = engine.accelerators().devices();
    const std::string name = "sim:" + std::to_string(number);
    const auto found = std::ranges::find(devices, name, [](const auto& device) { return device->facts().name; });
    if (found == devices.end()) {
        throw nb::value_error(("there is no " + name).c_str());
    }
    return static_cast<int>(found - devices.begin());
}

void def_devices(nb::module_& m, nb::class_<Engine>& engine) {
    using accel::IdleCalls;
    nb::class_<IdleCalls::Hold>(m, "IdleCallsHold",
                                "Lets no call to a GPU's driver begin that waits for kernels, until end() is called.")
        .def("__init__", [](IdleCalls::Hold* self) { new (self) IdleCalls::Hold(IdleCalls::Hold::AtOnce{}); })
        .def(
            "settled",
            [](IdleCalls::Hold& self, uint64_t deadline_ns) {
                return self.settled(std::min(deadline_ns, now_ns() + kLongestSpin));
            },
            nb::arg("deadline_ns"), nb::call_guard<Released>(),
            "Waits for a call that has begun, but not for long, so that Ctrl-C is heard; returns whether none runs.")
        .def("end", &IdleCalls::Hold::end);
    m.def(
        "gpu_drivers",
        [] {
            nb::dict found;
            found["cuda"] = shim::cuda() ? std::string() : shim::cuda().why_not();
            found["hip"] = shim::hip() ? std::string() : shim::hip().why_not();
            return found;
        },
        nb::sig("def gpu_drivers() -> dict[str, str]"),
        "The kinds of GPUs that this build has a driver for, and why its library cannot be used; empty where it can.");
    using Self = std::shared_ptr<Engine>;
    engine.def("devices", &devices, nb::sig("def devices(self) -> list[dict[str, typing.Any]]"))
        .def(
            "check_stream",
            [](Engine& self, int device, uint64_t stream) {
                check_open(self);
                const auto& [driver, index] = self.accelerators().place(device);
                driver->check_stream(index, stream);
            },
            nb::arg("device"), nb::arg("stream"))
        .def(
            "stream_reached",
            [](const Self& self, int device, uint64_t stream, uint64_t deadline_ns) {
                check_open(*self);
                return PyOp{self, self->stream_reached(device, stream, deadline_ns)};
            },
            nb::arg("device"), nb::arg("stream"), nb::arg("deadline_ns"))
        .def(
            "hold_stream",
            [](Engine& self, const PyOp& op, const PyEndpoint* lane, int device, uint64_t stream) {
                self.hold_stream(op.op, lane == nullptr ? nullptr : lane->endpoint.get(), device, stream);
                op.asked = true; // the stream waits
            },
            nb::arg("op"), nb::arg("lane").none(), nb::arg("device"), nb::arg("stream"),
            nb::call_guard<Released>()) // it may wait for a call of the GPU's driver
        .def(
            "hold_stream_for_notification",
            [](Engine& self, const PyOp& op, int device, uint64_t stream, uint16_t number) {
                self.hold_stream_for_notification(op.op, number, device, stream);
            },
            nb::arg("op"), nb::arg("device"), nb::arg("stream"), nb::arg("number") = 0, nb::call_guard<Released>())
        .def("describe", &describe, nb::arg("address"), nb::arg("nbytes"))
        .def("allocation_id", &allocation_id, nb::arg("address"))
        .def("why_no_gpus", &why_no_gpus, nb::sig("def why_no_gpus(self) -> dict[str, str]"))
        .def("load_kernels", &load_kernels, nb::arg("device"), nb::arg("image"))
        .def("capability", &capability, nb::arg("device"))
        .def("sim_inject", &sim_inject, nb::arg("number"), nb::arg("what"), nb::arg("count"))
        .def(
            "sim_delay",
            [](Engine& self, int number, uint64_t ns_per_copy, uint64_t bytes_per_us) {
                sim_driver(self, number).delay(number, ns_per_copy, bytes_per_us);
            },
            nb::arg("number"), nb::arg("ns_per_copy"), nb::arg("bytes_per_us"));
}

} // namespace zerohop::bind
