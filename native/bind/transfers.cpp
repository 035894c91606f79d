// Writes and reads where all is prepared: one call from Python posts and makes the Operation.
//
// In CPython's own API, as InFlight and for the same reason.
#include "bind/hot_path.hpp"
#include "bind/poster.hpp"

#include <algorithm>
#include <utility>

namespace zerohop::bind {

namespace {

constexpr Py_ssize_t kMostArguments = 7; // one more than there are, which Python then complains of

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

// Reads the arguments by name. Returns false if there are others than these.
bool read_keywords(PyObject* const* args, Py_ssize_t count, PyObject* keywords, Arguments& arguments) {
    bool plain = true;
    for (Py_ssize_t i = 0; keywords != nullptr && i < PyTuple_GET_SIZE(keywords); ++i) {
        PyObject* const name = PyTuple_GET_ITEM(keywords, i);
        if (PyUnicode_CompareWithASCIIString(name, "notify") == 0) {
            arguments.notify = args[count + i];
        } else if (PyUnicode_CompareWithASCIIString(name, "timeout") == 0) {
            arguments.timeout = args[count + i];
        } else {
            plain = false;
        }
    }
    return plain;
}

// Does a call with so many arguments by place: `post` does what is plain, and the long way the rest.
template <class Post>
PyObject* call(PyObject* object, PyObject* const* args, Py_ssize_t count, PyObject* keywords, Py_ssize_t places,
               nb::object Posting::* long_way, Post&& post) {
    const Posting* const posting = static_cast<const Posting*>(reinterpret_cast<Poster*>(object)->posts);
    if (posting == nullptr) {
        PyErr_SetString(PyExc_RuntimeError, "this was not opened");
        return nullptr;
    }
    Arguments arguments;
    PyObject* operation = nullptr;
    const bool plain = read_keywords(args, count, keywords, arguments) && count == places;
    if (plain && post(*posting, arguments, operation)) {
        return operation;
    }
    return go_long_way(object, posting->*long_way, args, count, keywords);
}

PyObject* write(PyObject* object, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
    return call(object, args, count, keywords, 2, &Posting::write,
                [&](const Posting& posting, const Arguments& arguments, PyObject*& operation) {
                    return post_one(posting, Kind::write, args[0], args[1], arguments, operation);
                });
}

// `local` is the place of the memory here: second for a Context, first for one end of a pair.
template <int local> PyObject* read(PyObject* object, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
    return call(object, args, count, keywords, 2, &Posting::read,
                [&](const Posting& posting, const Arguments& arguments, PyObject*& operation) {
                    return (local == 1 || arguments.notify == nullptr) && // the owner's queue belongs to the pair
                           post_one(posting, Kind::read, args[local], args[1 - local], arguments, operation);
                });
}

PyObject* write_many(PyObject* object, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
    return call(object, args, count, keywords, 1, &Posting::write_many,
                [&](const Posting& posting, const Arguments& arguments, PyObject*& operation) {
                    return post_many(posting, args[0], arguments, operation);
                });
}

PyTypeObject* transfers_type = nullptr; // set once; the type lives as long as the interpreter

void begin_posting(const nb::object& poster, std::shared_ptr<Engine> engine, nb::object core, nb::object in_flight,
                   nb::object finished, nb::object prepare, nb::object write, nb::object write_many, nb::object read,
                   uint64_t timeout_ns, nb::object link, uint16_t queue, const PyGroup* group) {
    Poster& self = checked(poster, transfers_type);
    Posting made;
    made.engine = std::move(engine);
    made.core = std::move(core);
    made.in_flight = std::move(in_flight);
    made.finished = std::move(finished);
    made.prepare = std::move(prepare);
    made.write = std::move(write);
    made.write_many = std::move(write_many);
    made.read = std::move(read);
    made.timeout_ns = timeout_ns;
    made.link = link.is_none() ? nb::object() : std::move(link);
    made.queue = queue;
    made.group = group == nullptr ? nullptr : group->group;
    if (self.posts == nullptr) {
        self.posts = std::make_unique<Posting>(std::move(made)).release();
    } else {
        static_cast<Posting&>(*self.posts) = std::move(made); // in place: another thread may be in the middle of a call
    }
}

constexpr const char* kWriteDoc =
    R"(write($self, src, dst, *, notify=None, message=None, timeout=None, stream=None)
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
    message: up to 256 bytes that go with the number, ``Notification.message``.
    timeout: seconds for the operation; None: the Context's; ``math.inf``: none.
    stream: a stream of a GPU: a torch, CuPy or cuda-core one, or the driver's number of one. The transfer begins after
        what is queued there now; what is queued there later does not wait for it, see ``Operation.wait_on``. None: at
        once, also while a stream is being captured into a graph, which then does not have it.

Raises:
    ValueError: unequal lengths, memory of another Context, a notification of more than 32 bits, a message that is too
        long or has no notification.
    TypeError: not memory, not a RemoteBuffer, not a stream, not bytes.
    Unsupported: the stream is being captured into a graph.
    Closed: the Context or the Memory is closed. All other errors come from the Operation.)";

constexpr const char* kWriteManyDoc =
    R"(write_many($self, pairs, *, notify=None, message=None, timeout=None)
--

Write each memory here into its remote one, all of them as one Operation; value: bytes moved.

Many small writes cost a fraction of as many calls of ``write``, where they go from one Memory to one handle: they then
are one request, and between GPUs a few launches. The writes have no order among each other; ``notify`` comes after all
of them, with the sum of their bytes. Done and errors as for ``write``; where one fails the content of all is undefined.

Args:
    pairs: a list of ``(src, dst)``, each as for ``write``.
    notify: as for ``write``.
    message: as for ``write``.
    timeout: as for ``write``, of all together.

Raises:
    ValueError, TypeError, Closed: as for ``write``, with nothing posted.)";

constexpr const char* kReadDoc =
    R"(read($self, src, into, *, notify=None, message=None, timeout=None, stream=None)
--

Read all of the remote ``src`` into ``into`` of the same length; value: bytes moved.

Done means that the bytes are in ``into``. With ``notify`` the owner is told after the last byte of ``src`` was read, so
that it may write there again; it is not told of a read that failed. Arguments and errors as for ``write``; read-only
memory is a ValueError.)";

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
    transfers_type = make_poster_type(m, "Transfers", "Writes and reads natively wherever the path is known.", methods);

    static PyMethodDef pair_methods[] = {
        {"read", method(&read<0>), METH_FASTCALL | METH_KEYWORDS, kReadIntoDoc},
        {nullptr, nullptr, 0, nullptr},
    };
    make_poster_type(m, "PairTransfers", "Like Transfers, for one end of a pair; ``read`` takes the memory here first.",
                     pair_methods, transfers_type);

    m.def(
        "begin_posting", &begin_posting, nb::arg("poster"), nb::arg("engine").none(), nb::arg("core"),
        nb::arg("in_flight"), nb::arg("finished"), nb::arg("prepare"), nb::arg("write"), nb::arg("write_many"),
        nb::arg("read"), nb::arg("timeout_ns"), nb::arg("link") = nb::none(), nb::arg("queue") = 0,
        nb::arg("group") = nb::none(),
        "Lets the native methods of an object post. `prepare` makes a Memory of an array that is registered already. "
        "The three functions do what the native methods cannot, and everything without an engine. A face that has one "
        "peer gives the link, the peer's queue and its group.");
}

} // namespace zerohop::bind
