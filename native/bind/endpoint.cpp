// Binds the ends of lanes, and the list of providers.
#include "base/clock.hpp"
#include "bind/common.hpp"
#include "provider/provider.hpp"
#include "shim/openssl.hpp"

#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <tuple>
#include <vector>

namespace zerohop::bind {

namespace {

std::vector<std::tuple<std::string, bool, std::string, std::string>> probe_all() {
    std::vector<std::tuple<std::string, bool, std::string, std::string>> found;
    for (const Provider& provider : providers()) {
        const Provider::Probe probe = provider.probe();
        found.emplace_back(provider.name, probe.usable, probe.reason, probe.fix);
    }
    return found;
}

} // namespace

void register_endpoint(nb::module_& m) {
    nb::class_<PyEndpoint>(m, "Endpoint", "One end of a lane.")
        .def_prop_ro("provider", [](const PyEndpoint& self) { return std::string(self.endpoint->provider()); })
        .def_prop_ro(
            "alive",
            [](const PyEndpoint& self) { return self.endpoint->state().ok() && self.endpoint->peer().state().ok(); })
        .def_prop_ro(
            "telling", [](const PyEndpoint& self) { return self.endpoint->telling(); },
            "Notifications and answers wait to be sent.")
        .def_prop_ro(
            "gone", [](const PyEndpoint& self) { return !self.endpoint->state().ok() && self.endpoint->idle(); },
            "Closed, and no device has anything of it any more.")
        .def_prop_ro(
            "cause",
            [](const PyEndpoint& self) {
                const Outcome cause = self.endpoint->cause();
                return std::tuple(cause.status, cause.reason);
            },
            "Why it is not usable any more.")
        .def_prop_ro(
            "quiet", [](const PyEndpoint& self) { return self.engine->quiet(self.endpoint); },
            nb::call_guard<Released>(), "This end has nothing under way, receives that wait included.")
        .def_prop_ro(
            "in_device", [](const PyEndpoint& self) { return self.endpoint->backlog(now_ns(), false).in_device; },
            "A device has not ended a transfer that it was given, or has, and nobody has looked since.")
        .def_prop_ro(
            "limits",
            [](const PyEndpoint& self) {
                const Limits limits = self.endpoint->limits();
                nb::dict result;
                result["max_message"] = limits.max_message;
                result["alignment"] = limits.alignment;
                result["fixed_us"] = limits.fixed_us;
                result["gbps"] = limits.gbps;
                return result;
            },
            nb::sig("def limits(self) -> dict[str, float]"))
        .def(
            "address",
            [](const PyEndpoint& self) {
                const Address address = self.endpoint->address();
                return nb::make_tuple(nb::bytes(address.bytes.data(), address.bytes.size()), address.fds);
            },
            nb::sig("def address(self) -> tuple[bytes, list[int]]"))
        .def(
            "connect",
            [](const PyEndpoint& self, const nb::bytes& data, const std::vector<int>& fds) {
                const Address address{std::string(data.c_str(), data.size()), fds};
                const Released release;
                self.endpoint->connect(address);
            },
            nb::arg("data"), nb::arg("fds"))
        .def(
            "close",
            [](const PyEndpoint& self, bool reset) {
                self.engine->close_endpoint(self.endpoint, reset ? Outcome{Status::peer_lost, Reason::lane_reset}
                                                                 : Outcome{Status::closed, Reason::lane_closed});
            },
            nb::arg("reset") = false, nb::call_guard<Released>(),
            "`reset`: the other end has failed, rather than that somebody here closed it.")
        .def("statistics", [](const PyEndpoint& self) {
            Statistics sums;
            self.endpoint->add_statistics(sums);
            return sums;
        });
    m.def(
        "tls_why_not", [] { return shim::openssl().why_not(); },
        "Why the sockets of lanes cannot go through TLS here; empty if they can.");
    m.def("providers", &probe_all, "Each provider of this build: (name, usable, reason, fix).");
}

} // namespace zerohop::bind
