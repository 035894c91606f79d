// The Python object that waits for a notification.
//
// In CPython's own API, as InFlight and for the same reason: of a ping-pong's time, Python's part was the most.
#pragma once

#include "bind/common.hpp"

#include <functional>
#include <optional>

namespace zerohop::bind {

// Lets `pop` take a notification from the wait's queue, and gives it to the wait within this call: between two calls, a
// signal's handler may raise, and it would be lost. Returns false if there was none. Throws what `pop` throws.
[[nodiscard]] bool take_into(const nb::object& wait,
                             const std::function<std::optional<Notification>(uint16_t, WaitOutcome&)>& pop);
void register_notification_wait(nb::module_& m);

} // namespace zerohop::bind
