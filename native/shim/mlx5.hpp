// libmlx5, opened at run time: what it knows of a device beyond plain verbs.
#pragma once

#include <infiniband/verbs.h>
#include <string>

namespace zerohop::shim {

struct Mlx5 {
    // Whether the device is driven by mlx5, so that its queues can be written directly.
    bool (*is_supported)(ibv_device*);
};

// Null where the library is not there; then `why_no_mlx5` says why.
[[nodiscard]] const Mlx5* mlx5();
[[nodiscard]] const std::string& why_no_mlx5();

} // namespace zerohop::shim
