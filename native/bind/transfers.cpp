#include "bind/transfers.hpp"

#include "bind/in_flight.hpp"
#include "bind/many.hpp"
#include "bind/post.hpp"

#include <algorithm>
#include <exception>
#include <optional>
#include <utility>

namespace zerohop::bind {

namespace {

constexpr int64_t kNoNotify = -1;
constexpr uint64_t kMaxNotify = UINT32_MAX;
constexpr Py_ssize_t kMostArguments = 5; // one more than there are, which Python then complains of

// Everything that a Context or a face posts with.
struct Posting {
    std::shared_ptr<Engine> engine;
    nb::object core;      // of the Context
    nb::object in_flight; // the class of operations that end later
    nb::object finished;  // the class of operations that end within the call
    // Functions that do what this file leaves to Python; they take the object itself and the same arguments.
    nb::object write;
    nb::object write_many;
    nb::object read;
    uint64_t timeout_ns = 0;
    // A face that has one peer gives the link to it, the queue of the peer that is notified, and the group of its
    // operations.
    nb::object link;
    uint16_t queue = 0;
    std::shared_ptr<OperationGroup> group;
};

struct Transfers {
    PyObject_HEAD Posting* posting; // null: not open
};

// A write or read as far as it can be prepared with no look at anything but attributes.
struct Prepared {
    nb::object route;
    nb::object nbytes;
    uint64_t id = 0;
    uint64_t length = 0;
    uint64_t local_offset = 0;
    uint64_t remote_offset = 0;
    int64_t notify = kNoNotify;
};

nb::object attribute(PyObject* object, const char* name_once, PyObject*& name) {
    if (name == nullptr) {
        name = PyUnicode_InternFromString(name_once);
    }
    return nb::steal(PyObject_GetAttr(object, name));
}

// Leaves Python's error where it is none.
uint64_t number(const nb::object& value) {
    return value.is_valid() && PyLong_CheckExact(value.ptr()) ? PyLong_AsUnsignedLongLong(value.ptr()) : UINT64_MAX;
}

// A time of the caller's own, in seconds: false where it is not a plain one, such as infinity or none at all.
bool read_timeout(PyObject* value, uint64_t& nanoseconds) {
    constexpr double kPlain = 1e9;
    const double seconds = PyFloat_CheckExact(value)  ? PyFloat_AS_DOUBLE(value)
                           : PyLong_CheckExact(value) ? PyLong_AsDouble(value)
                                                      : 0;
    const bool plain = seconds > 0 && seconds < kPlain; // of NaN neither holds
    nanoseconds = plain ? static_cast<uint64_t>(seconds * static_cast<double>(kSecond)) : 0;
    return nanoseconds != 0; // which would mean none
}

// False, perhaps with Python's error set, where it is not a plain one.
bool read_notify(PyObject* given, const Posting& posting, int64_t& notify) {
    if (given == nullptr || given == Py_None) {
        return true;
    }
    const uint64_t value = PyLong_CheckExact(given) ? PyLong_AsUnsignedLongLong(given) : UINT64_MAX;
    notify = notify_of(posting.queue, static_cast<uint32_t>(value));
    return value <= kMaxNotify;
}

// Nothing, perhaps with Python's error set, where the way is not the plain one.
std::optional<Prepared> prepare(const Posting& posting, Kind kind, PyObject* local, PyObject* remote,
                                PyObject* notify) {
    static PyObject *routes_name, *key_name, *core_name, *nbytes_name, *offset_name, *id_name, *link_name, *readonly_name;
    Prepared made;
    const nb::object routes = attribute(local, "_routes", routes_name);
    const nb::object key = routes.is_valid() ? attribute(remote, "_key", key_name) : nb::object();
    if (!key.is_valid() || !PyDict_CheckExact(routes.ptr())) {
        return std::nullopt;
    }
    made.route = nb::borrow(PyDict_GetItemWithError(routes.ptr(), key.ptr()));
    if (!made.route.is_valid() || attribute(local, "_core", core_name).ptr() != posting.core.ptr()) {
        return std::nullopt;
    }
    if (kind == Kind::read && attribute(local, "readonly", readonly_name).ptr() != Py_False) {
        return std::nullopt;
    }
    if (posting.link.is_valid() &&
        attribute(made.route.ptr(), "link", link_name).ptr() != posting.link.ptr()) {
        return std::nullopt;
    }
    if (!read_notify(notify, posting, made.notify)) {
        return std::nullopt;
    }
    made.nbytes = attribute(local, "nbytes", nbytes_name);
    made.length = number(made.nbytes);
    made.id = number(attribute(made.route.ptr(), "id", id_name));
    made.local_offset = number(attribute(local, "_offset", offset_name));
    made.remote_offset = number(attribute(remote, "_offset", offset_name));
    const uint64_t room = number(attribute(remote, "nbytes", nbytes_name));
    // Who has one peer uses the begin of what that has.
    const bool fits = posting.link.is_valid() ? made.length <= room : made.length == room;
    return made.length != UINT64_MAX && room != UINT64_MAX && fits && PyErr_Occurred() == nullptr
               ? std::optional(std::move(made))
               : std::nullopt;
}

PyObject* operation_of(PyObject* core, const Posting& posting, const std::shared_ptr<Engine>& engine, PyObject* kind,
                       const Prepared& prepared, Posted& posted, const Request& request, PyObject* local) {
    if (posted.what == Posted::What::done) {
        const nb::object elapsed = nb::steal(PyLong_FromUnsignedLongLong(now_ns() - request.started_ns));
        if (!elapsed.is_valid()) {
            return nullptr;
        }
        PyObject* const arguments[] = {
            core, kind, prepared.route.ptr(), prepared.nbytes.ptr(), prepared.nbytes.ptr(), elapsed.ptr()};
        return PyObject_Vectorcall(posting.finished.ptr(), arguments, std::size(arguments), nullptr);
    }
    InFlight* const made = make_in_flight(reinterpret_cast<PyTypeObject*>(posting.in_flight.ptr()));
    if (made == nullptr) {
        return nullptr;
    }
    made->core = Py_NewRef(core);
    made->kind = Py_NewRef(kind);
    made->path = Py_NewRef(prepared.route.ptr());
    made->nbytes = Py_NewRef(prepared.nbytes.ptr());
    made->keep = Py_NewRef(local);
    made->held.engine = engine;
    made->held.op = std::move(posted.op);
    return reinterpret_cast<PyObject*>(made);
}

// What `post` of such a request came to; not where nothing was posted.
template <class Post> bool posted_by(const Posting& posting, Request& request, uint64_t timeout_ns, Posted& posted,
                                     Post&& post) {
    request.deadline_ns = timeout_ns == 0 ? 0 : request.started_ns + timeout_ns;
    request.group = posting.group.get();
    try {
        posted = post();
    } catch (const std::exception&) { // refused: as below
        return false;
    }
    return posted.what == Posted::What::done || posted.what == Posted::What::posted;
}

// False where nothing was posted: whoever asks once more, by the long way, is told why.
bool post(const Posting& posting, Kind kind, PyObject* local, PyObject* remote, PyObject* notify,
          PyObject* timeout, PyObject*& operation) {
    static PyObject* const write_name = PyUnicode_InternFromString("write");
    static PyObject* const read_name = PyUnicode_InternFromString("read");
    const nb::object core = posting.core; // another thread may stop the posting while this one waits
    const std::optional<Prepared> prepared = prepare(posting, kind, local, remote, notify);
    uint64_t timeout_ns = posting.timeout_ns;
    if (!prepared || (timeout != nullptr && timeout != Py_None && !read_timeout(timeout, timeout_ns))) {
        PyErr_Clear(); // of an attribute that is not there, most likely: the argument is no Memory
        return false;
    }
    const std::shared_ptr<Engine> engine = posting.engine; // another thread may stop it
    if (!engine) {
        return false;
    }
    Request request;
    Posted posted;
    if (!posted_by(posting, request, timeout_ns, posted, [&] {
            return post_range(*engine, prepared->id, kind, prepared->local_offset, prepared->remote_offset,
                              prepared->length, prepared->notify, request, true);
        })) {
        return false;
    }
    operation = operation_of(core.ptr(), posting, engine, kind == Kind::read ? read_name : write_name, *prepared,
                             posted, request, local);
    return true;
}

// The same of many pairs.
bool post_many(const Posting& posting, PyObject* given, PyObject* notify, PyObject* timeout,
               PyObject*& operation) {
    static PyObject* const kind = PyUnicode_InternFromString("write_many");
    static PyObject *id_name, *link_name;
    const nb::object core = posting.core;
    const std::shared_ptr<Engine> engine = posting.engine;
    uint64_t timeout_ns = posting.timeout_ns;
    Prepared write;
    if (!engine || !read_notify(notify, posting, write.notify) ||
        (timeout != nullptr && timeout != Py_None && !read_timeout(timeout, timeout_ns))) {
        PyErr_Clear();
        return false;
    }
    const std::optional<Pairs> pairs = read_pairs(given, core.ptr(), posting.link.is_valid());
    if (!pairs) {
        return false;
    }
    write.route = nb::borrow(PyDict_GetItemWithError(pairs->routes.ptr(), pairs->key.ptr()));
    write.nbytes = nb::steal(PyLong_FromUnsignedLongLong(pairs->nbytes));
    if (!write.route.is_valid() || !write.nbytes.is_valid() ||
        (posting.link.is_valid() &&
         attribute(write.route.ptr(), "link", link_name).ptr() != posting.link.ptr())) {
        PyErr_Clear();
        return false;
    }
    write.id = number(attribute(write.route.ptr(), "id", id_name));
    Request request;
    Posted posted;
    if (!posted_by(posting, request, timeout_ns, posted, [&] {
            return post_ranges(*engine, write.id, pairs->list, pairs->nbytes, write.notify, request, true);
        })) {
        return false;
    }
    operation = operation_of(core.ptr(), posting, engine, kind, write, posted, request, pairs->first.ptr());
    return true;
}

PyObject* go_long_way(PyObject* self, const nb::object& way, PyObject* const* args, Py_ssize_t count,
                      PyObject* keywords) {
    PyObject* passed[kMostArguments + 1] = {self};
    const Py_ssize_t all = count + (keywords == nullptr ? 0 : PyTuple_GET_SIZE(keywords));
    if (all > kMostArguments) {
        PyErr_SetString(PyExc_TypeError, "too many arguments");
        return nullptr;
    }
    std::copy_n(args, all, passed + 1);
    return PyObject_Vectorcall(way.ptr(), passed, static_cast<size_t>(count) + 1, keywords);
}

// The arguments by name that are given to a call, as far as they are plain: false where there are others.
bool read_keywords(PyObject* const* args, Py_ssize_t count, PyObject* keywords, PyObject*& notify, PyObject*& timeout) {
    bool plain = true;
    for (Py_ssize_t i = 0; keywords != nullptr && i < PyTuple_GET_SIZE(keywords); ++i) {
        PyObject* const name = PyTuple_GET_ITEM(keywords, i);
        if (PyUnicode_CompareWithASCIIString(name, "notify") == 0) {
            notify = args[count + i];
        } else if (PyUnicode_CompareWithASCIIString(name, "timeout") == 0) {
            timeout = args[count + i];
        } else {
            plain = false;
        }
    }
    return plain;
}

// A call with that many arguments by place: `post` does what is plain, and the long way the rest.
template <class Post>
PyObject* call(PyObject* object, PyObject* const* args, Py_ssize_t count, PyObject* keywords, Py_ssize_t places,
               nb::object Posting::* long_way, Post&& post) {
    const Posting* const posting = reinterpret_cast<Transfers*>(object)->posting;
    if (posting == nullptr) {
        PyErr_SetString(PyExc_RuntimeError, "this was not opened");
        return nullptr;
    }
    PyObject* notify = nullptr;
    PyObject* timeout = nullptr;
    PyObject* operation = nullptr;
    const bool plain = read_keywords(args, count, keywords, notify, timeout) && count == places;
    if (plain && post(*posting, notify, timeout, operation)) {
        return operation;
    }
    return go_long_way(object, posting->*long_way, args, count, keywords);
}

PyObject* write(PyObject* object, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
    return call(object, args, count, keywords, 2, &Posting::write,
                [&](const Posting& posting, PyObject* notify, PyObject* timeout, PyObject*& operation) {
                    return post(posting, Kind::write, args[0], args[1], notify, timeout, operation);
                });
}

// Of a Context, which is told first where from, and of others, who are told first where to.
template <int local> PyObject* read(PyObject* object, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
    return call(object, args, count, keywords, 2, &Posting::read,
                [&](const Posting& posting, PyObject* notify, PyObject* timeout, PyObject*& operation) {
                    return notify == nullptr &&
                           post(posting, Kind::read, args[local], args[1 - local], nullptr, timeout, operation);
                });
}

PyObject* write_many(PyObject* object, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
    return call(object, args, count, keywords, 1, &Posting::write_many,
                [&](const Posting& posting, PyObject* notify, PyObject* timeout, PyObject*& operation) {
                    return post_many(posting, args[0], notify, timeout, operation);
                });
}

PyTypeObject* transfers_type = nullptr; // set once; the type lives as long as the interpreter

Transfers& checked(const nb::object& poster) {
    if (PyObject_TypeCheck(poster.ptr(), transfers_type) == 0) {
        throw nb::type_error("only an object with native transfers can post");
    }
    return *reinterpret_cast<Transfers*>(poster.ptr());
}

void begin_posting(const nb::object& poster, std::shared_ptr<Engine> engine, nb::object core, nb::object in_flight,
                   nb::object finished, nb::object write, nb::object write_many, nb::object read, uint64_t timeout_ns,
                   nb::object link, uint16_t queue, const PyGroup* group) {
    Transfers& self = checked(poster);
    Posting made{.engine = std::move(engine),
                 .core = std::move(core),
                 .in_flight = std::move(in_flight),
                 .finished = std::move(finished),
                 .write = std::move(write),
                 .write_many = std::move(write_many),
                 .read = std::move(read),
                 .timeout_ns = timeout_ns,
                 .link = link.is_none() ? nb::object() : std::move(link),
                 .queue = queue,
                 .group = group == nullptr ? nullptr : group->group};
    if (self.posting == nullptr) {
        self.posting = std::make_unique<Posting>(std::move(made)).release();
    } else {
        *self.posting = std::move(made); // in place: another thread may be in the middle of a call
    }
}

void stop_posting(const nb::object& poster) {
    if (Posting* const posting = checked(poster).posting) {
        posting->engine.reset();
        posting->link.reset(); // the link may keep the object itself alive
    }
}

void destroy(PyObject* object) {
    PyTypeObject* const type = Py_TYPE(object);
    delete reinterpret_cast<Transfers*>(object)->posting;
    type->tp_free(object);
    Py_DECREF(type);
}

template <class F> PyCFunction method(F* function) {
    return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

constexpr const char* kWriteDoc =
    R"(write($self, src, dst, *, notify=None, timeout=None, stream=None)
--

Write all of ``src`` into the remote ``dst`` of the same length; value: bytes moved.

Done means that ``src`` may be reused and the other side has accepted every byte; over shm, tcp and p2p it is then
visible there, over verbs once a notification or ``flush`` says so. Operations have no order among each other.
A first use connects and maps in the background. Where the lane is full, the call waits; on an event loop's
thread the Operation does instead.

Args:
    src: a Memory, a View, or anything that ``register`` takes, which then is registered through the cache.
    dst: where to, a RemoteBuffer; slice it to the same length.
    notify: a 32-bit number for the peer's ``notification``, never delivered before the data is visible there.
    timeout: seconds for the operation; None: the Context's; ``math.inf``: none.
    stream: a stream of a GPU: a torch, CuPy or cuda-core one, or the driver's number of one. The transfer begins after
        what is queued there now; what is queued there later does not wait for it, see ``Operation.wait_on``. None: at
        once, also while a stream is being captured into a graph, which then does not have it.

Raises:
    ValueError: unequal lengths, memory of another Context, a notification of more than 32 bits.
    TypeError: not memory, not a RemoteBuffer, not a stream.
    Unsupported: the stream is being captured into a graph.
    Closed: the Context or the Memory is closed. All other errors come from the Operation.)";

constexpr const char* kWriteManyDoc =
    R"(write_many($self, pairs, *, notify=None, timeout=None)
--

Write each memory here into its remote one, all of them as one Operation; value: bytes moved.

Many small writes cost a fraction of as many calls of ``write``, where they go from one Memory to one handle: they then
are one request, and between GPUs a few launches. The writes have no order among each other; ``notify`` comes after all
of them, with the sum of their bytes. Done and errors as for ``write``; where one fails the content of all is undefined.

Args:
    pairs: a list of ``(src, dst)``, each as for ``write``.
    notify: as for ``write``.
    timeout: as for ``write``, of all together.

Raises:
    ValueError, TypeError, Closed: as for ``write``, with nothing posted.)";

constexpr const char* kReadDoc =
    R"(read($self, src, into, *, timeout=None, stream=None)
--

Read all of the remote ``src`` into ``into`` of the same length; value: bytes moved.

Done means that the bytes are in ``into``. Arguments and errors as for ``write``; read-only memory is a ValueError.)";

constexpr const char* kReadIntoDoc =
    R"(read($self, view, remote, *, timeout=None, stream=None)
--

Fill all of ``view`` from the begin of ``remote``; value: bytes moved.

Done, arguments and errors as for ``write``.

Raises:
    ValueError: ``remote`` is shorter; ``view`` is read-only; the handle is not the peer's.)";

} // namespace

void register_transfers(nb::module_& m) {
    static PyMethodDef methods[] = {
        {"write", method(&write), METH_FASTCALL | METH_KEYWORDS, kWriteDoc},
        {"write_many", method(&write_many), METH_FASTCALL | METH_KEYWORDS, kWriteManyDoc},
        {"read", method(&read<1>), METH_FASTCALL | METH_KEYWORDS, kReadDoc},
        {nullptr, nullptr, 0, nullptr},
    };
    static PyType_Slot slots[] = {
        {Py_tp_doc, const_cast<char*>("Writes and reads natively wherever the path is known.")},
        {Py_tp_dealloc, reinterpret_cast<void*>(&destroy)},
        {Py_tp_methods, methods},
        {0, nullptr},
    };
    static PyType_Spec spec = {"zerohop._native.Transfers", sizeof(Transfers), 0,
                               Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, slots};
    const nb::object type = nb::steal(PyType_FromSpec(&spec));
    transfers_type = reinterpret_cast<PyTypeObject*>(nb::object(type).release().ptr());
    m.attr("Transfers") = type;

    static PyMethodDef pair_methods[] = {
        {"read", method(&read<0>), METH_FASTCALL | METH_KEYWORDS, kReadIntoDoc},
        {nullptr, nullptr, 0, nullptr},
    };
    static PyType_Slot pair_slots[] = {
        {Py_tp_doc, const_cast<char*>("Like Transfers, for one end of a pair; ``read`` takes the memory here first.")},
        {Py_tp_methods, pair_methods},
        {0, nullptr},
    };
    static PyType_Spec pair_spec = {"zerohop._native.PairTransfers", sizeof(Transfers), 0,
                                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, pair_slots};
    const nb::object bases = nb::steal(PyTuple_Pack(1, type.ptr()));
    m.attr("PairTransfers") = nb::steal(PyType_FromSpecWithBases(&pair_spec, bases.ptr()));

    m.def("begin_posting", &begin_posting, nb::arg("poster"), nb::arg("engine").none(), nb::arg("core"),
          nb::arg("in_flight"), nb::arg("finished"), nb::arg("write"), nb::arg("write_many"), nb::arg("read"),
          nb::arg("timeout_ns"), nb::arg("link") = nb::none(), nb::arg("queue") = 0, nb::arg("group") = nb::none(),
          "Lets the native methods of an object post. The three functions do what the native methods cannot, and "
          "everything without an engine. A face that has one peer gives the link, the peer's queue and its group.");
    m.def("stop_posting", &stop_posting, nb::arg("poster"),
          "Sends everything to the three functions from now on, and lets go of the engine.");
}

} // namespace zerohop::bind
