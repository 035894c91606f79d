// The functions that CUDA's driver and HIP's runtime have alike, under names of their own.
#pragma once

#include "shim/gpu_api.hpp"

namespace zerohop::shim {

// Finds them by CUDA's names in a table whose kind is "cuda", otherwise by HIP's.
void find_common_functions(Library& library, GpuApi& table);

} // namespace zerohop::shim
