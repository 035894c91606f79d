// Binds what carries out the entries that kernels post.
#include "bind/files.hpp"
#include "device/proxy.hpp"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace zerohop::bind {

namespace {

using device::ControlLayout;
using device::Proxy;

// Keeps neither alive: the engine has the proxy until that is closed.
struct PyProxy {
    std::weak_ptr<Engine> engine;
    std::weak_ptr<Proxy> proxy;
    std::vector<std::pair<int, uint64_t>> places; // device, and where the memory begins for it
    // Keeps the memory that kernels write to, also after the Queue or its Context was closed.
    std::vector<Place> kept;
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
    std::vector<Target> targets;
    targets.reserve(reached.size());
    for (const nb::object& each : reached) {
        targets.push_back(Target::of(each));
    }
    std::vector<Target> lasting;
    lasting.reserve(own.size());
    for (const nb::object& each : own) {
        lasting.push_back(Target::of(each));
    }
    std::shared_ptr<Region> control_region = control.get();
    std::shared_ptr<Region> scratch_region = scratch.get();
    std::vector<std::pair<int, uint64_t>> where;
    std::shared_ptr<Proxy> proxy;
    std::vector<Place> kept;
    {
        const Released release;
        for (const Target& target : lasting) {
            kept.emplace_back();
            if (const Outcome outcome = target.pin(kept.back()); !outcome.ok()) {
                throw NativeError(outcome, "");
            }
        }
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
    new (self) PyProxy{engine, proxy, std::move(where), std::move(kept)};
}

} // namespace

void register_device_queue(nb::module_& m) {
    nb::class_<PyProxy>(m, "Proxy", "Carries out what kernels of a device ask for.")
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
            "look",
            [](const PyProxy& self) {
                const std::shared_ptr<Engine> engine = self.engine.lock();
                const std::shared_ptr<Proxy> proxy = self.proxy.lock();
                if (engine && proxy) {
                    proxy->begin_looking();
                    engine->kick();
                }
            },
            "Polls the FIFO until stop_looking() was called as often.")
        .def("stop_looking",
             [](const PyProxy& self) {
                 if (const std::shared_ptr<Proxy> proxy = self.proxy.lock()) {
                     proxy->end_looking();
                 }
             })
        .def(
            "settle",
            [](const PyProxy& self, uint64_t deadline_ns) {
                const std::shared_ptr<Engine> engine = self.engine.lock();
                const std::shared_ptr<Proxy> proxy = self.proxy.lock();
                if (!engine || !proxy) {
                    return true;
                }
                engine->kick();
                const uint64_t limit_ns = std::min(deadline_ns, now_ns() + kLongestSpin);
                const Released release;
                return engine->wait([&] { return proxy->settled(); }, limit_ns, engine->options().spin_ns);
            },
            nb::arg("deadline_ns"),
            "Waits until all that was in the FIFO has ended, but not for long, so that Ctrl-C is heard; returns "
            "whether "
            "it has.")
        .def(
            "lose",
            [](const PyProxy& self, size_t peer) {
                if (const std::shared_ptr<Proxy> proxy = self.proxy.lock()) {
                    proxy->lose(peer);
                }
            },
            nb::arg("peer"), "Tells kernels that a peer is lost.")
        .def(
            "failure",
            [](const PyProxy& self, size_t peer) {
                const std::shared_ptr<Proxy> proxy = self.proxy.lock();
                const Outcome found = proxy ? proxy->failure(peer) : Outcome{};
                return std::pair(static_cast<int>(found.status), static_cast<int>(found.reason));
            },
            nb::arg("peer"), "The status and the reason of the first failure of what was posted to a peer.")
        .def("close", [](PyProxy& self) {
            const std::shared_ptr<Engine> engine = self.engine.lock();
            const std::shared_ptr<Proxy> proxy = self.proxy.lock();
            self.proxy.reset();
            if (engine && proxy) {
                const Released release;
                engine->close_work(proxy, {Status::closed, Reason::owner_closed});
            }
        });
}

} // namespace zerohop::bind
