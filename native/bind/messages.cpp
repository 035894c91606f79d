// Tagged messages where all is prepared: one call from Python posts, and makes the Operation.
//
// In CPython's own API, as InFlight and for the same reason. The methods return None, and have done nothing, if an
// argument is not plain, the receiver is not known, or there is no room: Python then posts, or says what is wrong.
#include "base/guarded.hpp"
#include "bind/in_flight.hpp"
#include "bind/poster.hpp"
#include "bind/slots.hpp"
#include "provider/framed/tuning.hpp"

#include <cstring>
#include <exception>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

namespace zerohop::bind {

namespace {

constexpr uint64_t kMostTag = UINT32_MAX;
constexpr uint64_t kMostRanks = uint64_t{1} << 20;
// Above this size a copy takes longer than handing the interpreter to another thread.
constexpr uint64_t kHoldGilBytes = 4096;
// Longest message that goes in a frame with others.
constexpr uint64_t kMostInPack = framed::kEagerBytes - sizeof(uint16_t);
constexpr Py_ssize_t kSendArguments = 4;
constexpr Py_ssize_t kReceiveArguments = 4;
constexpr Py_ssize_t kSendManyArguments = 5;

// A rank that messages reach without more ado.
struct Receiver {
    std::shared_ptr<Endpoint> endpoint; // null: not known
    bool in_memory = false;             // a send makes no system call, so that it need not give up Python's GIL
    uint64_t mailbox = 0;
    nb::object path;
    // Dictionaries with a key each, whose value is false or missing unless earlier messages wait for something.
    std::vector<std::pair<nb::object, nb::object>> gates;

    [[nodiscard]] bool is_free() const {
        for (const auto& [dictionary, key] : gates) {
            PyObject* const value = PyDict_GetItemWithError(dictionary.ptr(), key.ptr());
            if (value == nullptr ? PyErr_Occurred() != nullptr : PyObject_IsTrue(value) != 0) {
                return false;
            }
        }
        return true;
    }
};

// What the messages of one mailbox are posted with.
struct Messages : Posts {
    void stop() override {
        engine.reset();
        receivers.clear();
    }
    std::shared_ptr<Engine> engine;
    nb::object core;
    nb::object in_flight; // the class of sends that end later
    nb::object finished;  // the class of sends that end within the call
    nb::object receive;   // the class of receives
    Slot source_of;       // its attributes: the rank, and why each lost rank is gone
    Slot losses_of;
    nb::object message; // the class of their values
    nb::object losses;
    nb::object greeted; // the set of ranks that were told that this one waits for them
    nb::object known;   // takes the core and an object; returns a Memory of it if it is registered already, else None
    uint64_t mailbox = 0;
    uint32_t rank = 0;
    uint64_t timeout_ns = 0;
    std::vector<Receiver> receivers; // by rank
};

PyTypeObject* messages_type = nullptr; // set once; it lives as long as the interpreter

// Reads a tag or a rank; nothing, perhaps with Python's error set, unless it is an int of Python's of at most this.
std::optional<uint64_t> read_number(PyObject* given, uint64_t most) {
    const uint64_t value = number(given);
    return value <= most ? std::optional(value) : std::nullopt;
}

// Names what a message is sent from: memory, or a bytes object that is copied at once.
struct Source {
    nb::object memory; // keeps it
    LocalRange local;
    const void* bytes = nullptr;
};

// Reads the memory of a message; `memory` keeps it if the object is an array. Returns false, perhaps with Python's
// error set, if the memory is not plain.
bool read_memory(const Messages& messages, PyObject* object, nb::object& memory, LocalRange& local) {
    const Layout* const known = layout();
    if (known == nullptr) {
        return false;
    }
    memory = nb::borrow(object);
    if (!is(object, known->range)) {
        const nb::object find = messages.known; // kept: another thread may stop the posting while Python runs
        const nb::object core = messages.core;
        PyObject* const arguments[] = {core.ptr(), object};
        memory = nb::steal(PyObject_Vectorcall(find.ptr(), arguments, 2, nullptr));
        if (!memory.is_valid()) {
            return false;
        }
    }
    return read_local(*known, messages.core.ptr(), memory.ptr(), local);
}

// Reads what a message is sent from, as read_memory() does. Only memory of the host is plain.
bool read_source(const Messages& messages, PyObject* object, Source& source) {
    if (PyBytes_CheckExact(object) && PyBytes_GET_SIZE(object) <= Py_ssize_t{framed::kEagerBytes}) {
        source.memory = nb::borrow(object);
        source.bytes = PyBytes_AS_STRING(object);
        source.local.nbytes = static_cast<uint64_t>(PyBytes_GET_SIZE(object));
        return true;
    }
    return read_memory(messages, object, source.memory, source.local) && source.local.region->is_host();
}

// Makes the request of a message. The envelope lives as long as the request.
Request request_of(Source& source, const Envelope& envelope, uint64_t timeout_ns) {
    Request request;
    request.kind = Kind::send;
    request.envelope = &envelope;
    request.local = std::move(source.local.region);
    request.bytes = source.bytes;
    request.local_offset = source.local.offset;
    request.nbytes = source.local.nbytes;
    request.deadline_ns = timeout_ns == 0 ? 0 : request.started_ns + timeout_ns;
    return request;
}

// Names where messages go to: what is needed of a receiver while the GIL is given up, and others forget it.
struct Address {
    std::shared_ptr<Engine> engine;
    std::shared_ptr<Endpoint> endpoint;
    nb::object path;
    bool in_memory = false;
    Envelope envelope;
};

// Reads a rank and a tag. Returns nothing, perhaps with Python's error set, unless messages may go there at once.
std::optional<Address> read_address(const Messages& messages, PyObject* to, PyObject* tag_given) {
    const std::optional<uint64_t> rank = read_number(to, kMostRanks);
    const std::optional<uint64_t> tag = read_number(tag_given, kMostTag);
    if (!rank || !tag || *rank >= messages.receivers.size()) {
        return std::nullopt;
    }
    const Receiver& receiver = messages.receivers[*rank];
    if (!messages.engine || !receiver.endpoint || !receiver.is_free()) {
        return std::nullopt;
    }
    return Address{messages.engine, receiver.endpoint, receiver.path, receiver.in_memory,
                   Envelope{receiver.mailbox, messages.rank, static_cast<uint32_t>(*tag)}};
}

PyObject* leave_to_python() {
    if (PyErr_Occurred() != nullptr &&
        (PyErr_ExceptionMatches(PyExc_Exception) == 0 || PyErr_ExceptionMatches(PyExc_MemoryError) != 0)) {
        return nullptr; // of a signal's handler
    }
    PyErr_Clear(); // Python finds the same, and says what is wrong
    return Py_NewRef(Py_None);
}

// Posts without the GIL where that takes long; nothing if it was refused, for Python to find out why.
template <class Post> std::optional<Posted> posted_by(bool hold, const Post& post) {
    try {
        if (hold) {
            return post();
        }
        const Released release;
        return post();
    } catch (const std::exception&) { // Python's way raises the same, with all its details
        return std::nullopt;
    }
}

InFlight* begun(const Messages& messages, const nb::object& type, PyObject* kind, PyObject* path, uint64_t nbytes,
                const nb::object& keep, const std::shared_ptr<Engine>& engine, OpRef&& op) {
    InFlight* const made = make_in_flight(reinterpret_cast<PyTypeObject*>(type.ptr()));
    PyObject* const length = made == nullptr ? nullptr : PyLong_FromUnsignedLongLong(nbytes);
    if (length == nullptr) {
        Py_XDECREF(reinterpret_cast<PyObject*>(made));
        return nullptr;
    }
    made->core = Py_NewRef(messages.core.ptr());
    made->kind = Py_NewRef(kind);
    made->path = Py_NewRef(path);
    made->nbytes = length;
    made->keep = Py_NewRef(keep.ptr());
    made->held.engine = engine;
    made->held.op = std::move(op);
    return made;
}

PyObject* ended(const Messages& messages, PyObject* kind, PyObject* path, uint64_t nbytes, uint64_t elapsed_ns) {
    const nb::object length = nb::steal(PyLong_FromUnsignedLongLong(nbytes));
    const nb::object elapsed = nb::steal(PyLong_FromUnsignedLongLong(elapsed_ns));
    if (!length.is_valid() || !elapsed.is_valid()) {
        return nullptr;
    }
    PyObject* const arguments[] = {messages.core.ptr(), kind, path, length.ptr(), length.ptr(), elapsed.ptr()};
    return PyObject_Vectorcall(messages.finished.ptr(), arguments, std::size(arguments), nullptr);
}

// Takes the memory, the rank, the tag, and the seconds or None.
PyObject* send(PyObject* object, PyObject* const* args, Py_ssize_t count) {
    static PyObject* const kind = PyUnicode_InternFromString("send");
    auto* const messages = static_cast<Messages*>(reinterpret_cast<Poster*>(object)->posts);
    if (count != kSendArguments || messages == nullptr || !messages->engine) {
        return leave_to_python();
    }
    Source source;
    uint64_t timeout_ns = messages->timeout_ns;
    if (!read_source(*messages, args[0], source) || !read_timeout(args[3], timeout_ns)) {
        return leave_to_python();
    }
    const std::optional<Address> to = read_address(*messages, args[1], args[2]);
    if (!to) {
        return leave_to_python();
    }
    const uint64_t nbytes = source.local.nbytes;
    const Request request = request_of(source, to->envelope, timeout_ns);
    std::optional<Posted> posted = posted_by(to->in_memory && nbytes <= kHoldGilBytes,
                                             [&] { return to->engine->post(*to->endpoint, request, true); });
    if (posted && posted->what == Posted::What::done) {
        return ended(*messages, kind, to->path.ptr(), nbytes, now_ns() - request.started_ns);
    }
    if (!posted || posted->what != Posted::What::posted) {
        return leave_to_python();
    }
    return reinterpret_cast<PyObject*>(begun(*messages, messages->in_flight, kind, to->path.ptr(), nbytes,
                                             source.memory, to->engine, std::move(posted->op)));
}

// Holds short messages that go in one frame (framed/frame.hpp).
class Pack {
public:
    [[nodiscard]] bool has_room(uint64_t nbytes) const {
        return count() < framed::kMostPacked &&
               sizeof(uint16_t) * (count() + 1) + bytes_.size() + nbytes <= framed::kEagerBytes;
    }
    // Copies a message; false if its memory is gone, or has moved.
    [[nodiscard]] bool add(const Source& source) {
        const size_t before = bytes_.size();
        bytes_.resize(before + source.local.nbytes);
        std::byte* const to = bytes_.data() + before;
        bool copied = true;
        if (source.bytes != nullptr) {
            std::memcpy(to, source.bytes, source.local.nbytes);
        } else {
            Pin<Region> pin;
            copied = pin_local(source.local.region, pin).ok() &&
                     copy_guarded(to, pin->host() + source.local.offset, source.local.nbytes) == Gone::nothing &&
                     !pin->moved();
        }
        if (copied) {
            lengths_.push_back(static_cast<uint16_t>(source.local.nbytes));
        } else {
            bytes_.resize(before);
        }
        return copied;
    }
    [[nodiscard]] size_t count() const { return lengths_.size(); }
    // Posts the messages; false if there was no room, or they were refused.
    [[nodiscard]] bool post(const Address& to, uint64_t timeout_ns, bool nowait) {
        const auto* const lengths = reinterpret_cast<const std::byte*>(lengths_.data());
        std::vector<std::byte> frame(lengths, lengths + sizeof(uint16_t) * count());
        frame.insert(frame.end(), bytes_.begin(), bytes_.end());
        Request request;
        request.kind = Kind::send;
        request.envelope = &to.envelope;
        request.bytes = frame.data();
        request.nbytes = frame.size();
        request.packed = static_cast<uint32_t>(count());
        request.deadline_ns = timeout_ns == 0 ? 0 : request.started_ns + timeout_ns;
        lengths_.clear();
        bytes_.clear();
        return to.engine->post(*to.endpoint, request, nowait).what == Posted::What::done;
    }

private:
    std::vector<uint16_t> lengths_;
    std::vector<std::byte> bytes_;
};

// Sends messages of at most kMostInPack bytes; returns how many, from the first on.
long send_packs(const Address& to, const std::vector<Source>& sources, uint64_t timeout_ns, bool nowait) {
    size_t sent = 0;
    try {
        Pack pack;
        for (const Source& source : sources) {
            if (!pack.has_room(source.local.nbytes)) {
                const size_t count = pack.count();
                if (!pack.post(to, timeout_ns, nowait)) {
                    return static_cast<long>(sent);
                }
                sent += count;
            }
            if (!pack.add(source)) {
                break;
            }
        }
        const size_t count = pack.count();
        if (count != 0 && pack.post(to, timeout_ns, nowait)) {
            sent += count;
        }
    } catch (const std::exception&) { // Python's way raises the same, with all its details
    }
    return static_cast<long>(sent);
}

// Takes a tuple of memories, the rank, the tag, the seconds or None, and whether to wait for room. Returns how many
// were sent, from the first on: none unless all are plain and short.
PyObject* send_many(PyObject* object, PyObject* const* args, Py_ssize_t count) {
    auto* const messages = static_cast<Messages*>(reinterpret_cast<Poster*>(object)->posts);
    if (count != kSendManyArguments || messages == nullptr || !messages->engine || !PyTuple_CheckExact(args[0])) {
        return PyLong_FromLong(0);
    }
    std::vector<Source> sources;
    uint64_t timeout_ns = messages->timeout_ns;
    bool plain = read_timeout(args[3], timeout_ns);
    for (Py_ssize_t i = 0; plain && i < PyTuple_GET_SIZE(args[0]); ++i) {
        Source source;
        plain = read_source(*messages, PyTuple_GET_ITEM(args[0], i), source) && source.local.nbytes <= kMostInPack;
        if (plain) {
            sources.push_back(std::move(source));
        }
    }
    const std::optional<Address> to = !plain ? std::nullopt : read_address(*messages, args[1], args[2]);
    if (PyErr_Occurred() != nullptr) { // Python finds the same; but a signal's handler is to be heard
        if (nb::object heard = nb::steal(leave_to_python()); !heard.is_valid()) {
            return nullptr;
        }
    }
    long sent = 0;
    if (to) {
        const Released release;
        sent = send_packs(*to, sources, timeout_ns, args[4] != Py_True);
    }
    return PyLong_FromLong(sent);
}

// Takes the memory, the rank or None, the tag or None, and the seconds or None.
PyObject* recv(PyObject* object, PyObject* const* args, Py_ssize_t count) {
    static PyObject* const kind = PyUnicode_InternFromString("recv");
    auto* const messages = static_cast<Messages*>(reinterpret_cast<Poster*>(object)->posts);
    if (count != kReceiveArguments || messages == nullptr || !messages->engine) {
        return leave_to_python();
    }
    nb::object memory;
    LocalRange local;
    uint64_t timeout_ns = 0;
    if (!read_memory(*messages, args[0], memory, local) || local.readonly || local.region->readonly() ||
        !read_timeout(args[3], timeout_ns)) {
        return leave_to_python();
    }
    Wanted wanted;
    if (args[1] != Py_None) {
        const std::optional<uint64_t> rank = read_number(args[1], kMostRanks);
        // A rank that is waited for has to be reached, so that its end is noticed, and told that this one waits.
        if (!rank || *rank >= messages->receivers.size() || !messages->receivers[*rank].endpoint ||
            !messages->receivers[*rank].endpoint->state().ok() ||
            PySet_Contains(messages->greeted.ptr(), args[1]) != 1) {
            return leave_to_python();
        }
        wanted.source = static_cast<int64_t>(*rank);
    }
    if (args[2] != Py_None) {
        const std::optional<uint64_t> tag = read_number(args[2], kMostTag);
        if (!tag) {
            return leave_to_python();
        }
        wanted.tag = static_cast<int64_t>(*tag);
    }
    Request request;
    request.kind = Kind::recv;
    request.local = std::move(local.region);
    request.local_offset = local.offset;
    request.nbytes = local.nbytes;
    request.deadline_ns = timeout_ns == 0 ? 0 : request.started_ns + timeout_ns;
    const std::shared_ptr<Engine> engine = messages->engine;
    std::optional<Posted> posted =
        posted_by(true, [&] { return engine->post_tagged_receive(messages->mailbox, wanted, request); });
    if (!posted || posted->what != Posted::What::posted) {
        return leave_to_python();
    }
    InFlight* const made =
        begun(*messages, messages->receive, kind, Py_None, local.nbytes, memory, engine, std::move(posted->op));
    if (made != nullptr) {
        made->message = Py_NewRef(messages->message.ptr());
        messages->source_of.set(reinterpret_cast<PyObject*>(made), args[1]);
        messages->losses_of.set(reinterpret_cast<PyObject*>(made), messages->losses.ptr());
    }
    return reinterpret_cast<PyObject*>(made);
}

void begin_messages(const nb::object& poster, std::shared_ptr<Engine> engine, nb::object core, nb::object in_flight,
                    nb::object finished, nb::object receive, nb::object message, nb::object losses, nb::object greeted,
                    nb::object known, uint64_t mailbox, uint32_t rank, uint64_t timeout_ns) {
    Poster& self = checked(poster, messages_type);
    if (self.posts != nullptr) {
        throw nb::value_error("this was opened before");
    }
    auto made = std::make_unique<Messages>();
    made->engine = std::move(engine);
    made->core = std::move(core);
    made->in_flight = std::move(in_flight);
    made->finished = std::move(finished);
    made->source_of = Slot(receive, "_source");
    made->losses_of = Slot(receive, "_losses");
    made->receive = std::move(receive);
    made->message = std::move(message);
    made->losses = std::move(losses);
    made->greeted = std::move(greeted);
    made->known = std::move(known);
    made->mailbox = mailbox;
    made->rank = rank;
    made->timeout_ns = timeout_ns;
    self.posts = made.release();
}

void reach(const nb::object& poster, uint32_t rank, const PyEndpoint& endpoint, uint64_t mailbox, nb::object path,
           const nb::list& gates) {
    auto* const messages = static_cast<Messages*>(checked(poster, messages_type).posts);
    if (messages == nullptr || !messages->engine || rank > kMostRanks) {
        return;
    }
    Receiver made;
    made.endpoint = endpoint.endpoint;
    made.in_memory = std::strcmp(endpoint.endpoint->provider(), "shm") == 0;
    made.mailbox = mailbox;
    made.path = std::move(path);
    for (const nb::handle gate : gates) {
        if (PyTuple_Check(gate.ptr()) == 0 || PyTuple_GET_SIZE(gate.ptr()) != 2 ||
            PyDict_Check(PyTuple_GET_ITEM(gate.ptr(), 0)) == 0) {
            throw nb::type_error("a gate is a dictionary and a key");
        }
        made.gates.emplace_back(nb::borrow(PyTuple_GET_ITEM(gate.ptr(), 0)),
                                nb::borrow(PyTuple_GET_ITEM(gate.ptr(), 1)));
    }
    if (messages->receivers.size() <= rank) {
        messages->receivers.resize(size_t{rank} + 1);
    }
    std::swap(messages->receivers[rank], made); // the old one goes at the end: its destructors may run Python
}

} // namespace

void register_messages(nb::module_& m) {
    static PyMethodDef methods[] = {
        {"post_send", method(&send), METH_FASTCALL,
         "post_send($self, source, rank, tag, timeout, /)\n--\n\n"
         "Post a message to a rank that is reached; None: nothing was done, because it is not as plain as that."},
        {"post_sends", method(&send_many), METH_FASTCALL,
         "post_sends($self, sources, rank, tag, timeout, waits, /)\n--\n\n"
         "Send short messages to a rank that is reached; return how many, from the first on: none unless all are "
         "plain."},
        {"post_recv", method(&recv), METH_FASTCALL,
         "post_recv($self, into, source, tag, timeout, /)\n--\n\n"
         "Post a receive; None: nothing was done, because it is not as plain as that."},
        {nullptr, nullptr, 0, nullptr},
    };
    messages_type = make_poster_type(m, "TaggedMessages", "Sends and receives natively where all is known.", methods);
    m.def("begin_messages", &begin_messages, nb::arg("poster"), nb::arg("engine"), nb::arg("core"),
          nb::arg("in_flight"), nb::arg("finished"), nb::arg("receive"), nb::arg("message"), nb::arg("losses"),
          nb::arg("greeted"), nb::arg("known"), nb::arg("mailbox"), nb::arg("rank"), nb::arg("timeout_ns"),
          "Lets the native methods of an object post. `receive` has slots `_source` and `_losses`; `message` is a "
          "tuple's class, of three; `known` makes a Memory of an array that is registered already.");
    m.def("reach", &reach, nb::arg("poster"), nb::arg("rank"), nb::arg("endpoint"), nb::arg("mailbox"), nb::arg("path"),
          nb::arg("gates"),
          nb::sig("def reach(poster: object, rank: int, endpoint: Endpoint, mailbox: int, path: object, "
                  "gates: list[tuple[dict[Any, Any], Any]]) -> None"),
          "Lets messages go to a mailbox of a rank, over this lane and while all gates are free: dictionaries, each "
          "with the key of a value that is then false or missing.");
}

} // namespace zerohop::bind
