// The Python object of an operation in flight.
//
// In CPython's own API instead of nanobind's, because nearly all small operations make one and ask it once: an object
// of nanobind's and one of Python's around it take as long as the engine takes to post (docs/decisions/0021).
#pragma once

#include "bind/common.hpp"

namespace zerohop::bind {

// Its fields are attributes; what they mean is said in core/runtime/native_operation.py.
struct InFlight {
    PyObject_HEAD PyObject* core;
    PyObject* kind;
    PyObject* path;
    PyObject* nbytes;
    PyObject* keep;
    PyObject* message; // the class of the value, of a receive whose value says source, tag and length; else null
    PyObject* native;  // an Op of its own, once anything but result() wanted one; null: `held` is it
    PyOp held;
};

// A new one of this type or a subclass, with all fields null; null with Python's error set where there is no memory.
[[nodiscard]] InFlight* make_in_flight(PyTypeObject* type);
void register_in_flight(nb::module_& m);

} // namespace zerohop::bind
