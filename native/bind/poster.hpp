// The base of Python's objects whose native methods post operations: they can be told to post no more.
//
// In CPython's own API, as InFlight and for the same reason.
#pragma once

#include "bind/common.hpp"

#include <initializer_list>

namespace zerohop::bind {

// Everything that the methods of one object post with.
class Posts {
public:
    Posts() = default;
    virtual ~Posts() = default;
    Posts(const Posts&) = delete;
    Posts& operator=(const Posts&) = delete;
    Posts(Posts&&) = default;
    Posts& operator=(Posts&&) = default;
    // Has the methods leave all to Python from now on, and lets go of the engine.
    virtual void stop() = 0;
    // Shows the garbage collector all objects of Python's that this holds. Returns what `visit` returns, if not 0.
    virtual int traverse(visitproc visit, void* arg) const = 0;
};

// For traverse().
inline int visit_object(const nb::object& object, visitproc visit, void* arg) {
    return object.is_valid() ? visit(object.ptr(), arg) : 0;
}
inline int visit_all(std::initializer_list<const nb::object*> objects, visitproc visit, void* arg) {
    for (const nb::object* const object : objects) {
        if (const int answer = visit_object(*object, visit, arg); answer != 0) {
            return answer;
        }
    }
    return 0;
}

struct Poster {
    PyObject_HEAD Posts* posts; // null: not open
};

// Adds a new type that derives from Poster to the module, and returns it; it lives as long as the interpreter.
PyTypeObject* make_poster_type(nb::module_& m, const char* name, const char* doc, PyMethodDef* methods,
                               PyTypeObject* base = nullptr);
// Throws TypeError unless the object is of this type.
[[nodiscard]] Poster& checked(const nb::object& poster, PyTypeObject* type);

template <class F> PyCFunction method(F* function) {
    return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

} // namespace zerohop::bind
