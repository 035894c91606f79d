// Binds what memory pools need: parts of a region, marks of a device's progress, and arrays over the memory.
#include "bind/common.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/vector.h>

#include <vector>

namespace zerohop::bind {

namespace {

struct PyMark {
    std::shared_ptr<Engine> engine; // keeps alive the driver that the event needs
    std::shared_ptr<accel::Event> event;
};

PyRegion part(const std::shared_ptr<Engine>& engine, const PyRegion& whole, uint64_t offset, uint64_t nbytes) {
    check_open(*engine);
    whole.check(offset, nbytes);
    return PyRegion::of(engine, Region::part(whole.get(), offset, nbytes));
}

PyMark mark(const std::shared_ptr<Engine>& engine, int device) {
    const auto& found = device_at(*engine, device);
    const Released release;
    return {engine, found->mark()};
}

template <class... Access>
nb::object array(uint64_t address, const std::vector<size_t>& shape, nb::dlpack::dtype type, int device_type,
                 int device, const nb::object& owner) {
    return nb::cast(nb::ndarray<nb::array_api, Access...>(reinterpret_cast<void*>(address), shape.size(), shape.data(),
                                                          owner, nullptr, type, device_type, device));
}

} // namespace

void def_pool(nb::class_<Engine>& engine) {
    nb::class_<PyMark>(engine, "DeviceMark", "A moment of a device.")
        .def_prop_ro(
            "pending", [](const PyMark& self) { return self.event->query() == accel::EventState::pending; },
            nb::call_guard<Released>());
    engine
        .def("part", &part, nb::arg("region"), nb::arg("offset"), nb::arg("nbytes"),
             "A part that is pinned and closed by itself, and registered as the whole is.")
        .def("mark_device", &mark, nb::arg("device"), "When all that is queued on the device by now has ended.");
}

void register_array(nb::module_& m) {
    m.def(
        "array_over",
        [](uint64_t address, const std::vector<size_t>& shape, uint8_t code, uint8_t bits, int device_type, int device,
           bool readonly, const nb::object& owner) {
            const nb::dlpack::dtype type{code, bits, 1};
            return readonly ? array<nb::ro>(address, shape, type, device_type, device, owner)
                            : array<>(address, shape, type, device_type, device, owner);
        },
        nb::arg("address"), nb::arg("shape"), nb::arg("code"), nb::arg("bits"), nb::arg("device_type"),
        nb::arg("device"), nb::arg("readonly"), nb::arg("owner"),
        "An object with DLPack's methods over memory; code and bits of the type, and the types and numbers of devices, "
        "are DLPack's.");
}

} // namespace zerohop::bind
