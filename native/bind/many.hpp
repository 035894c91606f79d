// Many pairs of memory here and there, as one operation.
#pragma once

#include "bind/common.hpp"

#include <optional>

namespace zerohop::bind {

// Of a list of pairs (memory here, memory there) of one Memory and one share: where each begins, and how long it is.
struct Pairs {
    nb::object first;  // the memory here of the first of them
    nb::object routes; // a dict
    nb::object key;    // in there
    std::shared_ptr<const PageList> list;
    uint64_t nbytes = 0;
};

// Nothing where the list is not plain: of several memories or shares, or not memory at all. `room`: what is there may
// be longer than what is here. Leaves no error of Python's.
[[nodiscard]] std::optional<Pairs> read_pairs(PyObject* pairs, PyObject* core, bool room);

} // namespace zerohop::bind
