// Loads libmlx5 at run time, which knows more of a device than plain verbs does.
#pragma once

#include "shim/library.hpp"

#include <cstdint>
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>

namespace zerohop::shim {

struct Mlx5 {
    // True if mlx5 drives the device, so that its queues can be written directly.
    bool (*is_supported)(ibv_device*);
    // Tells where the queues of objects lie, which libibverbs has made; `kinds`: MLX5DV_OBJ_QP and others.
    int (*init_obj)(mlx5dv_obj*, uint64_t kinds);
};

[[nodiscard]] const Loaded<Mlx5>& mlx5();

} // namespace zerohop::shim
