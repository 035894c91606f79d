#include "bind/many.hpp"

#include "base/page_list.hpp"
#include "bind/slots.hpp"

#include <algorithm>

namespace zerohop::bind {

std::optional<Pairs> read_pairs(PyObject* pairs, PyObject* core, bool room) {
    const Layout* const known = layout();
    if (known == nullptr || !(PyList_CheckExact(pairs) || PyTuple_CheckExact(pairs))) {
        return std::nullopt;
    }
    const auto count = static_cast<size_t>(PySequence_Fast_GET_SIZE(pairs));
    PyObject** const items = PySequence_Fast_ITEMS(pairs);
    Pairs read;
    auto list = std::make_shared<PageList>();
    list->page_bytes = 1;
    for (PageNumbers* const each : {&list->local, &list->remote, &list->lengths}) {
        each->reserve(count);
    }
    const PyObject* routes = nullptr;
    const PyObject* key = nullptr;
    for (size_t i = 0; i < count; ++i) {
        PyObject* const pair = items[i];
        if (!PyTuple_CheckExact(pair) || PyTuple_GET_SIZE(pair) != 2) {
            return std::nullopt;
        }
        PyObject* const here = PyTuple_GET_ITEM(pair, 0);
        PyObject* const there = PyTuple_GET_ITEM(pair, 1);
        if (!is(here, known->range) || !is(there, known->remote)) {
            return std::nullopt;
        }
        if (i == 0) {
            read.first = nb::borrow(here);
            read.routes = nb::borrow(known->routes.of(here));
            read.key = nb::borrow(known->key.of(there));
            routes = read.routes.ptr();
            key = read.key.ptr();
            if (routes == nullptr || key == nullptr || known->core.of(here) != core || !PyDict_CheckExact(routes) ||
                has_moved(*known, here)) {
                return std::nullopt;
            }
        } else if (known->routes.of(here) != routes || known->key.of(there) != key) {
            return std::nullopt;
        }
        const uint64_t nbytes = number(known->nbytes.of(here));
        const uint64_t space = number(known->remote_nbytes.of(there));
        const uint64_t from = number(known->offset.of(here));
        const uint64_t to = number(known->remote_offset.of(there));
        const bool fits = room ? nbytes <= space : nbytes == space;
        if (!fits || nbytes == kNoNumber || space == kNoNumber || from == kNoNumber || to == kNoNumber ||
            from > kNoNumber - nbytes || to > kNoNumber - nbytes) {
            PyErr_Clear();
            return std::nullopt;
        }
        if (nbytes == 0) {
            continue;
        }
        list->local.push_back(from);
        list->remote.push_back(to);
        list->lengths.push_back(nbytes);
        list->local_end = std::max(list->local_end, from + nbytes);
        list->remote_end = std::max(list->remote_end, to + nbytes);
        read.nbytes += nbytes;
    }
    if (!read.first.is_valid()) {
        return std::nullopt;
    }
    if (!list->ranges()) {
        list.reset(); // all of them are empty
    }
    read.list = std::move(list);
    return read;
}

} // namespace zerohop::bind
