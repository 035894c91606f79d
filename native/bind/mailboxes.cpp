// The mailboxes of groups: their tagged messages, and the members that send them.
#include "bind/post.hpp"

#include <nanobind/stl/vector.h>

namespace zerohop::bind {

namespace {

nb::object receive(const std::shared_ptr<Engine>& engine, uint64_t mailbox, int64_t source, int64_t tag,
                   const PyRegion& region, uint64_t offset, uint64_t nbytes, uint64_t deadline_ns) {
    region.check(offset, nbytes);
    if (region.get()->readonly()) {
        throw nb::value_error("the local memory is read-only");
    }
    Request request;
    request.kind = Kind::recv;
    request.local = region.get();
    request.local_offset = offset;
    request.nbytes = nbytes;
    request.deadline_ns = deadline_ns;
    Posted posted;
    {
        const Released release;
        posted = engine->post_tagged_receive(mailbox, {source, tag}, request);
    }
    return result(engine, posted, request);
}

} // namespace

void def_mailboxes(nb::class_<Engine>& engine) {
    engine
        .def("post_tagged_receive", &receive, nb::arg("mailbox"), nb::arg("source"), nb::arg("tag"), nb::arg("region"),
             nb::arg("offset"), nb::arg("nbytes"), nb::arg("deadline_ns"),
             nb::sig("def post_tagged_receive(self, mailbox: int, source: int, tag: int, region: Region, offset: int, "
                     "nbytes: int, deadline_ns: int) -> Op"))
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
