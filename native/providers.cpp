// The list of providers. This is where a new one is entered.
#include "provider/p2p/endpoint.hpp"
#include "provider/provider.hpp"
#include "provider/shm/endpoint.hpp"
#include "provider/tcp/endpoint.hpp"
#include "provider/unbuilt.hpp"
#ifdef ZEROHOP_VERBS
#include "provider/verbs/endpoint.hpp"
#endif

namespace zerohop {

namespace {

template <class Lane>
std::shared_ptr<Endpoint> lane(Host& host, std::shared_ptr<Peer> peer, Provider::Rails /*rails*/) {
    return std::make_shared<Lane>(host, std::move(peer));
}

} // namespace

const std::vector<Provider>& providers() {
    static const std::vector<Provider> all{
        {.name = "p2p", .probe = &p2p::probe, .endpoint = &lane<p2p::P2pEndpoint>},
        {.name = "shm", .probe = &shm::probe, .endpoint = &lane<shm::ShmEndpoint>},
#ifdef ZEROHOP_VERBS
        {.name = "verbs", .probe = &verbs::probe, .endpoint = &verbs::endpoint, .open = &verbs::open},
#else
        kUnbuiltVerbs,
#endif
        {.name = "tcp", .probe = &tcp::probe, .endpoint = &lane<tcp::TcpEndpoint>},
    };
    return all;
}

} // namespace zerohop
