// Binds tables of grants. A share's key is 16 bytes, its public half first.
#include "memory/grants.hpp"

#include "bind/common.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>

#include <cstring>
#include <optional>
#include <tuple>
#include <utility>

namespace zerohop::bind {

namespace {

GrantKey key_of(const nb::bytes& key) {
    GrantKey halves;
    if (key.size() != sizeof halves) {
        throw nb::value_error("a key of a grant has 16 bytes");
    }
    std::memcpy(&halves, key.data(), sizeof halves);
    halves.open |= 1U; // neither may be 0
    halves.taken |= 1U;
    return halves;
}

} // namespace

void register_grants(nb::module_& m) {
    nb::class_<Grants>(m, "Grants", "Shares that a peer of this host may take without asking, in memory of both.")
        .def(nb::init<>(), "A new table, of the owner.")
        .def(nb::init<int>(), nb::arg("fd"), "The table of a peer, which gave its descriptor.")
        .def_prop_ro("fd", &Grants::fd)
        .def("close_fd", &Grants::close_fd, "Forget the descriptor of a new table, once the peer has one.")
        .def(
            "grant",
            [](Grants& self, uint64_t share_id, const nb::bytes& key, uint64_t extent, uint64_t address,
               uint64_t nbytes, uint64_t rights) {
                return self.grant(ShareId::unpack(share_id), key_of(key), {extent, address, nbytes, rights});
            },
            nb::arg("share_id"), nb::arg("key"), nb::arg("extent"), nb::arg("address"), nb::arg("nbytes"),
            nb::arg("rights"), "Let the peer take a share; return False if its place is in use.")
        .def(
            "revoke",
            [](Grants& self, uint64_t share_id, const nb::bytes& key) {
                const auto has = self.revoke(ShareId::unpack(share_id), key_of(key));
                return std::make_pair(has[0], has[1]);
            },
            nb::arg("share_id"), nb::arg("key"),
            "Let the peer take a share no more; return if it has the memory mapped, and if devices reach it.")
        .def(
            "kept",
            [](const Grants& self, uint64_t share_id, const nb::bytes& key, bool by_device) {
                return self.kept(ShareId::unpack(share_id), key_of(key), by_device ? 1 : 0);
            },
            nb::arg("share_id"), nb::arg("key"), nb::arg("by_device"), "Tell if the peer has a revoked share still.")
        .def(
            "take",
            [](Grants& self, uint64_t share_id, const nb::bytes& key,
               bool by_device) -> std::optional<std::tuple<uint64_t, uint64_t, uint64_t, uint64_t>> {
                const auto found = self.take(ShareId::unpack(share_id), key_of(key), by_device ? 1 : 0);
                if (!found) {
                    return std::nullopt;
                }
                return std::make_tuple(found->extent, found->address, found->nbytes, found->rights);
            },
            nb::arg("share_id"), nb::arg("key"), nb::arg("by_device"),
            "Take a share of the peer: extent, address, bytes, rights; None if it is not granted.")
        .def(
            "give_back",
            [](Grants& self, uint64_t share_id, const nb::bytes& key, bool by_device) {
                self.give_back(ShareId::unpack(share_id), key_of(key), by_device ? 1 : 0);
            },
            nb::arg("share_id"), nb::arg("key"), nb::arg("by_device"), "Give back a share that was taken.");
}

} // namespace zerohop::bind
