#include "bind/post.hpp"

#include "base/clock.hpp"
#include "bind/indices.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>

namespace zerohop::bind {

namespace {

using Self = std::shared_ptr<Engine>;

// Above this size a copy takes longer than handing the interpreter to another thread.
constexpr uint64_t kHoldGilBytes = 4096;

[[noreturn]] void raise(const Posted& posted) {
    throw NativeError(posted.outcome, "");
}

Message copied(const std::optional<nb::bytes>& given) {
    if (!given || given->size() == 0) {
        return {};
    }
    if (given->size() > kMaxMessage) {
        throw nb::value_error("a message is longer than 256 bytes");
    }
    return std::make_shared<const std::string>(given->c_str(), given->size());
}

std::shared_ptr<const Route> route_of(Engine& engine, uint64_t id) {
    std::shared_ptr<const Route> found = engine.route(id);
    if (!found) {
        throw NativeError(Status::closed, Reason::lane_closed, "the route is gone");
    }
    return found;
}

void check_local(const Route& route, uint64_t offset, uint64_t nbytes, bool reads) {
    if (offset > route.local->nbytes() || nbytes > route.local->nbytes() - offset) {
        throw nb::value_error("the range lies outside of the local memory");
    }
    if (reads && route.local->readonly()) {
        throw nb::value_error("the local memory is read-only");
    }
}

// `where`: an endpoint, or the number of a route.
template <class Where> Posted post_released(Engine& engine, Where& where, Request& request, bool nowait) {
    const Released release;
    return engine.post(where, request, nowait);
}

// Copies the page numbers, and the largest to `most`; false unless all are below `limit`.
bool copy_pages(const Indices& indices, uint64_t limit, PageNumbers& pages, uint64_t& most) {
    pages.resize(indices.size());
    return copy_numbers(indices.numbers(), pages.data(), most) && (pages.empty() || most < limit);
}

nb::object post_one(const Self& engine, uint64_t route, int kind, uint64_t local_offset, uint64_t remote_offset,
                    uint64_t nbytes, int64_t notify, uint64_t deadline_ns, bool nowait, std::optional<uint64_t> stream,
                    const PyGroup* group, const std::optional<nb::bytes>& message) {
    const Message text = copied(message);
    Request request;
    request.message = text ? &text : nullptr;
    request.deadline_ns = deadline_ns;
    request.after_stream = stream;
    request.group = group == nullptr ? nullptr : group->group.get();
    Posted posted = post_range(*engine, route, kind == 1 ? Kind::read : Kind::write, local_offset, remote_offset,
                               nbytes, notify, request, nowait);
    return result(engine, posted, request);
}

nb::object post_pages(const Self& engine, uint64_t route, int kind, nb::handle local_array, nb::handle remote_array,
                      uint64_t page_bytes, int64_t notify, uint64_t deadline_ns, bool nowait, uint64_t local_offset,
                      uint64_t remote_offset, uint64_t local_nbytes, std::optional<uint64_t> stream,
                      const PyGroup* group, const std::optional<nb::bytes>& message) {
    const Message text = copied(message);
    Request request;
    request.message = text ? &text : nullptr;
    request.after_stream = stream;
    request.group = group == nullptr ? nullptr : group->group.get();
    const std::shared_ptr<const Route> found = route_of(*engine, route);
    if (page_bytes == 0) {
        throw nb::value_error("page_bytes must be positive");
    }
    const Indices local_pages(local_array);
    const Indices remote_pages(remote_array);
    if (local_pages.size() != remote_pages.size()) {
        throw nb::value_error("the two lists of pages have different lengths");
    }
    check_local(*found, local_offset, local_nbytes, kind == 1);
    if (local_pages.size() > static_cast<uint64_t>(INT64_MAX) / page_bytes) {
        throw nb::value_error("the pages are 2**63 bytes or more together: pass fewer, or smaller ones");
    }
    auto pages = std::make_shared<PageList>();
    pages->page_bytes = page_bytes;
    uint64_t most = 0;
    if (!copy_pages(local_pages, local_nbytes / page_bytes, pages->local, most)) {
        throw nb::value_error("a page number is negative, or its page not within the local memory");
    }
    // The owner checks the bounds; this check finds page numbers that have no 64-bit offset at all.
    if (!copy_pages(remote_pages, UINT64_MAX / page_bytes / 2, pages->remote, most)) {
        throw NativeError(Status::access_denied, Reason::bounds, "a page number is negative, or too large");
    }
    pages->remote_end = most + 1;
    request.kind = kind == 1 ? Kind::read : Kind::write;
    request.route = found.get();
    request.local_offset = local_offset;
    request.remote_offset = remote_offset;
    request.nbytes = pages->local.size() * page_bytes;
    request.pages = std::move(pages);
    request.notify = notify;
    request.deadline_ns = deadline_ns;
    Posted posted = post_released(*engine, *found->endpoint, request, nowait);
    return result(engine, posted, request);
}

nb::object post_ranges_of(const Self& engine, uint64_t route, int kind, const MadeRanges& ranges, int64_t notify,
                          uint64_t deadline_ns, bool nowait, std::optional<uint64_t> stream, const PyGroup* group,
                          const std::optional<nb::bytes>& message) {
    const Message text = copied(message);
    Request request;
    request.message = text ? &text : nullptr;
    request.after_stream = stream;
    request.deadline_ns = deadline_ns;
    request.group = group == nullptr ? nullptr : group->group.get();
    Posted posted = post_ranges(*engine, route, kind == 1 ? Kind::read : Kind::write, ranges.list, ranges.nbytes,
                                notify, request, nowait);
    return result(engine, posted, request);
}

nb::object post_atomic(const Self& engine, uint64_t route, int kind, uint64_t remote_offset, uint64_t operand,
                       uint64_t compare, uint64_t deadline_ns, bool nowait) {
    Request request;
    request.kind = kind == 1 ? Kind::compare_swap : Kind::fetch_add;
    request.remote_offset = remote_offset;
    request.nbytes = sizeof(uint64_t);
    request.operand = operand;
    request.compare = compare;
    request.deadline_ns = deadline_ns;
    Posted posted = post_released(*engine, route, request, nowait);
    if (posted.what == Posted::What::done) {
        return nb::make_tuple(now_ns() - request.started_ns, posted.value);
    }
    return result(engine, posted, request);
}

nb::object post_notify(const Self& engine, const PyEndpoint& endpoint, int64_t notify, uint64_t deadline_ns,
                       bool nowait, uint64_t nbytes, const std::optional<nb::bytes>& message) {
    const Message text = copied(message);
    Request request;
    request.kind = Kind::notify;
    request.message = text ? &text : nullptr;
    request.nbytes = nbytes;
    request.notify = notify;
    request.deadline_ns = deadline_ns;
    Posted posted = post_released(*engine, *endpoint.endpoint, request, nowait);
    return result(engine, posted, request);
}

nb::object post_message(const Self& engine, const PyEndpoint& endpoint, Request& request, uint64_t deadline_ns,
                        bool nowait) {
    request.deadline_ns = deadline_ns;
    Posted posted = post_released(*engine, *endpoint.endpoint, request, nowait);
    return result(engine, posted, request);
}

nb::object post_send(const Self& engine, const PyEndpoint& endpoint, const PyRegion& region, uint64_t offset,
                     uint64_t nbytes, uint64_t deadline_ns, bool nowait,
                     const std::optional<std::tuple<uint64_t, uint32_t, uint32_t>>& envelope,
                     const std::optional<nb::bytes>& header) {
    const Message text = copied(header);
    Request request;
    request.kind = Kind::send;
    request.message = text ? &text : nullptr;
    Envelope told;
    if (envelope) {
        told = {std::get<0>(*envelope), std::get<1>(*envelope), std::get<2>(*envelope)};
        request.envelope = &told;
    }
    set_memory(request, region, offset, nbytes);
    return post_message(engine, endpoint, request, deadline_ns, nowait);
}

nb::object post_recv(const Self& engine, const PyEndpoint& endpoint, const PyRegion& region, uint64_t offset,
                     uint64_t nbytes, uint64_t deadline_ns, bool nowait) {
    Request request;
    request.kind = Kind::recv;
    set_memory(request, region, offset, nbytes);
    return post_message(engine, endpoint, request, deadline_ns, nowait);
}

nb::object post_receive(const Self& engine, const PyRegion& region, uint64_t offset, uint64_t nbytes,
                        uint64_t deadline_ns) {
    return post_receive_by(engine, &region, offset, nbytes, deadline_ns,
                           [&](const Request& request) { return engine->post_receive(request); });
}

nb::object post_flush(const Self& engine, const PyEndpoint& endpoint, uint64_t deadline_ns) {
    Request request;
    request.kind = Kind::flush;
    request.deadline_ns = deadline_ns;
    Posted posted = post_released(*engine, *endpoint.endpoint, request, false); // a flush always finds room
    return result(engine, posted, request);
}

} // namespace

void set_memory(Request& request, const PyRegion& region, uint64_t offset, uint64_t nbytes) {
    region.check(offset, nbytes);
    if (request.kind == Kind::recv && region.get()->readonly()) {
        throw nb::value_error("the local memory is read-only");
    }
    request.local = region.get();
    request.local_offset = offset;
    request.nbytes = nbytes;
}

nb::object post_receive_by(const Self& engine, const PyRegion* region, uint64_t offset, uint64_t nbytes,
                           uint64_t deadline_ns, const std::function<Posted(const Request&)>& post) {
    Request request;
    request.kind = Kind::recv;
    if (region != nullptr) {
        set_memory(request, *region, offset, nbytes);
    }
    request.deadline_ns = deadline_ns;
    Posted posted;
    {
        const Released release;
        posted = post(request);
        if (posted.look) {
            engine->look_or_kick();
        }
    }
    return result(engine, posted, request);
}

nb::object result(const Self& engine, Posted& posted, const Request& request) {
    switch (posted.what) {
    case Posted::What::done:
        return nb::int_(now_ns() - request.started_ns);
    case Posted::What::posted:
        return nb::cast(PyOp{engine, std::move(posted.op)});
    case Posted::What::retry:
    case Posted::What::failed:
        raise(posted);
    }
    raise(posted);
}

Posted post_range(Engine& engine, uint64_t route, Kind kind, uint64_t local_offset, uint64_t remote_offset,
                  uint64_t nbytes, int64_t notify, Request& request, bool nowait) {
    const std::shared_ptr<const Route> found = route_of(engine, route);
    check_local(*found, local_offset, nbytes, kind == Kind::read);
    request.kind = kind;
    request.route = found.get();
    request.local_offset = local_offset;
    request.remote_offset = remote_offset;
    request.nbytes = nbytes;
    request.notify = notify;
    Endpoint& endpoint = *found->endpoint;
    // A small mapped copy, or a request to a NIC, is over before another thread could use the interpreter. Anything
    // that may make a system call, or wait, releases the GIL.
    if (found->access && found->access->brief && nbytes <= kHoldGilBytes) {
        Posted posted = engine.try_post(endpoint, request);
        if (posted.what != Posted::What::retry) {
            return posted;
        }
    }
    return post_released(engine, endpoint, request, nowait);
}

Posted post_ranges(Engine& engine, uint64_t route, Kind kind, std::shared_ptr<const PageList> ranges, uint64_t nbytes,
                   int64_t notify, Request& request, bool nowait) {
    const std::shared_ptr<const Route> found = route_of(engine, route);
    if (ranges) {
        check_local(*found, 0, ranges->local_end, kind == Kind::read);
    }
    request.kind = kind;
    request.route = found.get();
    request.nbytes = nbytes;
    request.pages = std::move(ranges);
    request.notify = notify;
    return post_released(engine, *found->endpoint, request, nowait);
}

void def_posts(nb::module_& m, nb::class_<Engine>& engine) {
    nb::class_<MadeRanges>(m, "Ranges",
                           "A list of ranges: its numbers are copied, and checked unless one of the flags is false.")
        .def(
            "__init__",
            [](MadeRanges* self, nb::handle local_array, nb::handle remote_array, nb::handle length_array,
               uint64_t local_offset, uint64_t local_nbytes, uint64_t remote_offset, uint64_t remote_nbytes) {
                const Indices local(local_array);
                const Indices remote(remote_array);
                const Indices lengths(length_array);
                if (local.size() != lengths.size() || remote.size() != lengths.size()) {
                    throw nb::value_error("the lists have different lengths");
                }
                new (self) MadeRanges(make_ranges({local.numbers(), local_offset, local_nbytes},
                                                  {remote.numbers(), remote_offset, remote_nbytes}, lengths.numbers()));
            },
            nb::arg("local"), nb::arg("remote"), nb::arg("lengths"), nb::arg("local_offset"), nb::arg("local_nbytes"),
            nb::arg("remote_offset"), nb::arg("remote_nbytes"),
            nb::sig("def __init__(self, local: numpy.typing.NDArray[numpy.int64], "
                    "remote: numpy.typing.NDArray[numpy.int64], lengths: numpy.typing.NDArray[numpy.int64], "
                    "local_offset: int, local_nbytes: int, remote_offset: int, remote_nbytes: int) -> None"))
        .def_ro("nbytes", &MadeRanges::nbytes, "Bytes of all ranges; meaningful if all of them are inside.")
        .def_ro("local_inside", &MadeRanges::local_inside,
                "False if a number of this side or a length is negative, or a range reaches beyond the memory here.")
        .def_ro("remote_inside", &MadeRanges::remote_inside,
                "False if a range that is not empty reaches beyond the memory there.");
    engine
        .def("post", &post_one, nb::arg("route"), nb::arg("kind"), nb::arg("local_offset"), nb::arg("remote_offset"),
             nb::arg("nbytes"), nb::arg("notify"), nb::arg("deadline_ns"), nb::arg("nowait") = false,
             nb::arg("stream") = nb::none(), nb::arg("group") = nb::none(), nb::arg("message") = nb::none(),
             nb::sig("def post(self, route: int, kind: int, local_offset: int, remote_offset: int, nbytes: int, "
                     "notify: int, deadline_ns: int, nowait: bool = False, stream: int | None = None, "
                     "group: Group | None = None, message: bytes | None = None) -> int | Op"))
        .def(
            "post_pages", &post_pages, nb::arg("route"), nb::arg("kind"), nb::arg("local_pages"),
            nb::arg("remote_pages"), nb::arg("page_bytes"), nb::arg("notify"), nb::arg("deadline_ns"),
            nb::arg("nowait"), nb::arg("local_offset"), nb::arg("remote_offset"), nb::arg("local_nbytes"),
            nb::arg("stream") = nb::none(), nb::arg("group") = nb::none(), nb::arg("message") = nb::none(),
            nb::sig("def post_pages(self, route: int, kind: int, local_pages: numpy.typing.NDArray[numpy.int64], "
                    "remote_pages: numpy.typing.NDArray[numpy.int64], page_bytes: int, notify: int, deadline_ns: int, "
                    "nowait: bool, local_offset: int, remote_offset: int, local_nbytes: int, "
                    "stream: int | None = None, group: Group | None = None, message: bytes | None = None) -> int | Op"))
        .def("post_ranges", &post_ranges_of, nb::arg("route"), nb::arg("kind"), nb::arg("ranges"), nb::arg("notify"),
             nb::arg("deadline_ns"), nb::arg("nowait"), nb::arg("stream") = nb::none(), nb::arg("group") = nb::none(),
             nb::arg("message") = nb::none(),
             nb::sig("def post_ranges(self, route: int, kind: int, ranges: Ranges, notify: int, deadline_ns: int, "
                     "nowait: bool, stream: int | None = None, group: Group | None = None, "
                     "message: bytes | None = None) -> int | Op"))
        .def("post_atomic", &post_atomic, nb::arg("route"), nb::arg("kind"), nb::arg("remote_offset"),
             nb::arg("operand"), nb::arg("compare"), nb::arg("deadline_ns"), nb::arg("nowait") = false,
             nb::sig("def post_atomic(self, route: int, kind: int, remote_offset: int, operand: int, compare: int, "
                     "deadline_ns: int, nowait: bool = False) -> tuple[int, int] | Op"))
        .def("post_notify", &post_notify, nb::arg("endpoint"), nb::arg("notify"), nb::arg("deadline_ns"),
             nb::arg("nowait") = false, nb::arg("nbytes") = 0, nb::arg("message") = nb::none(),
             nb::sig("def post_notify(self, endpoint: Endpoint, notify: int, deadline_ns: int, "
                     "nowait: bool = False, nbytes: int = 0, message: bytes | None = None) -> int | Op"))
        .def("post_send", &post_send, nb::arg("endpoint"), nb::arg("region"), nb::arg("offset"), nb::arg("nbytes"),
             nb::arg("deadline_ns"), nb::arg("nowait") = false, nb::arg("envelope") = nb::none(),
             nb::arg("header") = nb::none(),
             nb::sig("def post_send(self, endpoint: Endpoint, region: Region, offset: int, nbytes: int, "
                     "deadline_ns: int, nowait: bool = False, envelope: tuple[int, int, int] | None = None, "
                     "header: bytes | None = None) -> int | Op"))
        .def("post_recv", &post_recv, nb::arg("endpoint"), nb::arg("region"), nb::arg("offset"), nb::arg("nbytes"),
             nb::arg("deadline_ns"), nb::arg("nowait") = false,
             nb::sig("def post_recv(self, endpoint: Endpoint, region: Region, offset: int, nbytes: int, "
                     "deadline_ns: int, nowait: bool = False) -> Op"))
        .def("post_receive", &post_receive, nb::arg("region"), nb::arg("offset"), nb::arg("nbytes"),
             nb::arg("deadline_ns"),
             nb::sig("def post_receive(self, region: Region, offset: int, nbytes: int, deadline_ns: int) -> Op"))
        .def("post_flush", &post_flush, nb::arg("endpoint"), nb::arg("deadline_ns"),
             nb::sig("def post_flush(self, endpoint: Endpoint, deadline_ns: int) -> int | Op"));
}

} // namespace zerohop::bind
