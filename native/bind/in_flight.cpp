#include "bind/in_flight.hpp"

#include "bind/post.hpp"

#include <cstddef>
#include <exception>
#include <memory>
#include <structmember.h>
#include <utility>

namespace zerohop::bind {

namespace {

// Its fields are attributes; which of them mean what is said in operation.py.
struct InFlight {
    PyObject_HEAD PyObject* context;
    PyObject* kind;
    PyObject* path;
    PyObject* nbytes;
    PyObject* keep;
    PyObject* native; // an Op of its own, once anything but result() wanted one; null: `held` is it
    PyOp held;
};

struct Poster {
    std::shared_ptr<Engine> engine;
    PyTypeObject* type; // InFlight's subclass, which lives as long as the interpreter

    static constexpr const char* kName = "zerohop poster";
    static void destroy(PyObject* capsule) { delete from(capsule); }
    static Poster* from(PyObject* capsule) { return static_cast<Poster*>(PyCapsule_GetPointer(capsule, kName)); }
};

InFlight* allocate(PyTypeObject* type) {
    auto* const made = reinterpret_cast<InFlight*>(type->tp_alloc(type, 0)); // with all fields null
    if (made != nullptr) {
        new (&made->held) PyOp();
    }
    return made;
}

PyObject* create(PyTypeObject* type, PyObject* /*args*/, PyObject* /*keywords*/) {
    return reinterpret_cast<PyObject*>(allocate(type));
}

int traverse(PyObject* object, visitproc visit, void* arg) {
    const auto* const self = reinterpret_cast<InFlight*>(object);
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->context);
    Py_VISIT(self->path);
    Py_VISIT(self->keep);
    Py_VISIT(self->native);
    return 0;
}

int clear(PyObject* object) {
    auto* const self = reinterpret_cast<InFlight*>(object);
    Py_CLEAR(self->context);
    Py_CLEAR(self->kind);
    Py_CLEAR(self->path);
    Py_CLEAR(self->nbytes);
    Py_CLEAR(self->keep);
    Py_CLEAR(self->native);
    return 0;
}

void destroy(PyObject* object) {
    PyTypeObject* const type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
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

PyObject* ended_well(PyObject* object, PyObject* /*unused*/) {
    auto* const self = reinterpret_cast<InFlight*>(object);
    if (self->native == Py_None) {
        Py_RETURN_FALSE; // its outcome has been taken over
    }
    const nb::object native = nb::borrow(self->native); // or another thread might let go of it
    if (!ended_well(native.is_valid() ? *nb::inst_ptr<PyOp>(native) : self->held)) {
        Py_RETURN_FALSE;
    }
    Py_CLEAR(self->keep);
    Py_RETURN_TRUE;
}

// An attribute as a number; a failure is Python's error.
uint64_t number_of(PyObject* object, PyObject* name) {
    PyObject* const value = PyObject_GetAttr(object, name);
    if (value == nullptr) {
        return 0;
    }
    const uint64_t number = PyLong_AsUnsignedLongLong(value);
    Py_DECREF(value);
    return number;
}

PyObject* post_write(PyObject* capsule, PyObject* const* args, Py_ssize_t count) {
    static PyObject* const id_name = PyUnicode_InternFromString("id");
    static PyObject* const offset_name = PyUnicode_InternFromString("_offset");
    static PyObject* const write_name = PyUnicode_InternFromString("write");
    if (count != 7) {
        PyErr_SetString(PyExc_TypeError, "a poster takes 7 arguments");
        return nullptr;
    }
    const Poster& poster = *Poster::from(capsule);
    PyObject* const route = args[1];
    PyObject* const source = args[2];
    Request request;
    const uint64_t id = number_of(route, id_name);
    const uint64_t local_offset = number_of(source, offset_name);
    const uint64_t remote_offset = number_of(args[3], offset_name);
    const uint64_t nbytes = PyLong_AsUnsignedLongLong(args[4]);
    const int64_t notify = PyLong_AsLongLong(args[5]);
    const uint64_t timeout_ns = PyLong_AsUnsignedLongLong(args[6]);
    if (PyErr_Occurred() != nullptr) {
        return nullptr;
    }
    request.deadline_ns = timeout_ns == 0 ? 0 : request.started_ns + timeout_ns;
    Posted posted;
    try {
        posted =
            post_range(*poster.engine, id, Kind::write, local_offset, remote_offset, nbytes, notify, request, true);
    } catch (const std::exception&) { // whoever asks once more, by post(), is told
        Py_RETURN_NONE;
    }
    if (posted.what == Posted::What::done) {
        return PyLong_FromUnsignedLongLong(now_ns() - request.started_ns);
    }
    if (posted.what != Posted::What::posted) {
        Py_RETURN_NONE;
    }
    InFlight* const made = allocate(poster.type);
    if (made == nullptr) {
        return nullptr;
    }
    made->context = Py_NewRef(args[0]);
    made->kind = Py_NewRef(write_name);
    made->path = Py_NewRef(route);
    made->nbytes = Py_NewRef(args[4]);
    made->keep = Py_NewRef(source);
    made->held.engine = poster.engine;
    made->held.op = std::move(posted.op);
    return reinterpret_cast<PyObject*>(made);
}

PyMethodDef post_write_method = {"post_write", reinterpret_cast<PyCFunction>(&post_write), METH_FASTCALL, nullptr};

} // namespace

void register_in_flight(nb::module_& m) {
    static PyMemberDef members[] = {
        {"_context", T_OBJECT_EX, offsetof(InFlight, context), 0, nullptr},
        {"_kind", T_OBJECT_EX, offsetof(InFlight, kind), 0, nullptr},
        {"_path", T_OBJECT_EX, offsetof(InFlight, path), 0, nullptr},
        {"nbytes", T_OBJECT_EX, offsetof(InFlight, nbytes), 0, nullptr},
        {"_keep", T_OBJECT_EX, offsetof(InFlight, keep), 0, nullptr},
        {nullptr, 0, 0, 0, nullptr},
    };
    static PyGetSetDef properties[] = {
        {"_native", &get_native, &set_native, nullptr, nullptr},
        {nullptr, nullptr, nullptr, nullptr, nullptr},
    };
    static PyMethodDef methods[] = {
        {"_ended_well", &ended_well, METH_NOARGS, "As Op.ended_well; then the memory need not be kept any more."},
        {nullptr, nullptr, 0, nullptr},
    };
    static PyType_Slot slots[] = {
        {Py_tp_doc, const_cast<char*>("What an Operation in flight is made of; see operation.py.")},
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

nb::object poster(const std::shared_ptr<Engine>& engine, nb::handle type) {
    const nb::object capsule = nb::steal(PyCapsule_New(new Poster{engine, reinterpret_cast<PyTypeObject*>(type.ptr())},
                                                       Poster::kName, &Poster::destroy));
    return nb::steal(PyCFunction_NewEx(&post_write_method, capsule.ptr(), nullptr));
}

} // namespace zerohop::bind
