#include "shim/mlx5.hpp"

#include "shim/library.hpp"

namespace zerohop::shim {

namespace {

struct Loaded {
    Loaded() { library.need(table.is_supported, "mlx5dv_is_supported"); }

    static constexpr const char* kNames[] = {"libmlx5.so.1", "libmlx5.so"};
    Library library{kNames, 2};
    Mlx5 table{};
};

const Loaded& loaded() {
    static const Loaded once;
    return once;
}

} // namespace

const Mlx5* mlx5() {
    return loaded().library ? &loaded().table : nullptr;
}

const std::string& why_no_mlx5() {
    return loaded().library.why_not();
}

} // namespace zerohop::shim
