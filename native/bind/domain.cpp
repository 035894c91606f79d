// Binds domains (opened device ports) and the keys of remote memory.
#include "bind/common.hpp"
#include "provider/provider.hpp"

#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

namespace zerohop::bind {

void register_domain(nb::module_& m) {
    nb::class_<PyDomain>(m, "Domain", "An opened device port of a provider that is made of devices.")
        .def_prop_ro("provider", [](const PyDomain& self) { return std::string(self.domain->provider()); })
        .def_prop_ro("device", [](const PyDomain& self) { return self.domain->device(); })
        .def_prop_ro("port", [](const PyDomain& self) { return self.domain->port(); })
        .def_prop_ro("number", [](const PyDomain& self) { return self.domain->number(); })
        .def_prop_ro("alive", [](const PyDomain& self) { return self.domain->alive(); })
        .def_prop_ro(
            "lost", [](const PyDomain& self) { return self.domain->lost(); },
            "The device has failed for good: only a new Domain can use it again.")
        .def(
            "retune", [](const PyDomain& self, const DomainOptions& options) { self.domain->retune(options); },
            nb::arg("options"), "What it was opened with, for the lanes that are made from now on.")
        .def("facts", [](const PyDomain& self) { return self.domain->facts(); })
        .def("close", [](const PyDomain& self) { self.engine->close_domain(self.domain); }, nb::call_guard<Released>());

    nb::class_<PyRemoteKeys>(m, "RemoteKeys", "What reaches a peer's memory over a lane of NICs: a key for each rail.")
        .def(nb::new_(
                 [](uint64_t address, uint64_t nbytes, int rights, const std::vector<uint32_t>& keys, bool atomics) {
                     return PyRemoteKeys{make_pinnable<verbs::RemoteKeys>(address, nbytes, static_cast<uint8_t>(rights),
                                                                          keys, atomics)};
                 }),
             nb::arg("address"), nb::arg("nbytes"), nb::arg("rights"), nb::arg("keys"), nb::arg("atomics"))
        .def_prop_ro("nbytes", [](const PyRemoteKeys& self) { return self.keys->nbytes; })
        .def_prop_ro(
            "address", [](const PyRemoteKeys& self) { return self.keys->address; },
            "Address of the memory at the peer.")
        .def_prop_ro("keys", [](const PyRemoteKeys& self) { return self.keys->keys; })
        .def_prop_ro(
            "atomics", [](const PyRemoteKeys& self) { return self.keys->atomics; },
            "Tells whether the peer's NIC carries out atomics.")
        .def(
            "close", [](const PyRemoteKeys& self) { return self.keys->close(); },
            "No operation begins with it any more; True once none is left that did before.");
}

} // namespace zerohop::bind
