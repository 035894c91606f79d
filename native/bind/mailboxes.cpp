// The mailboxes of groups: their tagged messages, and the members that send them.
#include "bind/post.hpp"

#include <nanobind/stl/vector.h>

namespace zerohop::bind {

namespace {

using Self = std::shared_ptr<Engine>;

struct PyTally {
    std::shared_ptr<Tally> tally;
};

nb::object receive(const Self& engine, uint64_t mailbox, int64_t source, int64_t tag, const PyRegion* region,
                   uint64_t offset, uint64_t nbytes, uint64_t deadline_ns, uint64_t finder, bool finds_described) {
    return post_receive_by(engine, region, offset, nbytes, deadline_ns, [&](const Request& request) {
        return engine->post_tagged_receive(mailbox, {source, tag}, request, finder, finds_described);
    });
}

nb::object claim(const Self& engine, uint64_t mailbox, uint64_t finder, const PyRegion* region, uint64_t offset,
                 uint64_t nbytes, uint64_t deadline_ns) {
    return post_receive_by(engine, region, offset, nbytes, deadline_ns,
                           [&](const Request& request) { return engine->post_claim(mailbox, finder, request); });
}

} // namespace

void def_mailboxes(nb::module_& m, nb::class_<Engine>& engine) {
    nb::class_<PyTally>(m, "Tally", "Counts messages as they arrive.")
        .def(
            "__init__",
            [](PyTally* self, const PyQueue& queue, uint64_t token) {
                new (self) PyTally{std::make_shared<Tally>(queue.queue, token)};
            },
            nb::arg("queue"), nb::arg("token"), "The queue gets the token when as many were counted as were wanted.")
        .def_prop_ro("count", [](const PyTally& self) { return self.tally->count(); })
        .def(
            "want", [](const PyTally& self, uint64_t count) { self.tally->want(count); }, nb::arg("count"),
            "Say how many somebody waits for. Several may: the fewest count, and all look again after a token.");
    engine
        .def("post_tagged_receive", &receive, nb::arg("mailbox"), nb::arg("source"), nb::arg("tag"),
             nb::arg("region").none(), nb::arg("offset"), nb::arg("nbytes"), nb::arg("deadline_ns"),
             nb::arg("finder") = 0, nb::arg("finds_described") = false,
             nb::sig("def post_tagged_receive(self, mailbox: int, source: int, tag: int, region: Region | None, "
                     "offset: int, nbytes: int, deadline_ns: int, finder: int = 0, finds_described: bool = False) "
                     "-> Op"))
        .def("post_claim", &claim, nb::arg("mailbox"), nb::arg("finder"), nb::arg("region").none(), nb::arg("offset"),
             nb::arg("nbytes"), nb::arg("deadline_ns"),
             nb::sig("def post_claim(self, mailbox: int, finder: int, region: Region | None, offset: int, "
                     "nbytes: int, deadline_ns: int) -> Op"))
        .def("release_found", &Engine::release_found, nb::arg("mailbox"), nb::arg("finder"), nb::call_guard<Released>())
        .def(
            "take_header",
            [](Engine& self, uint64_t mailbox, uint64_t finder) {
                const Message header = self.take_header(mailbox, finder);
                return header ? nb::bytes(header->data(), header->size()) : nb::bytes("", 0);
            },
            nb::arg("mailbox"), nb::arg("finder"))
        .def(
            "count_messages",
            [](Engine& self, uint64_t mailbox, const PyTally& tally) { self.count_messages(mailbox, tally.tally); },
            nb::arg("mailbox"), nb::arg("tally"))
        .def("open_mailbox", &Engine::open_mailbox, nb::arg("mailbox"), nb::call_guard<Released>())
        .def(
            "close_mailbox",
            [](Engine& self, uint64_t mailbox, Status status, Reason reason) {
                const Released release;
                self.close_mailbox(mailbox, {status, reason});
            },
            nb::arg("mailbox"), nb::arg("status"), nb::arg("reason"))
        .def(
            "lose_member",
            [](Engine& self, uint64_t mailbox, uint32_t source, Status status, Reason reason) {
                const Released release;
                self.lose_member(mailbox, source, {status, reason});
            },
            nb::arg("mailbox"), nb::arg("source"), nb::arg("status"), nb::arg("reason"))
        .def("restore_member", &Engine::restore_member, nb::arg("mailbox"), nb::arg("source"),
             nb::call_guard<Released>())
        .def("forget_member", &Engine::forget_member, nb::arg("mailbox"), nb::arg("peer"), nb::arg("more"),
             nb::call_guard<Released>());
}

} // namespace zerohop::bind
