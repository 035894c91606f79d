// Defines the Python module zerohop._native.
#include "bind/common.hpp"
#include "bind/in_flight.hpp"
#include "bind/notification_wait.hpp"
#include "bind/signals_held.hpp"
#include "bind/slots.hpp"

#include <stdexcept>
#include <utility>

NB_MODULE(_native, m) {
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
    zerohop::bind::register_transfers(m);
    zerohop::bind::register_layout(m);
    zerohop::bind::register_memory(m);
    zerohop::bind::register_peer_memory(m);
    zerohop::bind::register_domain(m);
    zerohop::bind::register_endpoint(m);
    zerohop::bind::register_engine(m);
    zerohop::bind::register_sim_stream(m);
    zerohop::bind::register_array(m);
    zerohop::bind::register_fabric(m);
}
