#include "bind/hot_path.hpp"

#include "bind/in_flight.hpp"
#include "bind/many.hpp"
#include "bind/post.hpp"
#include "bind/slots.hpp"

#include <exception>
#include <iterator>
#include <optional>
#include <utility>

namespace zerohop::bind {

namespace {

constexpr int64_t kNoNotify = -1;
constexpr uint64_t kMaxNotify = UINT32_MAX;

// A transfer whose arguments were read.
struct Prepared {
    nb::object core; // kept: another thread may stop the posting meanwhile
    std::shared_ptr<Engine> engine;
    nb::object route;
    nb::object nbytes;
    uint64_t route_id = 0;
    uint64_t timeout_ns = 0;
    int64_t notify = kNoNotify;
};

nb::object attribute(const nb::object& object, const char* name, PyObject*& interned) {
    if (interned == nullptr) {
        interned = PyUnicode_InternFromString(name);
    }
    return nb::steal(PyObject_GetAttr(object.ptr(), interned));
}

// Reads the number of a notification. Returns false, perhaps with Python's error set, unless it has 32 bits.
bool read_notify(PyObject* given, const Posting& posting, int64_t& notify) {
    if (given == nullptr || given == Py_None) {
        return true;
    }
    const uint64_t value = number(given);
    notify = notify_of(posting.queue, static_cast<uint32_t>(value));
    return value <= kMaxNotify;
}

// Reads what is common to all transfers, apart from the route.
bool begin(const Posting& posting, const Arguments& arguments, Prepared& made) {
    made.core = posting.core;
    made.engine = posting.engine;
    made.timeout_ns = posting.timeout_ns;
    return made.engine && read_notify(arguments.notify, posting, made.notify) &&
           read_timeout(arguments.timeout, made.timeout_ns);
}

// Makes a Memory of an array or a tensor that is registered already, with its route. Returns None if one of the two is
// not known; null, with Python's error set, if a signal's handler has raised, or there is no memory.
nb::object memory_of(const Posting& posting, PyObject* local, PyObject* remote) {
    const nb::object prepare = posting.prepare; // kept: another thread may begin the posting anew while Python runs
    const nb::object core = posting.core;
    PyObject* const arguments[] = {core.ptr(), local, remote};
    return nb::steal(PyObject_Vectorcall(prepare.ptr(), arguments, std::size(arguments), nullptr));
}

// Finds the route of a Memory to a share. Returns false, perhaps with Python's error set, if there is none.
bool find_route(const Posting& posting, PyObject* routes, PyObject* key, Prepared& made) {
    static PyObject *id_name, *link_name;
    if (routes == nullptr || key == nullptr || !PyDict_CheckExact(routes)) {
        return false;
    }
    made.route = nb::borrow(PyDict_GetItemWithError(routes, key));
    if (!made.route.is_valid() ||
        (posting.link.is_valid() && attribute(made.route, "link", link_name).ptr() != posting.link.ptr())) {
        return false;
    }
    const nb::object id = attribute(made.route, "id", id_name);
    made.route_id = number(id.ptr());
    return made.route_id != kNoNumber;
}

// Makes the Operation of a transfer; null with Python's error set if there is no memory for it.
PyObject* operation_of(const Posting& posting, const Prepared& prepared, Posted& posted, const Request& request,
                       PyObject* kind, PyObject* keep) {
    if (posted.what == Posted::What::done) {
        const nb::object elapsed = nb::steal(PyLong_FromUnsignedLongLong(now_ns() - request.started_ns));
        if (!elapsed.is_valid()) {
            return nullptr;
        }
        PyObject* const arguments[] = {prepared.core.ptr(),   kind,         prepared.route.ptr(), prepared.nbytes.ptr(),
                                       prepared.nbytes.ptr(), elapsed.ptr()};
        return PyObject_Vectorcall(posting.finished.ptr(), arguments, std::size(arguments), nullptr);
    }
    InFlight* const made = make_in_flight(reinterpret_cast<PyTypeObject*>(posting.in_flight.ptr()));
    if (made == nullptr) {
        return nullptr;
    }
    made->core = Py_NewRef(prepared.core.ptr());
    made->kind = Py_NewRef(kind);
    made->path = Py_NewRef(prepared.route.ptr());
    made->nbytes = Py_NewRef(prepared.nbytes.ptr());
    made->keep = Py_NewRef(keep);
    made->held.engine = prepared.engine;
    made->held.op = std::move(posted.op);
    return reinterpret_cast<PyObject*>(made);
}

// Posts, and makes the Operation. Returns false if nothing was posted.
template <class Post>
bool finish(const Posting& posting, const Prepared& prepared, PyObject* kind, PyObject* keep, PyObject*& operation,
            Post&& post) {
    Request request;
    request.deadline_ns = prepared.timeout_ns == 0 ? 0 : request.started_ns + prepared.timeout_ns;
    request.group = posting.group.get();
    Posted posted;
    try {
        posted = post(request);
    } catch (const std::exception&) { // the long way raises the same, with all its details
        return false;
    }
    if (posted.what != Posted::What::done && posted.what != Posted::What::posted) {
        return false;
    }
    operation = operation_of(posting, prepared, posted, request, kind, keep);
    return true;
}

} // namespace

bool post_one(const Posting& posting, Kind kind, PyObject* local, PyObject* remote, const Arguments& arguments,
              PyObject*& operation) {
    static PyObject* const write_name = PyUnicode_InternFromString("write");
    static PyObject* const read_name = PyUnicode_InternFromString("read");
    static PyObject* readonly_name;
    const Layout* const known = layout();
    if (known == nullptr || !is(remote, known->remote) || !posting.engine) {
        return false;
    }
    nb::object memory; // of an array: an Operation in flight keeps it beyond this call
    if (!is(local, known->range)) {
        // Before anything else is read, because other threads may stop the posting while Python runs.
        memory = memory_of(posting, local, remote);
        if (!memory.is_valid()) {
            operation = nullptr;
            return true;
        }
        local = memory.ptr();
    }
    Prepared made;
    if (!is(local, known->range) || known->core.of(local) != posting.core.ptr() || !begin(posting, arguments, made) ||
        !find_route(posting, known->routes.of(local), known->key.of(remote), made) || has_moved(*known, local) ||
        (kind == Kind::read && attribute(nb::borrow(local), "readonly", readonly_name).ptr() != Py_False)) {
        PyErr_Clear(); // not plain: the long way posts it, or says what is wrong
        return false;
    }
    made.nbytes = nb::borrow(known->nbytes.of(local));
    const uint64_t length = number(known->nbytes.of(local));
    const uint64_t room = number(known->remote_nbytes.of(remote));
    const uint64_t from = number(known->offset.of(local));
    const uint64_t to = number(known->remote_offset.of(remote));
    const bool fits = posting.link.is_valid() ? length <= room : length == room;
    if (!fits || length == kNoNumber || room == kNoNumber || from == kNoNumber || to == kNoNumber) {
        PyErr_Clear();
        return false;
    }
    return finish(posting, made, kind == Kind::read ? read_name : write_name, local, operation, [&](Request& request) {
        return post_range(*made.engine, made.route_id, kind, from, to, length, made.notify, request, true);
    });
}

bool post_many(const Posting& posting, PyObject* pairs, const Arguments& arguments, PyObject*& operation) {
    static PyObject* const kind = PyUnicode_InternFromString("write_many");
    Prepared made;
    std::optional<Pairs> read;
    try {
        if (begin(posting, arguments, made)) {
            read = read_pairs(pairs, posting.core.ptr(), posting.link.is_valid());
        }
    } catch (const std::exception&) { // no memory, which the long way says
        read.reset();
    }
    if (read) {
        made.nbytes = nb::steal(PyLong_FromUnsignedLongLong(read->nbytes));
    }
    if (!read || !made.nbytes.is_valid() || !find_route(posting, read->routes.ptr(), read->key.ptr(), made)) {
        PyErr_Clear();
        return false;
    }
    return finish(posting, made, kind, read->first.ptr(), operation, [&](Request& request) {
        return post_ranges(*made.engine, made.route_id, Kind::write, read->list, read->nbytes, made.notify, request,
                           true);
    });
}

} // namespace zerohop::bind
