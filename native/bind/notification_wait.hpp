// The Python object that waits for a notification.
//
// In CPython's own API, as InFlight and for the same reason: of a ping-pong's time, Python's part was the most.
#pragma once

#include "bind/common.hpp"

namespace zerohop::bind {

void register_notification_wait(nb::module_& m);

} // namespace zerohop::bind
