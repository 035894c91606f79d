// Where objects of Python's classes with __slots__ keep their attributes: to read one there is a load, and no look-up.
#pragma once

#include "bind/common.hpp"

namespace zerohop::bind {

// One attribute of a class, and of all that derive from it.
class Slot {
public:
    Slot() = default;
    // Throws std::invalid_argument where the class has no such slot.
    Slot(const nb::handle& type, const char* name);
    // Borrowed; null if it is not set. The object is one of that class.
    [[nodiscard]] PyObject* of(PyObject* object) const {
        return *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(object) + offset_);
    }

private:
    Py_ssize_t offset_ = 0;
};

// Attributes that transfers read, of the memory here (zerohop.View and Memory) and there (zerohop.RemoteBuffer).
struct Layout {
    nb::object range; // the class of both of those here
    Slot core;
    Slot routes;
    Slot block;
    Slot offset;
    Slot nbytes;
    nb::object remote;
    Slot key;
    Slot remote_offset;
    Slot remote_nbytes;
};

constexpr uint64_t kNoNumber = UINT64_MAX;

// Returns the value of a plain int; kNoNumber, perhaps with Python's error set, for anything else.
inline uint64_t number(PyObject* value) {
    return value != nullptr && PyLong_CheckExact(value) ? PyLong_AsUnsignedLongLong(value) : kNoNumber;
}

// Returns true if another library has moved the bytes of a range.
[[nodiscard]] bool has_moved(const Layout& known, PyObject* range);

inline bool is(PyObject* object, const nb::object& type) {
    return PyObject_TypeCheck(object, reinterpret_cast<PyTypeObject*>(type.ptr())) != 0;
}

// Null until Python has told it.
[[nodiscard]] const Layout* layout();
void register_layout(nb::module_& m);

} // namespace zerohop::bind
