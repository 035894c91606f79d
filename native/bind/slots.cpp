#include "bind/slots.hpp"

#include "memory/block_watch.hpp"

#include <stdexcept>
#include <string>
#include <structmember.h>

namespace zerohop::bind {

namespace {

Layout* held = nullptr; // never given back: the classes live as long as the interpreter

} // namespace

Slot::Slot(const nb::handle& type, const char* name) {
    const nb::object found = nb::steal(PyObject_GetAttrString(type.ptr(), name));
    if (!found.is_valid() || !Py_IS_TYPE(found.ptr(), &PyMemberDescr_Type)) {
        PyErr_Clear();
        throw std::invalid_argument(std::string("the class has no slot ") + name);
    }
    offset_ = reinterpret_cast<PyMemberDescrObject*>(found.ptr())->d_member->offset;
}

const Layout* layout() {
    return held;
}

bool read_timeout(PyObject* value, uint64_t& nanoseconds) {
    constexpr double kPlain = 1e9;
    if (value == nullptr || value == Py_None) {
        return true;
    }
    const double seconds = PyFloat_CheckExact(value)  ? PyFloat_AS_DOUBLE(value)
                           : PyLong_CheckExact(value) ? PyLong_AsDouble(value)
                                                      : 0;
    const bool plain = seconds > 0 && seconds < kPlain; // neither holds for NaN
    nanoseconds = plain ? static_cast<uint64_t>(seconds * static_cast<double>(kSecond)) : 0;
    return nanoseconds != 0; // 0 would mean no limit
}

bool read_local(const Layout& known, PyObject* core, PyObject* range, LocalRange& local) {
    if (!is(range, known.range) || known.core.of(range) != core || has_moved(known, range)) {
        return false;
    }
    const bool is_view = is(range, known.view);
    PyObject* const home = is_view ? known.home.of(range) : range;
    if (home == nullptr || !is(home, known.memory) || known.closed.of(home) != Py_False) {
        return false;
    }
    PyObject* const bytes_order = known.layout.of(range);
    const bool in_order = bytes_order != nullptr && PyBytes_CheckExact(bytes_order) &&
                          (PyBytes_GET_SIZE(bytes_order) == 0 || bytes_order == known.rows.ptr());
    PyObject* const registration = known.registration.of(range);
    if (!in_order || registration == nullptr || !is(registration, known.registered)) {
        return false;
    }
    PyObject* const found = known.region.of(registration);
    if (found == nullptr || !nb::isinstance<PyRegion>(found)) { // it is another object once the Context is closed
        return false;
    }
    const PyRegion& region = *nb::inst_ptr<PyRegion>(found);
    local.offset = number(known.offset.of(range));
    local.nbytes = number(known.nbytes.of(range));
    local.region = region.region;
    local.readonly = (is_view ? known.view_readonly : known.memory_readonly).of(range) != Py_False;
    return local.region != nullptr && local.offset <= region.nbytes && local.nbytes <= region.nbytes - local.offset;
}

bool has_moved(const Layout& known, PyObject* range) {
    PyObject* const block = known.block.of(range);
    return block != Py_None && (block == nullptr || nb::inst_ptr<BlockWatch>(block)->moved());
}

void register_layout(nb::module_& m) {
    nb::class_<BlockWatch>(m, "BlockWatch", "Watches a block of memory that another library owns and may move.")
        .def(nb::init<uint64_t, uint64_t, uint64_t, uint64_t>(), nb::arg("start_word"), nb::arg("start"),
             nb::arg("length_word") = 0, nb::arg("length") = 0,
             "The words are where that library keeps `start` and `length`, for as long as this object is asked.")
        .def_prop_ro("moved", &BlockWatch::moved, "Whether the block is elsewhere by now, or shorter.")
        .def("holds", &BlockWatch::holds, nb::arg("address"), nb::arg("nbytes"),
             "Tell whether a range lies in the block, and the block has not moved.");
    m.def(
        "set_layout",
        [](const nb::object& range, const nb::object& remote, const nb::object& memory, const nb::object& view,
           const nb::object& registered, const nb::object& rows) {
            if (held == nullptr) {
                held = new Layout{.range = range,
                                  .core = Slot(range, "_core"),
                                  .routes = Slot(range, "_routes"),
                                  .block = Slot(range, "_block"),
                                  .offset = Slot(range, "_offset"),
                                  .nbytes = Slot(range, "nbytes"),
                                  .layout = Slot(range, "_layout"),
                                  .rows = rows,
                                  .registration = Slot(range, "_registration"),
                                  .memory = memory,
                                  .closed = Slot(memory, "_closed"),
                                  .memory_readonly = Slot(memory, "_readonly"),
                                  .view = view,
                                  .home = Slot(view, "memory"),
                                  .view_readonly = Slot(view, "_readonly"),
                                  .registered = registered,
                                  .region = Slot(registered, "region"),
                                  .remote = remote,
                                  .key = Slot(remote, "_key"),
                                  .remote_offset = Slot(remote, "_offset"),
                                  .remote_nbytes = Slot(remote, "nbytes")};
            }
        },
        nb::arg("range"), nb::arg("remote"), nb::arg("memory"), nb::arg("view"), nb::arg("registered"), nb::arg("rows"),
        "Tells the classes of memory here and there. Once, before the first use.");
}

} // namespace zerohop::bind
