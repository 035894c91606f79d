// Writes and reads where all is prepared: one call from Python posts and makes the Operation.
//
// In CPython's own API, as InFlight and for the same reason.
#pragma once

#include "bind/common.hpp"

namespace zerohop::bind {

void register_transfers(nb::module_& m);

} // namespace zerohop::bind
