#include "bind/notification_wait.hpp"

#include <algorithm>
#include <cstddef>
#include <exception>
#include <structmember.h>

namespace zerohop::bind {

namespace {

constexpr Py_ssize_t kMostArguments = 2; // one more than there are, which Python then complains of

// Its fields are attributes; what they mean is said in core/transfers/notification.py.
struct NotificationWait {
    PyObject_HEAD PyObject* core;
    PyObject* group;
    PyObject* note;
    PyObject* error;
    PyObject* armed;
    PyObject* timer;
    unsigned long long deadline_ns;
    unsigned short number;
    char cancelled;
    char asked;
    char claimed;
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

// Has Python's class report a wait that is being freed, and that nobody has waited with.
void finalize(PyObject* object) {
    const NotificationWait& self = wait_of(object);
    if (self.asked != 0 || self.core == nullptr || !nb::is_alive()) {
        return;
    }
    PyObject *error_type = nullptr, *error = nullptr, *trace = nullptr;
    PyErr_Fetch(&error_type, &error, &trace);
    PyObject* const answer = PyObject_CallMethod(object, "_dropped", nullptr);
    if (answer == nullptr) {
        PyErr_WriteUnraisable(object); // a program may have made an error of the warning
    }
    Py_XDECREF(answer);
    PyErr_Restore(error_type, error, trace);
}

void destroy(PyObject* object) {
    PyTypeObject* const type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    clear(object);
    type->tp_free(object);
    Py_DECREF(type);
}

// Returns the Notification of Python; null with Python's error set if there is no memory for it.
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

// Takes a notification that has come, or comes while this spins.
std::optional<Notification> pop(Engine& engine, uint16_t number, uint64_t deadline_ns) {
    if (engine.closed()) { // this may be a forked child, where nothing comes
        return std::nullopt;
    }
    std::optional<Notification> note = engine.pop_notification(number, 0, 0, false);
    if (!note) {
        const uint64_t spin_ns = std::min(engine.poller().spin_ns(), kLongestSpin);
        const uint64_t until = now_ns() + spin_ns;
        const Released release;
        note = engine.pop_notification(number, deadline_ns == 0 ? until : std::min(until, deadline_ns), spin_ns, true);
    }
    return note;
}

// Waits in the plainest case, in which nothing else waits with the same object, and no longer than it may spin. Returns
// false if it has not ended so; with Python's error set if there was no memory.
bool ends_plainly(PyObject* object) {
    static PyObject* const engine_name = PyUnicode_InternFromString("engine");
    static PyTypeObject* const engine_type = reinterpret_cast<PyTypeObject*>(nb::type<Engine>().ptr());
    NotificationWait& self = wait_of(object);
    if (self.core == nullptr || self.claimed != 0 || self.cancelled != 0 || self.error != nullptr || is_watched(self)) {
        return false;
    }
    const nb::object engine = attribute(self.core, engine_name);
    if (!engine.is_valid() || Py_TYPE(engine.ptr()) != engine_type) { // a Context that is closed has another one
        PyErr_Clear();
        return false;
    }
    self.claimed = 1;
    std::optional<Notification> note;
    try {
        note = pop(*nb::inst_ptr<Engine>(engine), self.number, self.deadline_ns);
    } catch (const std::exception&) { // Python's way raises the same, with all its details
    }
    self.note = note ? made_of(object, self, *note) : nullptr;
    self.claimed = 0;
    return self.note != nullptr;
}

// In the plainest case without a look at anything of Python's but what the notification is made of; all others are
// NotificationWait._outcome's.
PyObject* result(PyObject* object, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
    static PyObject* const outcome_name = PyUnicode_InternFromString("_outcome");
    static PyObject* const wake_name = PyUnicode_InternFromString("_wake_others");
    NotificationWait& self = wait_of(object);
    const bool plain = count <= 1 && keywords == nullptr && (count == 0 || args[0] == Py_None);
    if (plain && self.note == nullptr) {
        self.asked = 1;
        if (ends_plainly(object) && is_watched(self)) { // by another thread, meanwhile
            const nb::object woken = nb::steal(PyObject_CallMethodNoArgs(object, wake_name));
        }
        if (PyErr_Occurred() != nullptr) {
            return nullptr;
        }
    }
    if (plain && self.note != nullptr) {
        return Py_NewRef(self.note);
    }
    PyObject* passed[kMostArguments + 1] = {object};
    const Py_ssize_t all = count + (keywords == nullptr ? 0 : PyTuple_GET_SIZE(keywords));
    if (all > kMostArguments) {
        PyErr_SetString(PyExc_TypeError, "result() takes one argument, timeout");
        return nullptr;
    }
    std::copy_n(args, all, passed + 1);
    return PyObject_VectorcallMethod(outcome_name, passed, static_cast<size_t>(count) + 1, keywords);
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

} // namespace

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
        {"_cancelled", T_BOOL, offsetof(Self, cancelled), 0, nullptr},
        {"_asked", T_BOOL, offsetof(Self, asked), 0, nullptr},
        {"_claimed", T_BOOL, offsetof(Self, claimed), READONLY, nullptr},
        {nullptr, 0, 0, 0, nullptr},
    };
    static PyMethodDef methods[] = {
        {"result", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&result)), METH_FASTCALL | METH_KEYWORDS,
         "result($self, timeout=None)\n--\n\nIts notification, once one has come; see Operation.result."},
        {"_claim", &claim, METH_NOARGS, "Become the only one who waits with it; false if somebody does already."},
        {"_release", &release, METH_NOARGS, "Undo _claim."},
        {nullptr, nullptr, 0, nullptr},
    };
    static PyType_Slot slots[] = {
        {Py_tp_doc, const_cast<char*>("What waits for a notification; see core/transfers/notification.py.")},
        {Py_tp_new, reinterpret_cast<void*>(&create)},
        {Py_tp_init, reinterpret_cast<void*>(&initialise)},
        {Py_tp_dealloc, reinterpret_cast<void*>(&destroy)},
        {Py_tp_finalize, reinterpret_cast<void*>(&finalize)},
        {Py_tp_traverse, reinterpret_cast<void*>(&traverse)},
        {Py_tp_clear, reinterpret_cast<void*>(&clear)},
        {Py_tp_members, members},
        {Py_tp_methods, methods},
        {0, nullptr},
    };
    static PyType_Spec spec = {"zerohop._native.NotificationWait", sizeof(Self), 0,
                               Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, slots};
    m.attr("NotificationWait") = nb::steal(PyType_FromSpec(&spec));
}

} // namespace zerohop::bind
