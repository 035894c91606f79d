#include "base/status.hpp"
#include "provider/p2p/endpoint.hpp"
#include "provider/provider.hpp"
#include "provider/shm/endpoint.hpp"
#include "provider/tcp/endpoint.hpp"
#ifdef ZEROHOP_VERBS
#include "provider/verbs/provider.hpp"
#else
#include "provider/unbuilt.hpp"
#endif

namespace zerohop {

std::shared_ptr<Domain> Provider::open(Engine& /*engine*/, const std::string& /*device*/, int /*port*/, int /*number*/,
                                       const DomainOptions& /*options*/) const {
    throw NativeError(Status::unsupported, Reason::none, std::string(name()) + " is not made of devices");
}

const std::vector<const Provider*>& providers() {
    static const p2p::P2pProvider p2p;
    static const shm::ShmProvider shm;
#ifdef ZEROHOP_VERBS
    static const verbs::VerbsProvider verbs;
#else
    static const UnbuiltProvider verbs(
        "verbs", kNoVerbs, "apt-get install -y libibverbs-dev, then in zerohop's sources: make clean build");
#endif
    static const tcp::TcpProvider tcp;
    static const std::vector<const Provider*> all{&p2p, &shm, &verbs, &tcp};
    return all;
}

} // namespace zerohop
