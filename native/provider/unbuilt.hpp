// The verbs provider of a build without the headers of libibverbs: known by name, and never usable.
#pragma once

#include "provider/provider.hpp"

namespace zerohop {

inline constexpr const char* kNoVerbs =
    "this build of zerohop has no RDMA: it was made without the headers of libibverbs";

inline constexpr Provider kUnbuiltVerbs{
    .name = "verbs",
    .probe =
        [] {
            return Provider::Probe{false, kNoVerbs,
                                   "apt-get install -y libibverbs-dev, then in zerohop's sources: make clean build"};
        },
    .endpoint = nullptr,
};

} // namespace zerohop
