// Binds what carries out the entries that kernels post.
#include "bind/kernel_work.hpp"
#include "device/proxy.hpp"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace zerohop::bind {

namespace {

using device::ControlLayout;
using device::Proxy;

struct PyProxy : PyKernelWork<Proxy> {
    std::vector<std::pair<int, uint64_t>> places; // device, and where the memory begins for it
};

using Locals = std::vector<std::tuple<uint64_t, uint64_t, uint8_t>>;
using Peers = std::vector<std::tuple<uint64_t, uint64_t, uint8_t, std::vector<uint64_t>, bool>>;

void make_proxy(PyProxy* self, const std::shared_ptr<Engine>& engine, const PyRegion& control, const PyRegion& scratch,
                uint64_t slots, const Locals& locals, const Peers& peers, const std::vector<nb::object>& reached,
                const std::vector<nb::object>& own, int device, uint64_t timeout_ns) {
    std::vector<device::LocalFacts> local_facts;
    for (const auto& [offset, nbytes, rights] : locals) {
        local_facts.push_back({offset, nbytes, rights});
    }
    std::vector<device::PeerFacts> peer_facts;
    for (const auto& [offset, nbytes, rights, routes, needs_flush] : peers) {
        if (!routes.empty() && routes.size() != locals.size() + 1) {
            throw nb::value_error("not one route for each local, and one for the scratch memory");
        }
        peer_facts.push_back({offset, nbytes, rights, routes, needs_flush});
    }
    if (timeout_ns == 0) {
        throw nb::value_error("a Queue has a timeout");
    }
    if (slots == 0 || (slots & (slots - 1)) != 0) {
        throw nb::value_error("the number of slots is a power of two");
    }
    control.check(0, ControlLayout(peers.size(), slots).nbytes);
    scratch.check(0, peers.size() * 8);
    const std::vector<Target> targets = targets_of(reached);
    const std::vector<Target> lasting = targets_of(own);
    std::shared_ptr<Region> control_region = control.get();
    std::shared_ptr<Region> scratch_region = scratch.get();
    std::vector<std::pair<int, uint64_t>> where;
    std::shared_ptr<Proxy> proxy;
    std::vector<Place> kept;
    {
        const Released release;
        kept = pinned(lasting);
        std::vector<Place> places;
        if (device >= 0) {
            control_region->register_with_devices(engine->accelerators());
            scratch_region->register_with_devices(engine->accelerators());
        }
        for (const Target& target : targets) {
            Place place;
            if (target.region && target.region->is_host() && device >= 0) {
                target.region->register_with_devices(engine->accelerators());
            }
            if (const Outcome outcome = target.pin(place); !outcome.ok()) {
                throw NativeError(outcome, "");
            }
            where.emplace_back(place.device,
                               place.host != nullptr ? reinterpret_cast<uint64_t>(place.host) : place.address);
            places.push_back(std::move(place));
        }
        proxy = std::make_shared<Proxy>(*engine, std::move(control_region), std::move(scratch_region), slots,
                                        std::move(local_facts), std::move(peer_facts), std::move(places), timeout_ns);
        engine->add_work(proxy);
    }
    new (self) PyProxy{{engine, proxy, std::move(kept)}, std::move(where)};
}

} // namespace

void register_device_queue(nb::module_& m) {
    nb::class_<PyKernelWork<Proxy>> work(m, "ProxyWork", "Looks for the entries of kernels.");
    def_kernel_work(work);
    nb::class_<PyProxy, PyKernelWork<Proxy>>(m, "Proxy", "Carries out what kernels of a device ask for.")
        .def("__init__", &make_proxy, nb::arg("engine"), nb::arg("control"), nb::arg("scratch"), nb::arg("slots"),
             nb::arg("locals"), nb::arg("peers"), nb::arg("reached"), nb::arg("own"), nb::arg("device"),
             nb::arg("timeout_ns"),
             "locals: offset, bytes and rights. peers: the same, one route for each local and one for signals, or "
             "none, and whether these routes' lanes need a flush. reached: the memory that kernels reach, pinned until "
             "it is closed. own: memory that is pinned as long as this object.")
        .def_prop_ro(
            "places", [](const PyProxy& self) { return self.places; },
            "The number of a device, or -1, and where the memory begins for it, of all that is reached.")
        .def_static(
            "control_layout",
            [](uint64_t peers, uint64_t slots) {
                const ControlLayout layout(peers, slots);
                return std::tuple(ControlLayout::kTaken, ControlLayout::kState, ControlLayout::kPeers,
                                  ControlLayout::kPeerBytes, layout.results, layout.fifo, layout.nbytes);
            },
            nb::arg("peers"), nb::arg("slots"),
            "Where the parts of the control memory lie: taken, state, peers, bytes of a peer, results, FIFO; and its "
            "size.")
        .def(
            "lose",
            [](const PyProxy& self, size_t peer) {
                if (const std::shared_ptr<Proxy> proxy = self.work.lock()) {
                    proxy->lose(peer);
                }
            },
            nb::arg("peer"), "Tells kernels that a peer is lost.")
        .def(
            "failure",
            [](const PyProxy& self, size_t peer) {
                const std::shared_ptr<Proxy> proxy = self.work.lock();
                const Outcome found = proxy ? proxy->failure(peer) : Outcome{};
                return std::pair(static_cast<int>(found.status), static_cast<int>(found.reason));
            },
            nb::arg("peer"), "The status and the reason of the first failure of what was posted to a peer.");
}

} // namespace zerohop::bind
