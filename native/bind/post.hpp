// Posting from Python: the calls that are made once for each operation.
#pragma once

#include "bind/common.hpp"

namespace zerohop::bind {

void def_posts(nb::class_<Engine>& engine);

} // namespace zerohop::bind
