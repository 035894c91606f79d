// A provider that this build was made without: known by name, and never usable.
#pragma once

#include "base/status.hpp"
#include "provider/provider.hpp"

namespace zerohop {

inline constexpr const char* kNoVerbs =
    "this build of zerohop has no RDMA: it was made without the headers of libibverbs";

class UnbuiltProvider final : public Provider {
public:
    UnbuiltProvider(const char* name, const char* reason, const char* fix) : name_(name), reason_(reason), fix_(fix) {}

    const char* name() const override { return name_; }
    Probe probe() const override { return {false, reason_, fix_}; }
    std::shared_ptr<Endpoint> endpoint(Engine& /*engine*/, std::shared_ptr<Peer> /*peer*/,
                                       std::span<const std::shared_ptr<Domain>> /*rails*/) const override {
        throw NativeError(Status::unsupported, Reason::none, reason_);
    }

private:
    const char* name_;
    const char* reason_;
    const char* fix_;
};

} // namespace zerohop
