#include "bind/poster.hpp"

#include <string>

namespace zerohop::bind {

namespace {

PyTypeObject* poster_type = nullptr; // set once

int traverse(PyObject* object, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(object));
    const Posts* const posts = reinterpret_cast<Poster*>(object)->posts;
    return posts == nullptr ? 0 : posts->traverse(visit, arg);
}

// There is no tp_clear: methods may be called until the end, and the other objects of a cycle break it.
void destroy(PyObject* object) {
    PyTypeObject* const type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    delete reinterpret_cast<Poster*>(object)->posts;
    type->tp_free(object);
    Py_DECREF(type);
}

void stop_posting(const nb::object& poster) {
    if (Posts* const posts = checked(poster, poster_type).posts) {
        posts->stop();
    }
}

} // namespace

PyTypeObject* make_poster_type(nb::module_& m, const char* name, const char* doc, PyMethodDef* methods,
                               PyTypeObject* base) {
    PyType_Slot slots[] = {
        {Py_tp_doc, const_cast<char*>(doc)},
        {Py_tp_dealloc, reinterpret_cast<void*>(&destroy)},
        {Py_tp_traverse, reinterpret_cast<void*>(&traverse)},
        {Py_tp_methods, methods},
        {0, nullptr},
    };
    const std::string full = std::string("zerohop._native.") + name;
    PyType_Spec spec = {full.c_str(), sizeof(Poster), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
                        slots};
    PyTypeObject* const parent = base == nullptr ? poster_type : base;
    const nb::object bases =
        parent == nullptr ? nb::object() : nb::steal(PyTuple_Pack(1, reinterpret_cast<PyObject*>(parent)));
    const nb::object type = nb::steal(PyType_FromSpecWithBases(&spec, bases.ptr()));
    if (!type.is_valid()) {
        throw nb::python_error();
    }
    m.attr(name) = type;
    return reinterpret_cast<PyTypeObject*>(nb::object(type).release().ptr());
}

Poster& checked(const nb::object& poster, PyTypeObject* type) {
    if (PyObject_TypeCheck(poster.ptr(), type) == 0) {
        throw nb::type_error("only an object with native methods can post");
    }
    return *reinterpret_cast<Poster*>(poster.ptr());
}

void register_posters(nb::module_& m) {
    static PyMethodDef none[] = {{nullptr, nullptr, 0, nullptr}};
    poster_type = make_poster_type(m, "Poster", "Has native methods that post operations.", none);
    m.def("stop_posting", &stop_posting, nb::arg("poster"),
          "Has the native methods of an object leave all to Python from now on, and lets go of the engine.");
}

} // namespace zerohop::bind
