#include "bind/in_flight.hpp"

#include <algorithm>
#include <cstddef>
#include <exception>
#include <memory>
#include <structmember.h>

namespace zerohop::bind {

namespace {

constexpr Py_ssize_t kMostArguments = 2; // one more than there are, which Python then complains of

PyObject* create(PyTypeObject* type, PyObject* /*args*/, PyObject* /*keywords*/) {
    return reinterpret_cast<PyObject*>(make_in_flight(type));
}

int traverse(PyObject* object, visitproc visit, void* arg) {
    const auto* const self = reinterpret_cast<InFlight*>(object);
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->core);
    Py_VISIT(self->path);
    Py_VISIT(self->keep);
    Py_VISIT(self->message);
    Py_VISIT(self->native);
    return 0;
}

int clear(PyObject* object) {
    auto* const self = reinterpret_cast<InFlight*>(object);
    Py_CLEAR(self->core);
    Py_CLEAR(self->kind);
    Py_CLEAR(self->path);
    Py_CLEAR(self->nbytes);
    Py_CLEAR(self->keep);
    Py_CLEAR(self->message);
    Py_CLEAR(self->native);
    return 0;
}

// Has Python's class report an operation that is being freed, whose outcome nobody has taken.
void report_dropped(PyTypeObject* type, const InFlight& self, const PyOp& op) {
    // Who has asked for it, and did not wait for its end, knows how things stand.
    const bool flies_on = op.asked ? !op.op->done() : op.op->abandon();
    const Status status = flies_on ? Status::pending : op.op->status();
    const bool failed = status != Status::ok && status != Status::pending;
    // A program may drop every write that it posts, so a dropped write must cost next to nothing.
    const bool writes = self.kind == nullptr || PyUnicode_ReadChar(self.kind, 0) == 'w';
    if (status == Status::cancelled || (writes && !failed) || self.core == nullptr || self.kind == nullptr ||
        self.path == nullptr || !nb::is_alive()) {
        return;
    }
    // An error that is being raised, whose end frees the operation, must survive all calls of Python's below.
    PyObject *error_type = nullptr, *error = nullptr, *trace = nullptr;
    PyErr_Fetch(&error_type, &error, &trace);
    if (PyObject_HasAttrString(reinterpret_cast<PyObject*>(type), "_dropped") != 0) { // classes go at the end, too
        PyObject* const answer =
            PyObject_CallMethod(reinterpret_cast<PyObject*>(type), "_dropped", "OOOiiKO", self.core, self.kind,
                                self.path, static_cast<int>(status), static_cast<int>(op.op->reason()),
                                static_cast<unsigned long long>(op.op->bytes_done()), op.asked ? Py_True : Py_False);
        if (answer == nullptr) {
            PyErr_WriteUnraisable(self.kind); // a program may have made an error of the warning
        }
        Py_XDECREF(answer);
    }
    PyErr_Restore(error_type, error, trace);
}

void destroy(PyObject* object) {
    PyTypeObject* const type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    const auto& self = *reinterpret_cast<InFlight*>(object);
    const PyOp* const op = self.native == nullptr   ? &self.held
                           : self.native == Py_None ? nullptr
                                                    : nb::inst_ptr<PyOp>(self.native);
    if (op != nullptr && op->op) {
        report_dropped(type, self, *op);
    }
    clear(object);
    std::destroy_at(&reinterpret_cast<InFlight*>(object)->held);
    type->tp_free(object);
    Py_DECREF(type);
}

PyObject* get_native(PyObject* object, void* /*closure*/) {
    auto* const self = reinterpret_cast<InFlight*>(object);
    if (self->native == nullptr) {
        try {
            self->native = nb::cast(self->held).release().ptr();
        } catch (const std::exception& error) {
            PyErr_SetString(PyExc_MemoryError, error.what());
            return nullptr;
        }
        self->held = {};
    }
    return Py_NewRef(self->native);
}

int set_native(PyObject* object, PyObject* value, void* /*closure*/) {
    Py_XSETREF(reinterpret_cast<InFlight*>(object)->native, Py_XNewRef(value));
    return 0;
}

// Makes the value of a receive that has ended well, which says source, tag and length; null with Python's error set if
// there is no memory. The class is a tuple's, of three.
PyObject* describe(InFlight& self, const PyOp& op) {
    const nb::object nbytes = nb::steal(PyLong_FromUnsignedLongLong(op.bytes_done));
    const nb::object source = nb::steal(PyLong_FromUnsignedLongLong(op.value >> 32 & kMostSource));
    const nb::object tag = nb::steal(PyLong_FromUnsignedLongLong(op.value & UINT32_MAX));
    auto* const type = reinterpret_cast<PyTypeObject*>(self.message);
    const nb::object made = nb::steal(type->tp_alloc(type, 3));
    if (!nbytes.is_valid() || !source.is_valid() || !tag.is_valid() || !made.is_valid()) {
        return nullptr;
    }
    PyTuple_SET_ITEM(made.ptr(), 0, Py_NewRef(source.ptr()));
    PyTuple_SET_ITEM(made.ptr(), 1, Py_NewRef(tag.ptr()));
    PyTuple_SET_ITEM(made.ptr(), 2, Py_NewRef(nbytes.ptr()));
    Py_XSETREF(self.nbytes, Py_NewRef(nbytes.ptr()));
    return Py_NewRef(made.ptr());
}

// In the plainest cases without a look at anything of Python's; all others are InFlight._outcome's. However long it may
// take, one that has ended well has a value; without a limit that is waited for a little.
PyObject* result(PyObject* object, PyObject* const* args, Py_ssize_t count, PyObject* keywords) {
    static PyObject* const outcome_name = PyUnicode_InternFromString("_outcome");
    auto* const self = reinterpret_cast<InFlight*>(object);
    if (count <= 1 && keywords == nullptr && self->native != Py_None && self->nbytes != nullptr) {
        const nb::object native = nb::borrow(self->native); // or another thread might let go of it
        const bool patient = count == 0 || args[0] == Py_None;
        PyOp& op = native.is_valid() ? *nb::inst_ptr<PyOp>(native) : self->held;
        // Another thread may have taken what `held` has into an Op of its own meanwhile.
        if (ended_well(op, patient) && (native.is_valid() || self->native == nullptr)) {
            Py_CLEAR(self->keep);
            return self->message == nullptr ? Py_NewRef(self->nbytes) : describe(*self, op);
        }
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

} // namespace

InFlight* make_in_flight(PyTypeObject* type) {
    auto* const made = reinterpret_cast<InFlight*>(type->tp_alloc(type, 0));
    if (made != nullptr) {
        new (&made->held) PyOp();
    }
    return made;
}

void register_in_flight(nb::module_& m) {
    static PyMemberDef members[] = {
        {"_core", T_OBJECT_EX, offsetof(InFlight, core), 0, nullptr},
        {"_kind", T_OBJECT_EX, offsetof(InFlight, kind), 0, nullptr},
        {"_path", T_OBJECT_EX, offsetof(InFlight, path), 0, nullptr},
        {"nbytes", T_OBJECT_EX, offsetof(InFlight, nbytes), 0, nullptr},
        {"_keep", T_OBJECT_EX, offsetof(InFlight, keep), 0, nullptr},
        {"_message", T_OBJECT_EX, offsetof(InFlight, message), 0, nullptr},
        {nullptr, 0, 0, 0, nullptr},
    };
    static PyGetSetDef properties[] = {
        {"_native", &get_native, &set_native, nullptr, nullptr},
        {nullptr, nullptr, nullptr, nullptr, nullptr},
    };
    static PyMethodDef methods[] = {
        {"result", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&result)), METH_FASTCALL | METH_KEYWORDS,
         "result($self, timeout=None)\n--\n\nIts value, once it has ended; see Operation.result."},
        {nullptr, nullptr, 0, nullptr},
    };
    static PyType_Slot slots[] = {
        {Py_tp_doc, const_cast<char*>("What an Operation in flight is made of; see core/runtime/native_operation.py.")},
        {Py_tp_new, reinterpret_cast<void*>(&create)},
        {Py_tp_dealloc, reinterpret_cast<void*>(&destroy)},
        {Py_tp_traverse, reinterpret_cast<void*>(&traverse)},
        {Py_tp_clear, reinterpret_cast<void*>(&clear)},
        {Py_tp_members, members},
        {Py_tp_getset, properties},
        {Py_tp_methods, methods},
        {0, nullptr},
    };
    static PyType_Spec spec = {"zerohop._native.InFlight", sizeof(InFlight), 0,
                               Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, slots};
    m.attr("InFlight") = nb::steal(PyType_FromSpec(&spec));
}

} // namespace zerohop::bind
