#include "shim/mlx5.hpp"

namespace zerohop::shim {

const Loaded<Mlx5>& mlx5() {
    static const Loaded<Mlx5> once({"libmlx5.so.1", "libmlx5.so"}, [](Library& library, Mlx5& table) {
        library.need(table.is_supported, "mlx5dv_is_supported");
        library.need(table.init_obj, "mlx5dv_init_obj");
    });
    return once;
}

} // namespace zerohop::shim
