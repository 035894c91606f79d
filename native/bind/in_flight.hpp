// The Python object of an operation in flight, and the call that posts a write and makes it: the way that nearly all
// small operations go.
//
// In CPython's own API instead of nanobind's, because it is what a small write costs: an object of nanobind's for the
// operation and one of Python's around it take as long as the engine takes to post (docs/decisions/0021).
#pragma once

#include "bind/common.hpp"

namespace zerohop::bind {

void register_in_flight(nb::module_& m);
// A callable (context, route, src, dst, nbytes, notify, timeout_ns): nanoseconds of a write that ended in the call, an
// instance of `type`, a subclass of InFlight, of one that ends later, or None where nothing was posted.
[[nodiscard]] nb::object poster(const std::shared_ptr<Engine>& engine, nb::handle type);

} // namespace zerohop::bind
