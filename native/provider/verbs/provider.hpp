// RDMA NICs through libibverbs.
#pragma once

#include "provider/provider.hpp"

namespace zerohop::verbs {

class VerbsProvider final : public Provider {
public:
    const char* name() const override { return "verbs"; }
    Probe probe() const override;
    std::shared_ptr<Domain> open(Engine& engine, const std::string& device, int port, int number,
                                 const DomainOptions& options) const override;
    std::shared_ptr<Endpoint> endpoint(Engine& engine, std::shared_ptr<Peer> peer,
                                       std::span<const std::shared_ptr<Domain>> rails) const override;
};

} // namespace zerohop::verbs
