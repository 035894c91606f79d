// What RDMA devices this machine has, as the verbs library tells it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace zerohop::fabric {

struct PortFacts {
    int number = 0;
    std::string state;      // "ACTIVE", "DOWN", ...
    std::string link_layer; // "InfiniBand", "Ethernet", "unknown"
    int lid = 0;
    int max_mtu = 0; // bytes
    int active_mtu = 0;
    uint64_t max_message = 0;
    int gid_entries = 0;
};

struct DeviceFacts {
    std::string name;
    std::string why_not; // not empty: it could not be opened, and nothing below is known
    std::string guid;    // four groups of four digits, as sysfs writes it
    std::string firmware;
    uint32_t vendor = 0;
    uint32_t part = 0;
    int max_queue_pairs = 0;
    int max_requests = 0; // of one queue
    int max_sge = 0;
    int max_completions = 0; // of one queue
    int max_regions = 0;
    uint64_t max_region = 0; // bytes
    int read_credit = 0;
    std::string atomics; // "none", "hca", "global"
    std::vector<PortFacts> ports;
};

// Opens each, asks it, and closes it again. Throws NativeError where libibverbs is not there.
[[nodiscard]] std::vector<DeviceFacts> devices();

// Why queues of this machine's devices cannot be written directly; never empty in this version.
[[nodiscard]] std::string why_not_direct();

} // namespace zerohop::fabric
