// Where objects of Python's classes with __slots__ keep their attributes: to read one there is a load, and no look-up.
#pragma once

#include "bind/common.hpp"

#include <memory>

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

    // The attribute must not be set yet.
    void set(PyObject* object, PyObject* value) const {
        *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(object) + offset_) = Py_NewRef(value);
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
    Slot layout;
    nb::object rows; // the layout of an array whose elements lie in their order
    Slot registration;
    nb::object memory; // the two classes that derive from it
    Slot closed;
    Slot memory_readonly;
    nb::object view;
    Slot home;
    Slot view_readonly;
    nb::object registered; // the class of registrations
    Slot region;
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

// Reads a time limit in seconds; None, and null, leave it as it is. Returns false, perhaps with Python's error set,
// unless it is an int or float in (0, 1e9).
[[nodiscard]] bool read_timeout(PyObject* value, uint64_t& nanoseconds);

inline bool is(PyObject* object, const nb::object& type) {
    return PyObject_TypeCheck(object, reinterpret_cast<PyTypeObject*>(type.ptr())) != 0;
}

// Null until Python has told it.
[[nodiscard]] const Layout* layout();

// A range of memory here that a message is sent from, or received into.
struct LocalRange {
    std::shared_ptr<Region> region;
    uint64_t offset = 0;
    uint64_t nbytes = 0;
    bool readonly = false;
};

// Reads a Memory or View of a core. Returns false, perhaps with Python's error set, if it is none, or closed, or has
// moved, or if its bytes are not in the order of an array's elements.
[[nodiscard]] bool read_local(const Layout& known, PyObject* core, PyObject* range, LocalRange& local);
void register_layout(nb::module_& m);

} // namespace zerohop::bind
