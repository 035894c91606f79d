// A descriptor that Python holds.
#pragma once

#include "base/descriptor.hpp"
#include "bind/common.hpp"

namespace zerohop::bind {

struct PyHeldDescriptor {
    Descriptor descriptor; // empty once it is closed, or another has taken it
};

} // namespace zerohop::bind
