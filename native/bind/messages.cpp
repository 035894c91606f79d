// Tagged messages where all is prepared: one call from Python posts, and makes the Operation.
//
// In CPython's own API, as InFlight and for the same reason. Methods that return None have done nothing: an argument is
// not plain, the receiver is not known, or there is no room. Python then posts, or says what is wrong.
#include "bind/messages.hpp"

#include <cstring>
#include <iterator>

namespace zerohop::bind {

namespace {

constexpr Py_ssize_t kSendArguments = 4;
constexpr Py_ssize_t kReceiveArguments = 4;
constexpr Py_ssize_t kExchangeArguments = 8;

PyTypeObject* messages_type = nullptr; // set once; it lives as long as the interpreter

// Returns the answer of a method that leaves the rest to Python; null if a signal's handler has raised.
PyObject* not_done(PyObject* answer = Py_None) {
    return leave_to_python() ? Py_NewRef(answer) : nullptr;
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

// From so many bytes on messages between GPUs are read by their receivers, which Python arranges
// (src/zerohop/group/direct.py). Shorter ones arrive sooner over the lane.
constexpr uint64_t kDirectBytes = uint64_t{2} << 20;

bool is_direct(const LocalRange& local) {
    return local.nbytes >= kDirectBytes && !local.region->is_host();
}

// Takes the memory, the rank, the tag, and the seconds or None.
PyObject* send(PyObject* object, PyObject* const* args, Py_ssize_t count) {
    static PyObject* const kind = PyUnicode_InternFromString("send");
    Messages* const messages = messages_of(object);
    if (count != kSendArguments || messages == nullptr) {
        return not_done();
    }
    Source source;
    uint64_t timeout_ns = messages->timeout_ns;
    if (!read_source(*messages, args[0], source) || is_direct(source.local) || !read_timeout(args[3], timeout_ns)) {
        return not_done();
    }
    const std::optional<Address> to = read_address(*messages, args[1], args[2]);
    if (!to) {
        return not_done();
    }
    const uint64_t nbytes = source.local.nbytes;
    const Request request = request_of(source, to->envelope, timeout_ns);
    std::optional<Posted> posted = posted_by(holds_gil(*to, nbytes), [&] { return posted_to(*to, request); });
    if (posted && posted->what == Posted::What::done) {
        return ended(*messages, kind, to->path.ptr(), nbytes, now_ns() - request.started_ns);
    }
    if (!posted || posted->what != Posted::What::posted) {
        return not_done();
    }
    return reinterpret_cast<PyObject*>(begun(*messages, messages->in_flight, kind, to->path.ptr(), nbytes,
                                             source.memory, to->engine, std::move(posted->op)));
}

std::optional<Posted> post_receive_of(const Messages& messages, Engine& engine, const LocalRange& local,
                                      const Wanted& wanted, uint64_t timeout_ns) {
    Request request;
    request.kind = Kind::recv;
    request.local = local.region;
    request.local_offset = local.offset;
    request.nbytes = local.nbytes;
    request.deadline_ns = timeout_ns == 0 ? 0 : request.started_ns + timeout_ns;
    return posted_by(true, [&] { return engine.post_tagged_receive(messages.mailbox, wanted, request); });
}

// Makes the Operation of a receive; null with Python's error set if there is no memory for it.
PyObject* receive_begun(const Messages& messages, PyObject* source, const LocalRange& local, const nb::object& memory,
                        const std::shared_ptr<Engine>& engine, OpRef&& op) {
    static PyObject* const kind = PyUnicode_InternFromString("recv");
    InFlight* const made =
        begun(messages, messages.receive, kind, Py_None, local.nbytes, memory, engine, std::move(op));
    if (made != nullptr) {
        made->message = Py_NewRef(messages.message.ptr());
        messages.source_of.set(reinterpret_cast<PyObject*>(made), source);
        messages.losses_of.set(reinterpret_cast<PyObject*>(made), messages.losses.ptr());
    }
    return reinterpret_cast<PyObject*>(made);
}

// Takes the memory, the rank or None, the tag or None, and the seconds or None.
PyObject* recv(PyObject* object, PyObject* const* args, Py_ssize_t count) {
    Messages* const messages = messages_of(object);
    if (count != kReceiveArguments || messages == nullptr) {
        return not_done();
    }
    nb::object memory;
    LocalRange local;
    uint64_t timeout_ns = 0;
    if (!read_target(*messages, args[0], memory, local) || is_direct(local) || !read_timeout(args[3], timeout_ns)) {
        return not_done();
    }
    const std::optional<Wanted> wanted = read_wanted(*messages, args[1], args[2]);
    const std::shared_ptr<Engine> engine = messages->engine;
    if (!wanted || !engine) {
        return not_done();
    }
    std::optional<Posted> posted = post_receive_of(*messages, *engine, local, *wanted, timeout_ns);
    if (!posted || posted->what != Posted::What::posted) {
        return not_done();
    }
    if (posted->look) {
        const Released release;
        engine->look_or_kick();
    }
    return receive_begun(*messages, args[1], local, memory, engine, std::move(posted->op));
}

// Sends a message to a rank, receives one from a rank, and waits for both for a short time. Takes the memory to send
// and the rank, the memory to receive into, the rank and the length that must come, the tag of both, the seconds or
// None, and the nanoseconds to wait. Returns True if both have ended well and the message is of that rank, tag and
// length; False if nothing was done, because something is not plain; else the Operations of the send and the receive,
// each None if it need not be waited for any more: the send if it has ended well, the receive if it was not posted.
PyObject* exchange(PyObject* object, PyObject* const* args, Py_ssize_t count) {
    static PyObject* const kind = PyUnicode_InternFromString("send");
    Messages* const messages = messages_of(object);
    Source source;
    nb::object memory;
    LocalRange local;
    uint64_t timeout_ns = messages == nullptr ? 0 : messages->timeout_ns;
    if (count != kExchangeArguments || messages == nullptr || !read_source(*messages, args[0], source) ||
        !read_target(*messages, args[2], memory, local) || !read_timeout(args[6], timeout_ns)) {
        return not_done(Py_False);
    }
    const std::optional<Address> to = read_address(*messages, args[1], args[5]);
    const std::optional<Wanted> wanted = read_wanted(*messages, args[3], Py_None);
    const uint64_t expected = number(args[4]);
    const uint64_t spin_ns = number(args[7]);
    if (!to || !wanted || expected == kNoNumber || spin_ns == kNoNumber) {
        return not_done(Py_False);
    }
    const uint64_t nbytes = source.local.nbytes;
    const Request request = request_of(source, to->envelope, timeout_ns);
    std::optional<Posted> sent = posted_by(holds_gil(*to, nbytes), [&] { return posted_to(*to, request); });
    if (!sent || (sent->what != Posted::What::done && sent->what != Posted::What::posted)) {
        return Py_NewRef(Py_False);
    }
    std::optional<Posted> received = post_receive_of(*messages, *to->engine, local, *wanted, timeout_ns);
    const OpRef sending = sent->op;
    const OpRef receiving = received && received->what == Posted::What::posted ? received->op : OpRef();
    const auto are_over = [&] { return (!sending || sending->done()) && receiving->done(); };
    if (receiving && !are_over()) {
        const Released release;
        if (received->look) { // a thread that sleeps with the right to poll would look much later
            to->engine->look_or_kick();
        }
        to->engine->wait(are_over, 0, spin_ns, false);
    }
    if (receiving && are_over() && (!sending || sending->status() == Status::ok) && receiving->status() == Status::ok &&
        receiving->bytes_done() == expected &&
        receiving->value() == value_of(Envelope{0, static_cast<uint32_t>(wanted->source), to->envelope.tag})) {
        return Py_NewRef(Py_True);
    }
    nb::object first = nb::none();
    nb::object second = nb::none();
    if (sending && (!sending->done() || sending->status() != Status::ok)) {
        first = nb::steal(reinterpret_cast<PyObject*>(begun(*messages, messages->in_flight, kind, to->path.ptr(),
                                                            nbytes, source.memory, to->engine, std::move(sent->op))));
    }
    if (receiving) {
        second = nb::steal(receive_begun(*messages, args[3], local, memory, to->engine, std::move(received->op)));
    }
    return first.is_valid() && second.is_valid() ? PyTuple_Pack(2, first.ptr(), second.ptr()) : nullptr;
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

std::pair<nb::object, nb::object> gate_of(const nb::tuple& given) {
    if (given.size() != 2 || !nb::isinstance<nb::dict>(given[0])) {
        throw nb::type_error("a gate is a dictionary and a key");
    }
    return {given[0], given[1]};
}

void reach(const nb::object& poster, uint32_t rank, const PyEndpoint& endpoint, uint64_t mailbox, nb::object path,
           const nb::tuple& turn, const nb::tuple& room) {
    auto* const messages = static_cast<Messages*>(checked(poster, messages_type).posts);
    if (messages == nullptr || !messages->engine || rank > kMostRanks) {
        return;
    }
    Receiver made;
    made.endpoint = endpoint.endpoint;
    made.in_memory = std::strcmp(endpoint.endpoint->provider(), "shm") == 0;
    made.mailbox = mailbox;
    made.path = std::move(path);
    made.turn = gate_of(turn);
    made.room = gate_of(room);
    if (messages->receivers.size() <= rank) {
        messages->receivers.resize(size_t{rank} + 1);
    }
    std::swap(messages->receivers[rank], made); // the old one goes at the end: its destructors may run Python
}

} // namespace

void register_messages(nb::module_& m) {
    m.attr("DIRECT_BYTES") = kDirectBytes;
    static PyMethodDef methods[] = {
        {"post_send", method(&send), METH_FASTCALL,
         "post_send($self, source, rank, tag, timeout, /)\n--\n\n"
         "Post a message to a rank that is reached; None: nothing was done, because it is not as plain as that."},
        {"post_sends", method(&send_many), METH_FASTCALL,
         "post_sends($self, sources, rank, tag, timeout, waits, in_turn, /)\n--\n\n"
         "Send short messages to a rank that is reached; return how many, from the first on: none unless all are "
         "plain."},
        {"post_recv", method(&recv), METH_FASTCALL,
         "post_recv($self, into, source, tag, timeout, /)\n--\n\n"
         "Post a receive; None: nothing was done, because it is not as plain as that."},
        {"exchange", method(&exchange), METH_FASTCALL,
         "exchange($self, source, to, into, sender, nbytes, tag, timeout, spin_ns, /)\n--\n\n"
         "Send and receive a message, and wait a little. True: both have ended well; False: nothing was done; else "
         "what is to be waited for."},
        {nullptr, nullptr, 0, nullptr},
    };
    messages_type = make_poster_type(m, "TaggedMessages", "Sends and receives natively where all is known.", methods);
    m.def("begin_messages", &begin_messages, nb::arg("poster"), nb::arg("engine"), nb::arg("core"),
          nb::arg("in_flight"), nb::arg("finished"), nb::arg("receive"), nb::arg("message"), nb::arg("losses"),
          nb::arg("greeted"), nb::arg("known"), nb::arg("mailbox"), nb::arg("rank"), nb::arg("timeout_ns"),
          "Lets the native methods of an object post. `receive` has slots `_source` and `_losses`; `message` is a "
          "tuple's class, of three; `known` makes a Memory of an array that is registered already.");
    m.def(
        "reach", &reach, nb::arg("poster"), nb::arg("rank"), nb::arg("endpoint"), nb::arg("mailbox"), nb::arg("path"),
        nb::arg("turn"), nb::arg("room"),
        nb::sig("def reach(poster: object, rank: int, endpoint: Endpoint, mailbox: int, path: object, "
                "turn: tuple[dict[Any, Any], Any], room: tuple[dict[Any, Any], Any]) -> None"),
        "Lets messages go to a mailbox of a rank, over this lane and while no earlier ones wait for their turn or for "
        "room: each is a dictionary, and the key of a value that is then false or missing.");
}

} // namespace zerohop::bind
