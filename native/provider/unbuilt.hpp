// The verbs provider of a build without the headers of libibverbs: known by name, and never usable.
#pragma once

#include "base/status.hpp"
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
    .endpoint = [](Host&, std::shared_ptr<Peer>, Provider::Rails) -> std::shared_ptr<Endpoint> {
        throw NativeError(Status::unsupported, Reason::none, kNoVerbs);
    },
};

} // namespace zerohop
