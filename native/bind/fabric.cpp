// Binds the explicit verbs API; in a build without verbs, stand-ins that raise.
#include "bind/fabric.hpp"

#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#ifdef ZEROHOP_VERBS
#include "fabric/inventory.hpp"
#include "provider/verbs/domain.hpp"

#include <cstring>
#include <tuple>
#include <vector>
#else
#include "provider/unbuilt.hpp"
#endif

namespace zerohop::bind {

#ifdef ZEROHOP_VERBS

namespace {

// (address, length, local key) of each entry of a scatter/gather list.
using ScatterGatherList = std::vector<std::tuple<uint64_t, uint32_t, uint32_t>>;
// A work completion: id, opcode, status, bytes, immediate or -1, vendor's error.
using CompletionTuple = std::tuple<uint64_t, int, int, uint32_t, int64_t, uint32_t>;
// An address: queue pair number, PSN, LID, link layer, MTU code, read credit, GID or nothing.
using AddressTuple = std::tuple<uint32_t, uint32_t, uint16_t, uint8_t, uint8_t, uint8_t, nb::bytes>;

nb::list devices() {
    std::vector<fabric::DeviceFacts> found;
    {
        const Released release;
        found = fabric::devices();
    }
    nb::list result;
    for (const fabric::DeviceFacts& device : found) {
        nb::object entry = nb::cast(device.device);
        entry["ports"] = nb::cast(device.ports);
        result.append(entry);
    }
    return result;
}

PyFabricRegion register_memory(const PyFabricDevice& self, Engine* engine, uint64_t address, uint64_t nbytes,
                               int access) {
    const std::shared_ptr<verbs::Device> device = self.get();
    using Whose = verbs::MemoryRegion::Whose;
    std::vector<accel::Registrable> ways;
    if (engine == nullptr) {
        ways.push_back({.kind = accel::Registrable::Kind::plain, .address = address, .why_not = ""});
    } else {
        ways = engine->accelerators().registrable(address, nbytes);
    }
    const Released release;
    return {{std::make_shared<verbs::MemoryRegion>(device, ways, address, nbytes, access,
                                                   engine == nullptr ? Whose::host : Whose::accelerator)}};
}

// The endpoint is in the protection domain of the port's lanes, so that the keys of memory that lanes know are valid
// for it.
PyFabricEndpoint endpoint_on(const PyDomain& domain, uint32_t messages, uint32_t inline_bytes) {
    const auto* port = dynamic_cast<const verbs::VerbsDomain*>(domain.domain.get());
    if (port == nullptr) {
        throw NativeError(Status::unsupported, Reason::none, "this is no port of an RDMA device");
    }
    const fabric::Endpoint::Size size{messages, 1, 2 * messages + 1, 1, inline_bytes, false};
    const Released release;
    return {{std::make_shared<fabric::Endpoint>(port->opened(), size, port->options())}};
}

PyFabricEndpoint make_endpoint(const PyFabricDevice& self, uint32_t messages, uint32_t receives, uint32_t completions,
                               uint32_t sge, uint32_t inline_bytes, const verbs::OptionMap& options) {
    const std::shared_ptr<verbs::Device> device = self.get();
    const fabric::Endpoint::Size size{messages, receives, completions, sge, inline_bytes, true};
    const verbs::Options checked = verbs::Options::from(options);
    const Released release;
    return {{std::make_shared<fabric::Endpoint>(device, size, checked)}};
}

AddressTuple address_of(const PyFabricEndpoint& self) {
    const verbs::QueuePairAddress address = self.get()->address();
    const size_t gid_bytes = address.global != 0 ? address.gid.size() : 0;
    return {address.number,
            address.psn,
            address.lid,
            address.link_layer,
            address.mtu,
            address.read_credit,
            nb::bytes(reinterpret_cast<const char*>(address.gid.data()), gid_bytes)};
}

void connect(const PyFabricEndpoint& self, uint32_t number, uint32_t psn, uint16_t lid, uint8_t link_layer, uint8_t mtu,
             uint8_t read_credit, const nb::bytes& gid) {
    verbs::QueuePairAddress remote;
    remote.number = number;
    remote.psn = psn;
    remote.lid = lid;
    remote.link_layer = link_layer;
    remote.mtu = mtu;
    remote.read_credit = read_credit;
    if (gid.size() == remote.gid.size()) {
        remote.global = 1;
        std::memcpy(remote.gid.data(), gid.c_str(), gid.size());
    }
    const std::shared_ptr<fabric::Endpoint> endpoint = self.get();
    const Released release;
    endpoint->connect(remote);
}

std::vector<ibv_sge> pieces_of(const ScatterGatherList& pieces) {
    std::vector<ibv_sge> made;
    made.reserve(pieces.size());
    for (const auto& [address, nbytes, key] : pieces) {
        made.push_back({address, nbytes, key});
    }
    return made;
}

void make_request(fabric::Request* self, uint64_t id, int opcode, unsigned flags, uint32_t immediate,
                  uint64_t remote_address, uint32_t remote_key, uint64_t operand, uint64_t compare,
                  const ScatterGatherList& pieces, const nb::bytes& payload, uint64_t nbytes) {
    new (self) fabric::Request{
        .id = id,
        .opcode = static_cast<ibv_wr_opcode>(opcode),
        .flags = flags,
        .immediate = immediate,
        .remote_address = remote_address,
        .remote_key = remote_key,
        .operand = operand,
        .compare = compare,
        .pieces = pieces_of(pieces),
        .payload = std::string(payload.c_str(), payload.size()),
        .nbytes = nbytes,
    };
}

template <class Work> void post(const PyFabricEndpoint& self, const std::vector<const Work*>& chain) {
    const std::shared_ptr<fabric::Endpoint> endpoint = self.get();
    const Released release;
    endpoint->post(std::span<const Work* const>(chain));
}

std::vector<CompletionTuple> poll(const PyFabricEndpoint& self, size_t most) {
    std::vector<CompletionTuple> ended;
    for (const fabric::Completion& each : self.get()->poll(most)) {
        ended.emplace_back(each.id, each.opcode, each.status, each.nbytes, each.immediate, each.vendor_error);
    }
    return ended;
}

void register_requests(nb::module_& m) {
    nb::class_<fabric::Request>(m, "FabricRequest", "A work request for a send queue.")
        .def("__init__", &make_request, nb::arg("id"), nb::arg("opcode"), nb::arg("flags"), nb::arg("immediate"),
             nb::arg("remote_address"), nb::arg("remote_key"), nb::arg("operand"), nb::arg("compare"),
             nb::arg("pieces"), nb::arg("payload"), nb::arg("nbytes"));
    nb::class_<fabric::Receive>(m, "FabricReceive", "A work request for a receive queue.")
        .def(
            "__init__",
            [](fabric::Receive* self, uint64_t id, const ScatterGatherList& pieces) {
                new (self) fabric::Receive{id, pieces_of(pieces)};
            },
            nb::arg("id"), nb::arg("pieces"));
}

void register_endpoints(nb::module_& m) {
    nb::class_<PyFabricEndpoint>(m, "FabricEndpoint", "A queue pair with queues of its own.")
        .def_static("on_port", &endpoint_on, nb::arg("domain"), nb::arg("messages"), nb::arg("inline_bytes"),
                    "Makes one on a NIC port of a Context, in the protection domain of its lanes. It cannot sleep.")
        .def(
            "fail",
            [](const PyFabricEndpoint& self) {
                const std::shared_ptr<fabric::Endpoint> endpoint = self.get();
                const Released release;
                endpoint->fail();
            },
            "Has the device flush all requests, and refuse new ones.")
        .def("address", &address_of, "Number, PSN, LID, link layer, MTU code, read credit, GID.")
        .def("connect", &connect, nb::arg("number"), nb::arg("psn"), nb::arg("lid"), nb::arg("link_layer"),
             nb::arg("mtu"), nb::arg("read_credit"), nb::arg("gid"))
        .def("post", &post<fabric::Request>, nb::arg("chain"))
        .def("post_receives", &post<fabric::Receive>, nb::arg("chain"))
        .def("poll", &poll, nb::arg("most"), "Id, opcode, status, bytes, immediate or -1, vendor's error of each.")
        .def("arm", [](const PyFabricEndpoint& self) { self.get()->arm(); })
        .def(
            "sleep",
            [](const PyFabricEndpoint& self, uint64_t deadline_ns) {
                const std::shared_ptr<fabric::Endpoint> endpoint = self.get();
                const Released release;
                endpoint->sleep(deadline_ns);
            },
            nb::arg("deadline_ns"))
        .def_prop_ro("sends", [](const PyFabricEndpoint& self) { return self.object ? self.object->sends() : 0; })
        .def_prop_ro("receives", [](const PyFabricEndpoint& self) { return self.object ? self.object->receives() : 0; })
        .def_prop_ro("max_inline", [](const PyFabricEndpoint& self) { return self.get()->max_inline(); })
        .def("close",
             [](PyFabricEndpoint& self) {
                 if (const std::shared_ptr<fabric::Endpoint> endpoint = self.object) {
                     const Released release;
                     endpoint->close(); // closes now, even if another thread still holds it
                 }
                 self.close();
             })
        .def("abandon", [](PyFabricEndpoint& self) { self.abandon(); }, "In a forked child.");
}

void register_devices(nb::module_& m) {
    nb::class_<PyFabricRegion>(m, "FabricRegion", "Memory registered with a device.")
        .def_prop_ro("local_key", [](const PyFabricRegion& self) { return self.get()->local_key(); })
        .def_prop_ro("remote_key", [](const PyFabricRegion& self) { return self.get()->remote_key(); })
        .def_prop_ro("how", [](const PyFabricRegion& self) { return self.get()->how(); })
        .def(
            "close", [](PyFabricRegion& self) { self.close(); }, "Ends the registration.")
        .def("abandon", [](PyFabricRegion& self) { self.abandon(); });

    nb::class_<PyFabricDevice>(m, "FabricDevice", "An opened port of a device, with a protection domain.")
        .def_static(
            "open",
            [](const std::string& name, uint8_t port) { return PyFabricDevice{{verbs::Device::open(name, port)}}; },
            nb::arg("name"), nb::arg("port"), nb::call_guard<Released>())
        .def("register", &register_memory, nb::arg("engine").none(), nb::arg("address"), nb::arg("nbytes"),
             nb::arg("access"), "`engine`: whose accelerator has the memory; None for host memory.")
        .def("endpoint", &make_endpoint, nb::arg("messages"), nb::arg("receives"), nb::arg("completions"),
             nb::arg("sge"), nb::arg("inline_bytes"), nb::arg("options"))
        .def("close", [](PyFabricDevice& self) { self.close(); })
        .def("abandon", [](PyFabricDevice& self) { self.abandon(); });
}

} // namespace

void register_fabric(nb::module_& m) {
    register_requests(m);
    register_endpoints(m);
    register_devices(m);
    register_kernel_queues(m);
    m.def("fabric_devices", &devices, nb::sig("def fabric_devices() -> list[dict[str, typing.Any]]"),
          "The RDMA devices of this machine, with what verbs says of them.");
    m.def("fabric_why_not_direct", &fabric::why_not_direct, "Why the queues of no device can be written directly.");
}

#else

namespace {

// Requests are plain values, which may be made even in a build that cannot post them.
struct UnpostableRequest {};
struct UnpostableReceive {};
struct UnbuiltDevice {};
struct UnbuiltEndpoint {};
struct UnbuiltKernelQueue {};
struct UnbuiltDirectQueue {};

[[noreturn]] void raise_unbuilt() {
    throw NativeError(Status::unsupported, Reason::none, kNoVerbs);
}

template <class Work> void def_unpostable(nb::module_& m, const char* name) {
    nb::class_<Work>(m, name).def("__init__", [](Work* self, const nb::kwargs& /*fields*/) { new (self) Work; });
}

} // namespace

void register_fabric(nb::module_& m) {
    def_unpostable<UnpostableRequest>(m, "FabricRequest");
    def_unpostable<UnpostableReceive>(m, "FabricReceive");
    nb::class_<UnbuiltDevice>(m, "FabricDevice").def_static("open", [](const nb::args& /*which*/) { raise_unbuilt(); });
    nb::class_<UnbuiltEndpoint>(m, "FabricEndpoint");
    nb::class_<UnbuiltKernelQueue>(m, "FabricKernelQueue");
    nb::class_<UnbuiltDirectQueue>(m, "FabricDirectQueue");
    m.def("fabric_devices", &raise_unbuilt);
    m.def("fabric_why_not_direct", &raise_unbuilt);
}

#endif

} // namespace zerohop::bind
