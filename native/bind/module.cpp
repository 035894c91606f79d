#include "bind/common.hpp"

NB_MODULE(_native, m) {
    m.doc() = "The data plane of zerohop: operations, lanes, shares and the engine that drives them.";
    zerohop::bind::register_status(m);
    zerohop::bind::register_operation(m);
    zerohop::bind::register_memory(m);
    zerohop::bind::register_endpoint(m);
    zerohop::bind::register_engine(m);
}
