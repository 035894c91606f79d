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
        [](const nb::object& range, const nb::object& remote) {
            if (held == nullptr) {
                held = new Layout{.range = range,
                                  .core = Slot(range, "_core"),
                                  .routes = Slot(range, "_routes"),
                                  .block = Slot(range, "_block"),
                                  .offset = Slot(range, "_offset"),
                                  .nbytes = Slot(range, "nbytes"),
                                  .remote = remote,
                                  .key = Slot(remote, "_key"),
                                  .remote_offset = Slot(remote, "_offset"),
                                  .remote_nbytes = Slot(remote, "nbytes")};
            }
        },
        nb::arg("range"), nb::arg("remote"), "Tells the classes of memory here and there. Once, before the first use.");
}

} // namespace zerohop::bind
