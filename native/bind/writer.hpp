// Context.write where all is prepared: one call from Python posts the write and makes its Operation.
//
// In CPython's own API, as InFlight and for the same reason.
#pragma once

#include "bind/common.hpp"

namespace zerohop::bind {

void register_writer(nb::module_& m);

} // namespace zerohop::bind
