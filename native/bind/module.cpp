// Defines the Python module zerohop._native.
#include "bind/common.hpp"
#include "bind/in_flight.hpp"
#include "bind/notification_wait.hpp"
#include "bind/signals_held.hpp"
#include "bind/slots.hpp"

#include <stdexcept>
#include <utility>
#include <vector>

namespace {

// Refuses any interpreter but the main one. It runs before nanobind's own part of the import, which points the whole
// process at the types of the importing interpreter, and leaves it so where the import fails later.
int refuse_subinterpreter(PyObject* /* module */) {
    if (PyInterpreterState_GetID(PyInterpreterState_Get()) == 0) {
        return 0;
    }
    PyErr_SetString(PyExc_ImportError, "zerohop can be imported by the main interpreter only, and this is another one");
    return -1;
}

} // namespace

NB_MODULE(unguarded, m) {
    const zerohop::bind::SignalsHeld held;
    // nanobind ends the process where its enumerations are made a second time.
    static bool loaded = false;
    if (std::exchange(loaded, true)) {
        throw std::runtime_error("zerohop is loaded in this process already, and cannot be loaded again");
    }
    m.doc() = "The data plane of zerohop: operations, lanes, shares and the engine that drives them.";
    nanobind::set_leak_warnings(false); // a forked child keeps its parent's objects on purpose
    m.def("interpreter_exits", &zerohop::bind::Released::interpreter_exits, nanobind::arg("limit_ns"));
    m.def("interpreter_forked", &zerohop::bind::Released::interpreter_forked);
    zerohop::bind::register_status(m);
    zerohop::bind::register_operation(m);
    zerohop::bind::register_in_flight(m);
    zerohop::bind::register_notification_wait(m);
    zerohop::bind::register_posters(m);
    zerohop::bind::register_transfers(m);
    zerohop::bind::register_messages(m);
    zerohop::bind::register_layout(m);
    zerohop::bind::register_memory(m);
    zerohop::bind::register_peer_memory(m);
    zerohop::bind::register_domain(m);
    zerohop::bind::register_endpoint(m);
    zerohop::bind::register_engine(m);
    zerohop::bind::register_sim_stream(m);
    zerohop::bind::register_array(m);
    zerohop::bind::register_fabric(m);
    zerohop::bind::register_grants(m);
    zerohop::bind::register_board(m);
    zerohop::bind::register_held_descriptor(m);
    zerohop::bind::register_storage(m);
    zerohop::bind::register_device_queue(m);
}

// NOLINTBEGIN(bugprone-reserved-identifier, readability-identifier-naming): Python looks it up by this name, and so no
// header declares it.
extern "C" NB_EXPORT PyObject* PyInit__native();

extern "C" PyObject* PyInit__native() {
    // NOLINTEND(bugprone-reserved-identifier, readability-identifier-naming): as above
    PyObject* const made = PyInit_unguarded();
    // The check is a step of the definition's own: Python 3.13 calls this function as the main interpreter, and the
    // steps as the one that imports. The definition is the same one at each call.
    static std::vector<PyModuleDef_Slot> steps;
    if (made != nullptr && steps.empty()) {
        auto* const definition = reinterpret_cast<PyModuleDef*>(made);
        steps.push_back({Py_mod_exec, reinterpret_cast<void*>(&refuse_subinterpreter)});
        for (const PyModuleDef_Slot* slot = definition->m_slots; slot->slot != 0; ++slot) {
            steps.push_back(*slot);
        }
        steps.push_back({0, nullptr});
        definition->m_slots = steps.data();
    }
    return made;
}
