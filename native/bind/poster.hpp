// The base of Python's objects whose native methods post operations: they can be told to post no more.
//
// In CPython's own API, as InFlight and for the same reason.
#pragma once

#include "bind/common.hpp"

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
};

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
