// Binds the export of device memory to another process, and its import there.
#include "provider/p2p/peer_memory.hpp"

#include "accel/idle_calls.hpp"
#include "base/clock.hpp"
#include "bind/common.hpp"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <unistd.h>
#include <utility>

namespace zerohop::bind {

const std::shared_ptr<p2p::PeerMemory>& PyPeerMemory::get() const {
    if (!memory) {
        throw NativeError(Status::access_denied, Reason::revoked, "");
    }
    return memory;
}

namespace {

constexpr uint64_t kIdleDeviceNs = 2 * kMillisecond; // a device that has nothing to do takes less

// Returns (form, device, process, address, offset, bytes, pieces, descriptors), from the owner's side.
nb::tuple export_share(Engine& engine, uint64_t share_id) {
    const std::shared_ptr<Share> share = engine.shares().find(ShareId::unpack(share_id));
    if (!share) {
        throw NativeError(Status::access_denied, Reason::revoked, "");
    }
    const Region& region = *share->region;
    accel::Exported exported;
    {
        const Released release;
        const auto& [driver, index] = engine.accelerators().place(region.device());
        exported = driver->export_memory(region.address() + share->offset, share->nbytes);
    }
    nb::list pieces;
    nb::list fds;
    for (const accel::Exported::Piece& piece : exported.pieces) {
        pieces.append(nb::make_tuple(piece.nbytes, nb::bytes(piece.handle.data(), piece.handle.size())));
        if (piece.fd >= 0) {
            fds.append(piece.fd);
        }
    }
    return nb::make_tuple(exported.form, exported.device, exported.process, exported.address, exported.offset,
                          exported.nbytes, pieces, fds);
}

PyPeerMemory import_memory(Engine& engine, const std::string& form, const std::string& device, uint64_t process,
                           uint64_t address, uint64_t offset, uint64_t nbytes, const nb::list& pieces,
                           const std::vector<int>& fds, bool writable) {
    accel::Exported exported{.form = form,
                             .device = device,
                             .process = process,
                             .address = address,
                             .offset = offset,
                             .nbytes = nbytes,
                             .pieces = {}};
    size_t next = 0;
    for (const nb::handle each : pieces) {
        const auto [size, handle] = nb::cast<std::pair<uint64_t, nb::bytes>>(each);
        accel::Exported::Piece piece{.nbytes = size, .handle = std::string(handle.c_str(), handle.size()), .fd = -1};
        if (piece.handle.empty()) {
            if (next == fds.size()) {
                throw NativeError(Status::no_memory, Reason::out_of_descriptors, "");
            }
            piece.fd = fds[next++];
        }
        exported.pieces.push_back(std::move(piece));
    }
    const Released release;
    return {make_pinnable<p2p::PeerMemory>(engine.accelerators(), exported, writable), nbytes};
}

PyPeerMemory import_host(Engine& engine, int fd, uint64_t offset, uint64_t nbytes, bool writable) {
    const Released release;
    auto mapping = std::make_unique<Mapping>(fd, offset, nbytes, writable);
    return {make_pinnable<p2p::PeerMemory>(engine.accelerators(), std::move(mapping)), nbytes};
}

// Memory that is being registered with devices counts as in use.
Pin<Region> pin_for_devices(const PyRegion& region) {
    Pin<Region> local = Pin<Region>::of(region.get());
    if (!local) {
        throw NativeError(Status::closed, Reason::none, "the memory is closed");
    }
    return local;
}

void register_with_devices(Engine& engine, const PyRegion& region) {
    const Pin<Region> local = pin_for_devices(region);
    const Released release;
    local->register_with_devices(engine.accelerators());
}

std::pair<int, uint64_t> reach_peer(Engine& engine, const PyRegion& region, const PyPeerMemory& memory) {
    const Pin<Region> local = pin_for_devices(region);
    const Pin<p2p::PeerMemory> remote = Pin<p2p::PeerMemory>::of(memory.get());
    if (!remote) {
        throw NativeError(Status::access_denied, Reason::revoked, "");
    }
    const Released release;
    const p2p::PeerMemory::Reach reach = remote->reach(engine.accelerators(), *local);
    return {reach.device, reach.address};
}

} // namespace

void register_peer_memory(nb::module_& m) {
    nb::class_<PyPeerMemory>(m, "PeerMemory", "A peer's memory that devices here read and write by themselves.")
        .def_ro("nbytes", &PyPeerMemory::nbytes)
        .def(
            "part",
            [](const PyPeerMemory& self, uint64_t offset, uint64_t nbytes, bool writable) {
                return PyPeerMemory{make_pinnable<p2p::PeerMemory>(self.get(), offset, nbytes, writable), nbytes};
            },
            nb::arg("offset"), nb::arg("nbytes"), nb::arg("writable"),
            "A part, which is used and closed by itself; the whole cannot be closed before.")
        .def(
            "close",
            [](PyPeerMemory& self) {
                accel::IdleCalls& calls = accel::IdleCalls::of_process();
                std::shared_ptr<p2p::PeerMemory> memory = self.memory;
                if (memory && !memory->close()) {
                    return false;
                }
                const bool first = memory != nullptr;
                self.memory.reset();
                if (first && memory->leave_whole()) {
                    return true; // the whole is unmapped by itself
                }
                reset_without_gil(memory);
                self.release = first ? calls.last() : self.release;
                const Released release;
                // the owner is told next, and may then free the memory
                return calls.done(self.release, first ? kIdleDeviceNs : 0);
            },
            "No operation begins with it any more; True once none is left that did before, and it is not mapped here "
            "any more. Call again then.");
}

void def_peer_memory(nb::class_<Engine>& engine) {
    engine
        .def("export_share", &export_share, nb::arg("share_id"),
             nb::sig("def export_share(self, share_id: int) -> tuple[str, str, int, int, int, int, "
                     "list[tuple[int, bytes]], list[int]]"),
             "What a peer needs to map a share of device memory; the descriptors are the caller's.")
        .def("import_memory", &import_memory, nb::arg("form"), nb::arg("device"), nb::arg("process"),
             nb::arg("address"), nb::arg("offset"), nb::arg("nbytes"), nb::arg("pieces"), nb::arg("fds"),
             nb::arg("writable"),
             nb::sig("def import_memory(self, form: str, device: str, process: int, address: int, offset: int, "
                     "nbytes: int, pieces: list[tuple[int, bytes]], fds: collections.abc.Sequence[int], "
                     "writable: bool) -> PeerMemory"))
        .def("import_host", &import_host, nb::arg("fd"), nb::arg("offset"), nb::arg("nbytes"), nb::arg("writable"),
             "Host memory of a peer, mapped here and known to the devices.")
        .def("register_with_devices", &register_with_devices, nb::arg("region"),
             "Has devices know host memory. A failure is of this memory alone; reach_peer would do the same, but its "
             "failure may be that of either memory.")
        .def(
            "reach_peer", &reach_peer, nb::arg("region"), nb::arg("memory"),
            "Which device copies between the two, and where the peer's memory begins for it; made ready by this call.");
}

} // namespace zerohop::bind
