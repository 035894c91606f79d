#include "bind/notification_wait.hpp"

#include <algorithm>
#include <cstddef>
#include <exception>
#include <structmember.h>

namespace zerohop::bind {

namespace {

// Its fields are attributes; core/transfers/queue_wait.py says what they mean.
struct NotificationWait {
    PyObject_HEAD PyObject* core;
    PyObject* group;
    PyObject* note;
    PyObject* error;
    PyObject* armed;
    PyObject* timer;
    unsigned long long deadline_ns;
    int peer; // id of the one that the notification is of
    unsigned short number;
    char asked;
    char claimed;
    char delivered;
    WaitOutcome outcome;
};

NotificationWait& wait_of(PyObject* object) {
    return *reinterpret_cast<NotificationWait*>(object);
}

nb::object attribute(PyObject* object, PyObject* name) {
    return nb::steal(PyObject_GetAttr(object, name));
}

PyObject* create(PyTypeObject* type, PyObject* /*args*/, PyObject* /*keywords*/) {
    PyObject* const armed = PyList_New(0);
    PyObject* const object = armed != nullptr ? type->tp_alloc(type, 0) : nullptr;
    if (object == nullptr) {
        Py_XDECREF(armed);
        return nullptr;
    }
    new (&wait_of(object).outcome) WaitOutcome();
    wait_of(object).armed = armed;
    return object;
}

// Takes (core, deadline_ns, group=None).
int initialise(PyObject* object, PyObject* args, PyObject* keywords) {
    PyObject *core = nullptr, *group = Py_None;
    unsigned long long deadline_ns = 0;
    if (keywords != nullptr || PyArg_ParseTuple(args, "OK|O", &core, &deadline_ns, &group) == 0) {
        PyErr_SetString(PyExc_TypeError, "NotificationWait takes a core, a deadline and a group");
        return -1;
    }
    unsigned long number = 0;
    if (group != Py_None) {
        const nb::object found = nb::steal(PyObject_GetAttrString(group, "number"));
        number = found.is_valid() ? PyLong_AsUnsignedLong(found.ptr()) : 0;
        if (PyErr_Occurred() != nullptr) {
            return -1;
        }
    }
    NotificationWait& self = wait_of(object);
    Py_XSETREF(self.core, Py_NewRef(core));
    Py_XSETREF(self.group, Py_NewRef(group));
    self.deadline_ns = deadline_ns;
    self.number = static_cast<unsigned short>(number);
    return 0;
}

int traverse(PyObject* object, visitproc visit, void* arg) {
    const NotificationWait& self = wait_of(object);
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self.core);
    Py_VISIT(self.group);
    Py_VISIT(self.note);
    Py_VISIT(self.error);
    Py_VISIT(self.armed);
    Py_VISIT(self.timer);
    return 0;
}

int clear(PyObject* object) {
    NotificationWait& self = wait_of(object);
    Py_CLEAR(self.core);
    Py_CLEAR(self.group);
    Py_CLEAR(self.note);
    Py_CLEAR(self.error);
    Py_CLEAR(self.armed);
    Py_CLEAR(self.timer);
    return 0;
}

// Returns the engine of the wait's Context; nothing if that is closed, when the core has another object in its place.
nb::object engine_of(const NotificationWait& self) {
    static PyObject* const engine_name = PyUnicode_InternFromString("engine");
    static PyTypeObject* const engine_type = reinterpret_cast<PyTypeObject*>(nb::type<Engine>().ptr());
    nb::object engine = attribute(self.core, engine_name);
    if (engine.is_valid() && Py_TYPE(engine.ptr()) == engine_type) {
        return engine;
    }
    PyErr_Clear();
    return {};
}

// Gives back the notification of a wait that is being freed: nobody has got it, because a signal's handler has raised,
// or because nobody asked for more than done().
void give_back(const NotificationWait& self) {
    const nb::object object = engine_of(self);
    Engine* const engine = object.is_valid() ? nb::inst_ptr<Engine>(object) : nullptr;
    if (engine == nullptr || engine->closed()) {
        return;
    }
    if (self.group != Py_None) {
        const nb::object closed = nb::steal(PyObject_GetAttrString(self.group, "closed"));
        if (closed.ptr() != Py_False) { // another queue may have its number by now
            return;
        }
    }
    Notification note;
    note.peer = self.peer;
    if (PyTuple_Check(self.note) == 0) { // a Connection, which nobody wants if it is lost
        const nb::object alive = nb::steal(PyObject_GetAttrString(self.note, "alive"));
        if (alive.ptr() == Py_True) {
            engine->put_back(self.number, std::move(note));
        }
        return;
    }
    note.value = static_cast<uint32_t>(PyLong_AsUnsignedLong(PyTuple_GET_ITEM(self.note, 0)));
    note.nbytes = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(self.note, 1));
    PyObject* const message = PyTuple_GET_ITEM(self.note, 3);
    if (PyBytes_GET_SIZE(message) != 0) {
        note.message = std::make_shared<const std::string>(PyBytes_AS_STRING(message),
                                                           static_cast<size_t>(PyBytes_GET_SIZE(message)));
    }
    engine->put_back(self.number, std::move(note));
}

// Gives back what a wait that is being freed has and nobody has got, or has Python's class report that nobody has
// waited with it.
void finalize(PyObject* object) {
    const NotificationWait& self = wait_of(object);
    const bool undelivered = self.note != nullptr && self.delivered == 0;
    if ((self.asked != 0 && !undelivered) || self.core == nullptr || !nb::is_alive()) {
        return;
    }
    PyObject *error_type = nullptr, *error = nullptr, *trace = nullptr;
    PyErr_Fetch(&error_type, &error, &trace);
    if (undelivered) {
        try {
            give_back(self);
        } catch (const std::exception&) {
            PyErr_NoMemory();
        }
    } else {
        Py_XDECREF(PyObject_CallMethod(object, "_dropped", nullptr));
    }
    if (PyErr_Occurred() != nullptr) {
        PyErr_WriteUnraisable(object); // a program may have made an error of the warning
    }
    PyErr_Restore(error_type, error, trace);
}

void destroy(PyObject* object) {
    PyTypeObject* const type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    clear(object);
    type->tp_free(object);
    Py_DECREF(type);
}

// Returns the Notification of Python, or its Connection alone if the wait's class asks for that; null with Python's
// error set if there is no memory for it.
PyObject* made_of(PyObject* object, const NotificationWait& self, const Notification& note) {
    static PyObject* const connections_name = PyUnicode_InternFromString("connections");
    static PyObject* const class_name = PyUnicode_InternFromString("_made");
    const nb::object type = attribute(reinterpret_cast<PyObject*>(Py_TYPE(object)), class_name);
    const nb::object connections = attribute(self.core, connections_name);
    const nb::object peer = nb::steal(PyLong_FromLong(note.peer));
    if (!type.is_valid() || !connections.is_valid() || !peer.is_valid()) {
        return nullptr;
    }
    nb::object connection = nb::borrow(PyDict_GetItemWithError(connections.ptr(), peer.ptr()));
    if (!connection.is_valid() && PyErr_Occurred() == nullptr) { // its peer is gone
        connection = nb::steal(PyObject_CallMethod(self.core, "connection_of", "O", peer.ptr()));
    }
    if (type.ptr() == Py_None) {
        return connection.release().ptr();
    }
    const nb::object value = nb::steal(PyLong_FromUnsignedLong(note.value));
    const nb::object nbytes = nb::steal(PyLong_FromUnsignedLongLong(note.nbytes));
    const std::string_view text = note.message ? std::string_view(*note.message) : std::string_view();
    const nb::object message = nb::steal(PyBytes_FromStringAndSize(text.data(), static_cast<Py_ssize_t>(text.size())));
    if (!connection.is_valid() || !value.is_valid() || !nbytes.is_valid() || !message.is_valid()) {
        return nullptr;
    }
    const nb::object fields = nb::steal(PyTuple_Pack(4, value.ptr(), nbytes.ptr(), connection.ptr(), message.ptr()));
    const nb::object arguments = fields.is_valid() ? nb::steal(PyTuple_Pack(1, fields.ptr())) : nb::object();
    return arguments.is_valid()
               ? PyTuple_Type.tp_new(reinterpret_cast<PyTypeObject*>(type.ptr()), arguments.ptr(), nullptr)
               : nullptr;
}

// Returns true if something else is told when this wait ends.
bool is_watched(const NotificationWait& self) {
    return self.timer != nullptr || PyList_GET_SIZE(self.armed) != 0;
}

// Gives the wait its notification, and tells whatever else waits for its end. Returns false with Python's error set if
// that failed.
bool settle(PyObject* object, const Notification& note) {
    static PyObject* const wake_name = PyUnicode_InternFromString("_wake_others");
    NotificationWait& self = wait_of(object);
    self.peer = note.peer;
    self.note = made_of(object, self, note);
    if (self.note != nullptr && is_watched(self)) {
        const nb::object woken = nb::steal(PyObject_CallMethodNoArgs(object, wake_name));
        return woken.is_valid();
    }
    return self.note != nullptr;
}

// Takes a notification that has come, or comes while this spins.
std::optional<Notification> pop(Engine& engine, NotificationWait& self) {
    if (engine.closed()) { // this may be a forked child, where nothing comes
        return std::nullopt;
    }
    std::optional<Notification> note = engine.pop_notification(self.number, 0, 0, false, &self.outcome);
    if (!note) {
        const uint64_t spin_ns = std::min(engine.poller().spin_ns(), kLongestSpin);
        const uint64_t until = now_ns() + spin_ns;
        const uint64_t deadline_ns = self.deadline_ns == 0 ? until : std::min<uint64_t>(until, self.deadline_ns);
        const Released release;
        note = engine.pop_notification(self.number, deadline_ns, spin_ns, true, &self.outcome);
    }
    return note;
}

// Waits in the plainest case, in which nothing else waits with the same object, and no longer than it may spin. Leaves
// the object without a notification if it has not ended so; with Python's error set if there was no memory.
void end_plainly(PyObject* object) {
    NotificationWait& self = wait_of(object);
    if (self.core == nullptr || self.claimed != 0 || self.outcome.cancelled() || self.error != nullptr ||
        is_watched(self)) {
        return;
    }
    const nb::object engine = engine_of(self);
    if (!engine.is_valid()) {
        return;
    }
    self.claimed = 1;
    std::optional<Notification> note;
    try {
        note = pop(*nb::inst_ptr<Engine>(engine), self);
    } catch (const std::exception&) {
        note.reset(); // Python's way raises the same, with all its details
    }
    if (note) {
        static_cast<void>(settle(object, *note));
    }
    self.claimed = 0;
}

// In the plainest case without a look at anything of Python's but what the notification is made of; all others are
// NotificationWait._outcome's.
PyObject* result(PyObject* object, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
    static PyObject* const outcome_name = PyUnicode_InternFromString("_outcome");
    NotificationWait& self = wait_of(object);
    PyObject* timeout = count == 1 ? args[0] : Py_None;
    const Py_ssize_t named = keywords == nullptr ? 0 : PyTuple_GET_SIZE(keywords);
    if (count + named > 1 ||
        (named == 1 && PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(keywords, 0), "timeout") != 0)) {
        PyErr_SetString(PyExc_TypeError, "result() takes one argument, timeout");
        return nullptr;
    }
    if (named == 1) {
        timeout = args[0];
    }
    if (timeout == Py_None) {
        if (self.note == nullptr) {
            self.asked = 1;
            end_plainly(object);
            // A handler that raises is to raise here, while the notification is still the wait's.
            if (PyErr_Occurred() != nullptr || PyErr_CheckSignals() != 0) {
                return nullptr;
            }
        }
        if (self.note != nullptr) {
            self.delivered = 1;
            return Py_NewRef(self.note);
        }
    }
    return PyObject_CallMethodOneArg(object, outcome_name, timeout);
}

PyObject* cancel(PyObject* object, PyObject* /*none*/) {
    return PyBool_FromLong(wait_of(object).outcome.cancel() ? 1 : 0);
}

PyObject* get_cancelled(PyObject* object, void* /*closure*/) {
    return PyBool_FromLong(wait_of(object).outcome.cancelled() ? 1 : 0);
}

PyObject* claim(PyObject* object, PyObject* /*none*/) {
    NotificationWait& self = wait_of(object);
    const bool mine = self.claimed == 0;
    self.claimed = 1;
    return PyBool_FromLong(mine ? 1 : 0);
}

PyObject* release(PyObject* object, PyObject* /*none*/) {
    wait_of(object).claimed = 0;
    return Py_NewRef(Py_None);
}

PyTypeObject* wait_type = nullptr; // set once; the type lives as long as the interpreter

} // namespace

bool take_into(const nb::object& wait, const std::function<std::optional<Notification>(uint16_t, WaitOutcome&)>& pop) {
    if (PyObject_TypeCheck(wait.ptr(), wait_type) == 0) {
        throw nb::type_error("not a NotificationWait");
    }
    NotificationWait& self = wait_of(wait.ptr());
    const std::optional<Notification> note = pop(self.number, self.outcome);
    if (note && !settle(wait.ptr(), *note)) {
        throw nb::python_error();
    }
    return note.has_value();
}

void register_notification_wait(nb::module_& m) {
    using Self = NotificationWait;
    static PyMemberDef members[] = {
        {"_core", T_OBJECT_EX, offsetof(Self, core), 0, nullptr},
        {"_group", T_OBJECT, offsetof(Self, group), READONLY, nullptr},
        {"_note", T_OBJECT, offsetof(Self, note), 0, nullptr},
        {"_error", T_OBJECT, offsetof(Self, error), 0, nullptr},
        {"_armed", T_OBJECT_EX, offsetof(Self, armed), READONLY, nullptr},
        {"_timer", T_OBJECT, offsetof(Self, timer), 0, nullptr},
        {"_deadline_ns", T_ULONGLONG, offsetof(Self, deadline_ns), READONLY, nullptr},
        {"_number", T_USHORT, offsetof(Self, number), READONLY, nullptr},
        {"_asked", T_BOOL, offsetof(Self, asked), 0, nullptr},
        {"_delivered", T_BOOL, offsetof(Self, delivered), 0, nullptr},
        {"_claimed", T_BOOL, offsetof(Self, claimed), READONLY, nullptr},
        {nullptr, 0, 0, 0, nullptr},
    };
    static PyGetSetDef properties[] = {
        {"_cancelled", &get_cancelled, nullptr, nullptr, nullptr},
        {nullptr, nullptr, nullptr, nullptr, nullptr},
    };
    static PyMethodDef methods[] = {
        {"result", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&result)), METH_FASTCALL | METH_KEYWORDS,
         "result($self, timeout=None)\n--\n\nIts notification, once one has come; see Operation.result."},
        {"_cancel", &cancel, METH_NOARGS, "Become cancelled; false if it has its notification."},
        {"_claim", &claim, METH_NOARGS, "Become the only one who waits with it; false if somebody does already."},
        {"_release", &release, METH_NOARGS, "Undo _claim."},
        {nullptr, nullptr, 0, nullptr},
    };
    static PyType_Slot slots[] = {
        {Py_tp_doc, const_cast<char*>("Waits for a notification or a peer; see core/transfers/queue_wait.py.")},
        {Py_tp_new, reinterpret_cast<void*>(&create)},
        {Py_tp_init, reinterpret_cast<void*>(&initialise)},
        {Py_tp_dealloc, reinterpret_cast<void*>(&destroy)},
        {Py_tp_finalize, reinterpret_cast<void*>(&finalize)},
        {Py_tp_traverse, reinterpret_cast<void*>(&traverse)},
        {Py_tp_clear, reinterpret_cast<void*>(&clear)},
        {Py_tp_members, members},
        {Py_tp_getset, properties},
        {Py_tp_methods, methods},
        {0, nullptr},
    };
    static PyType_Spec spec = {"zerohop._native.NotificationWait", sizeof(Self), 0,
                               Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, slots};
    const nb::object type = nb::steal(PyType_FromSpec(&spec));
    wait_type = reinterpret_cast<PyTypeObject*>(nb::object(type).release().ptr());
    m.attr("NotificationWait") = type;
}

} // namespace zerohop::bind
