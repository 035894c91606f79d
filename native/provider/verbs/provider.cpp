// The verbs provider: whether this machine has RDMA devices, and how their ports and lanes are opened.
#include "provider/verbs/endpoint.hpp"

namespace zerohop::verbs {

Provider::Probe probe() {
    try {
        const std::vector<std::string> names = Device::names();
        if (!names.empty()) {
            return {true, "", ""};
        }
        return {false, "this machine has no RDMA device (/sys/class/infiniband is empty)",
                "install the NIC's driver, or for a software device: modprobe rdma_rxe && rdma link add rxe0 type rxe "
                "netdev eth0"};
    } catch (const NativeError& error) {
        return {false, error.what(), "apt-get install libibverbs1 ibverbs-providers"};
    }
}

std::shared_ptr<Domain> open(Host& host, const std::string& device, int port, int number,
                             const DomainOptions& options) {
    if (port < 1 || port > UINT8_MAX) {
        throw NativeError(Status::unsupported, Reason::none, "a port's number is from 1 to 255");
    }
    const Options checked = Options::from(options);
    return std::make_shared<VerbsDomain>(host, Device::open(device, static_cast<uint8_t>(port)), number, checked);
}

std::shared_ptr<Endpoint> endpoint(Host& host, std::shared_ptr<Peer> peer, Provider::Rails rails) {
    std::vector<std::shared_ptr<VerbsDomain>> opened;
    for (const auto& rail : rails) {
        auto domain = std::dynamic_pointer_cast<VerbsDomain>(rail);
        if (!domain || !domain->alive()) {
            throw NativeError(Status::unsupported, Reason::port_down, rail->device() + " is not usable now");
        }
        opened.push_back(std::move(domain));
    }
    if (opened.empty() || opened.size() > kMaxRails) {
        throw NativeError(Status::unsupported, Reason::none, "a verbs lane needs one to eight NIC ports");
    }
    return std::make_shared<VerbsEndpoint>(host, std::move(peer), std::move(opened));
}

} // namespace zerohop::verbs
