// Binds the engine.
#include "accel/gpu/gpu_driver.hpp"
#include "accel/sim/sim.hpp"
#include "bind/common.hpp"
#include "bind/notification_wait.hpp"
#include "bind/post.hpp"
#include "provider/shm/mapped_copy.hpp"

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>

namespace zerohop::bind {

namespace {

Capability capability_of(const nb::bytes& bytes) {
    Capability capability;
    if (bytes.size() != capability.size()) {
        throw nb::value_error("a capability has 16 bytes");
    }
    std::memcpy(capability.data(), bytes.c_str(), capability.size());
    return capability;
}

PyRegion register_host(const std::shared_ptr<Engine>& engine, uint64_t address, uint64_t nbytes, int device, int fd,
                       uint64_t fd_offset, bool readonly, const BlockWatch* block) {
    check_open(*engine);
    if (device >= 0) {
        const auto& found = device_at(*engine, device);
        const accel::Description description = engine->accelerators().describe(address, nbytes);
        if (description.kind != accel::MemoryKind::device || description.device != device ||
            address - description.base > description.size || nbytes > description.size - (address - description.base)) {
            throw NativeError(Status::access_denied, Reason::bounds,
                              "the range is not allocated on " + found->facts().name);
        }
    }
    return PyRegion::of(engine, Region::wrap(address, nbytes, device, fd, fd_offset, readonly,
                                             block != nullptr ? *block : BlockWatch()));
}

PyRegion alloc(const std::shared_ptr<Engine>& engine, uint64_t nbytes, int device) {
    check_open(*engine);
    if (device == kHostDevice) {
        return PyRegion::of(engine, Region::allocate_host(nbytes));
    }
    const auto on = device_at(*engine, device);
    std::shared_ptr<Region> region;
    {
        const Released release; // if the device is full, this waits for frees under way
        region = Region::allocate_device(on, device, nbytes);
    }
    return PyRegion::of(engine, region);
}

uint64_t route(const std::shared_ptr<Engine>& engine, const PyEndpoint& endpoint, const PyRegion& region,
               uint64_t share, const nb::bytes& capability, uint64_t remote_nbytes, int rights,
               const PyMapping* mapping, const PyRemoteKeys* keys, const std::vector<uint32_t>& local_keys,
               const PyPeerMemory* peer_memory) {
    check_open(*engine);
    Route result;
    result.endpoint = endpoint.endpoint;
    result.local = region.get();
    result.share = ShareId::unpack(share);
    result.capability = capability_of(capability);
    result.remote_nbytes = remote_nbytes;
    result.rights = static_cast<uint8_t>(rights);
    if (mapping != nullptr) {
        result.access = std::make_shared<shm::MappedAccess>(mapping->mapping);
    } else if (keys != nullptr) {
        result.access = std::make_shared<verbs::KeyedAccess>(keys->keys, local_keys);
    } else if (peer_memory != nullptr) {
        const std::shared_ptr<p2p::PeerMemory>& memory = peer_memory->get();
        const auto reach = memory->reach(engine->accelerators(), *result.local);
        result.access = std::make_shared<p2p::DeviceAccess>(memory, reach);
    }
    if (result.access) {
        if (result.access->nbytes < remote_nbytes) {
            throw nb::value_error("what reaches the peer's memory is smaller than the memory");
        }
        result.rights &= result.access->rights;
    }
    return engine->add_route(std::move(result));
}

// Throws NativeError if the queue is closed, or never existed.
std::shared_ptr<NotificationQueue> notification_queue(Engine& engine, uint16_t number) {
    std::shared_ptr<NotificationQueue> found = engine.notifications().of(number);
    if (!found) {
        throw NativeError(Status::closed, Reason::lane_closed, "the queue of notifications is closed");
    }
    return found;
}

// Looks once if the deadline is negative. Throws NativeError if the queue has ended, and nothing is left in it.
std::optional<Notification> next_notification(Engine& engine, int64_t deadline_ns, uint64_t spin_ns, uint16_t number,
                                              WaitOutcome* outcome) {
    const std::shared_ptr<NotificationQueue> from = number != 0 ? notification_queue(engine, number) : nullptr;
    std::optional<Notification> note = engine.pop_notification(number, 0, 0, false, outcome);
    if (!note && deadline_ns >= 0) {
        const Released release;
        note = engine.pop_notification(number, static_cast<uint64_t>(deadline_ns), spin_ns, true, outcome);
    }
    if (!note && from && from->ended()) {
        // one may have come while this thread waited for the interpreter
        note = engine.pop_notification(number, 0, 0, false, outcome);
        if (!note) {
            throw NativeError(Status::closed, Reason::lane_closed, "the queue of notifications has ended");
        }
    }
    return note;
}

std::optional<std::tuple<int, uint32_t, uint64_t, nb::bytes>>
pop_notification(const std::shared_ptr<Engine>& engine, int64_t deadline_ns, uint64_t spin_ns, uint16_t number) {
    const std::optional<Notification> note = next_notification(*engine, deadline_ns, spin_ns, number, nullptr);
    if (!note) {
        return std::nullopt;
    }
    const std::string_view message = note->message ? std::string_view(*note->message) : std::string_view();
    return std::tuple(note->peer, note->value, note->nbytes, nb::bytes(message.data(), message.size()));
}

} // namespace

const std::shared_ptr<accel::Device>& device_at(Engine& engine, int device) {
    const auto& devices = engine.accelerators().devices();
    if (device < 0 || static_cast<size_t>(device) >= devices.size()) {
        throw nb::value_error("no such device");
    }
    return devices[static_cast<size_t>(device)];
}

void check_open(const Engine& engine) {
    if (engine.closed()) {
        throw NativeError(Status::closed, Reason::context_closed, "this Context is closed");
    }
}

void register_engine(nb::module_& m) {
    using Self = std::shared_ptr<Engine>;
    nb::class_<Engine> engine(m, "Engine", "The engine of one Context.");
    engine
        .def(nb::new_([](uint64_t spin_ns, int sim_devices, uint64_t heartbeat_ns, bool sim_peermem, bool gpus) {
                 if (sim_devices < 0) {
                     throw nb::value_error("sim_devices must not be negative");
                 }
                 std::vector<std::shared_ptr<accel::Driver>> drivers;
                 for (const shim::GpuApi* const api : {shim::cuda().get(), shim::hip().get()}) {
                     if (api != nullptr && gpus) {
                         drivers.push_back(accel::make_gpu_driver(*api));
                     }
                 }
                 if (sim_devices != 0) {
                     drivers.push_back(accel::make_sim_driver(sim_devices, sim_peermem));
                 }
                 return std::make_shared<Engine>(EngineOptions{spin_ns, heartbeat_ns}, std::move(drivers));
             }),
             nb::arg("spin_ns"), nb::arg("sim_devices"), nb::arg("heartbeat_ns"), nb::arg("sim_peermem") = true,
             nb::arg("gpus") = true)
        .def_prop_ro("presence_fd", [](Engine& self) { return self.presence().page_fd(); })
        .def(
            "make_doorbell",
            [](Engine& self) {
                check_open(self);
                Doorbell made = self.presence().make_doorbell();
                return std::tuple(made.theirs.release(), made.number);
            },
            "Makes a doorbell for a peer: the descriptor that the peer gets, which the caller closes, and its number.")
        .def(
            "close_doorbell", [](Engine& self, int number) { self.presence().close_doorbell(number); },
            nb::arg("number"))
        .def(
            "add_peer",
            [](Engine& self, int presence_fd, int doorbell_fd) {
                return self.add_peer(presence_fd, doorbell_fd)->id();
            },
            nb::arg("presence_fd"), nb::arg("doorbell_fd"))
        .def(
            "drop_peer",
            [](Engine& self, int peer, Status status, Reason reason) { self.drop_peer(peer, {status, reason}); },
            nb::arg("peer"), nb::arg("status"), nb::arg("reason"), nb::call_guard<Released>())
        .def(
            "peer_status",
            [](Engine& self, int peer) {
                const auto found = self.peer(peer);
                const Outcome state = found ? found->state() : Outcome{Status::closed, Reason::lane_closed};
                return std::tuple(state.status, state.reason);
            },
            nb::arg("peer"))
        .def(
            "endpoint",
            [](const Self& self, const std::string& provider, int peer, const std::vector<PyDomain>& domains) {
                std::vector<std::shared_ptr<Domain>> rails;
                rails.reserve(domains.size());
                for (const PyDomain& each : domains) {
                    rails.push_back(each.domain);
                }
                return PyEndpoint{self, self->add_endpoint(provider, peer, rails)};
            },
            nb::arg("provider"), nb::arg("peer"), nb::arg("domains") = std::vector<PyDomain>{},
            nb::call_guard<Released>())
        .def(
            "open_domain",
            [](const Self& self, const std::string& provider, const std::string& device, int port,
               const DomainOptions& options) {
                check_open(*self);
                return PyDomain{self, self->open_domain(provider, device, port, options)};
            },
            nb::arg("provider"), nb::arg("device"), nb::arg("port"), nb::arg("options"), nb::call_guard<Released>())
        .def(
            "register_local",
            [](Engine& self, const PyRegion& region, const PyDomain& domain) {
                // NOLINTNEXTLINE(performance-unnecessary-copy-initialization): kept while others may close it
                const std::shared_ptr<Region> memory = region.get();
                const Released release;
                const auto made = self.register_local(*domain.domain, memory);
                return std::tuple(made->local_key(), made->how());
            },
            nb::arg("region"), nb::arg("domain"),
            "The key by which the domain's device knows the memory, and in words how it was registered.")
        .def(
            "reach",
            [](Engine& self, uint64_t share, const PyDomain& domain, bool own) {
                uint64_t address = 0;
                const auto found = self.reach(*domain.domain, ShareId::unpack(share), own, address);
                if (!found) {
                    throw NativeError(Status::access_denied, Reason::revoked, "");
                }
                return std::tuple(address, found->remote_key(), found->how());
            },
            nb::arg("share_id"), nb::arg("domain"), nb::arg("own"), nb::call_guard<Released>(),
            "Where a peer's NIC finds the share, by which key, and in words how it was registered.")
        .def("register", &register_host, nb::arg("address"), nb::arg("nbytes"), nb::arg("device"), nb::arg("fd") = -1,
             nb::arg("fd_offset") = 0, nb::arg("readonly") = false, nb::arg("block").none() = nb::none())
        .def("alloc", &alloc, nb::arg("nbytes"), nb::arg("device"))
        .def(
            "share",
            [](Engine& self, const PyRegion& region, uint64_t offset, uint64_t nbytes, int rights,
               const nb::bytes& capability) {
                region.check(offset, nbytes);
                return self.shares()
                    .add(region.get(), offset, nbytes, static_cast<uint8_t>(rights), capability_of(capability))
                    .packed();
            },
            nb::arg("region"), nb::arg("offset"), nb::arg("nbytes"), nb::arg("rights"), nb::arg("capability"))
        .def(
            "revoke",
            [](Engine& self, uint64_t share, uint64_t deadline_ns) {
                return self.revoke(ShareId::unpack(share), deadline_ns);
            },
            nb::arg("share_id"), nb::arg("deadline_ns"), nb::call_guard<Released>())
        .def(
            "map",
            [](Engine&, int fd, uint64_t offset, uint64_t nbytes, bool writable) {
                return PyMapping{make_pinnable<Mapping>(fd, offset, nbytes, writable)};
            },
            nb::arg("fd"), nb::arg("offset"), nb::arg("nbytes"), nb::arg("writable"))
        .def("route", &route, nb::arg("endpoint"), nb::arg("region"), nb::arg("share_id"), nb::arg("capability"),
             nb::arg("remote_nbytes"), nb::arg("rights"), nb::arg("mapping").none(), nb::arg("keys").none() = nullptr,
             nb::arg("local_keys") = std::vector<uint32_t>{}, nb::arg("peer_memory").none() = nullptr)
        .def(
            "drop_route", [](Engine& self, uint64_t id) { self.drop_route(id); }, nb::arg("route"))
        .def(
            "await_notification",
            [](const Self& self, const nb::object& wait, int64_t deadline_ns, uint64_t spin_ns) {
                return take_into(wait, [&](uint16_t number, WaitOutcome& outcome) {
                    return next_notification(*self, deadline_ns, spin_ns, number, &outcome);
                });
            },
            nb::arg("wait"), nb::arg("deadline_ns"), nb::arg("spin_ns"),
            "Gives a NotificationWait the next notification; false if none has come.")
        .def("wake_waiters", &Engine::wake_waiters)
        .def("pop_notification", &pop_notification, nb::arg("deadline_ns"), nb::arg("spin_ns"), nb::arg("number") = 0)
        .def(
            "arm_notification",
            [](Engine& self, const PyQueue& queue, uint64_t token, uint16_t number) {
                return notification_queue(self, number)->arm(queue.queue, token);
            },
            nb::arg("queue"), nb::arg("token"), nb::arg("number") = 0)
        .def(
            "disarm_notification",
            [](Engine& self, const PyQueue& queue, uint64_t token, uint16_t number) {
                if (const auto found = self.notifications().of(number)) {
                    found->disarm(*queue.queue, token);
                }
            },
            nb::arg("queue"), nb::arg("token"), nb::arg("number") = 0)
        .def(
            "end_group",
            [](Engine& self, const PyGroup& group, Status status, Reason reason) {
                self.end_group(*group.group, {status, reason});
            },
            nb::arg("group"), nb::arg("status"), nb::arg("reason"), nb::call_guard<Released>(),
            "Ends all that are in flight, and all that are posted for it from now on. The first call counts.")
        .def("open_queue", &Engine::open_queue)
        .def("take_from", &Engine::take_from, nb::arg("number"), nb::arg("peer"))
        .def("close_queue", &Engine::close_queue, nb::arg("number"), nb::call_guard<Released>())
        .def("end_queue", &Engine::end_queue, nb::arg("number"), nb::call_guard<Released>())
        .def("add_arrival", &Engine::add_arrival, nb::arg("queue"), nb::arg("peer"), nb::call_guard<Released>())
        .def("forget_arrival", &Engine::forget_arrival, nb::arg("queue"), nb::arg("peer"))
        .def("catch_up", &Engine::catch_up, nb::arg("peer"), nb::call_guard<Released>())
        .def_prop_ro("events", [](const Self& self) { return PyQueue{self, self->events()}; })
        .def("statistics", [](Engine& self) { return self.statistics(); })
        .def(
            "unseen_failures",
            [](Engine& self) {
                const auto [count, last] = self.operations().unseen_failures();
                return std::tuple(count, static_cast<int>(last.status), static_cast<int>(last.reason));
            },
            "How many operations failed after Python had dropped them; status and reason of the last one.")
        .def(
            "new_op",
            [](const Self& self, uint64_t deadline_ns) {
                check_open(*self);
                PyOp op{self, self->operations().create(deadline_ns)};
                self->note_pending(deadline_ns, now_ns());
                return op;
            },
            nb::arg("deadline_ns"))
        .def(
            "works_under_way_at",
            [](const Self& self, int peer) {
                std::vector<OpRef> found;
                if (!self->closed()) {
                    const Released release;
                    found = self->works_under_way_at(peer);
                }
                std::vector<PyOp> ops;
                ops.reserve(found.size());
                for (OpRef& op : found) {
                    ops.push_back({self, std::move(op)});
                }
                return ops;
            },
            nb::arg("peer"), "Ops that end with what works have under way at a peer now, such as a server; -1: at any.")
        .def("close", &Engine::close, nb::arg("deadline_ns"), nb::call_guard<Released>())
        .def("abandon", &Engine::abandon);
    def_devices(m, engine);
    def_peer_memory(engine);
    def_pool(engine);
    def_posts(m, engine);
    def_mailboxes(m, engine);
}

} // namespace zerohop::bind
