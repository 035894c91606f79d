// Loads libmlx5 at run time, which knows more of a device than plain verbs does.
#pragma once

#include <infiniband/verbs.h>
#include <string>

namespace zerohop::shim {

struct Mlx5 {
    // True if mlx5 drives the device, so that its queues can be written directly.
    bool (*is_supported)(ibv_device*);
};

// Returns the table; null if the library is missing, and `why_no_mlx5` then says why.
[[nodiscard]] const Mlx5* mlx5();
[[nodiscard]] const std::string& why_no_mlx5();

} // namespace zerohop::shim
