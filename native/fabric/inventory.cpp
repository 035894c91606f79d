#include "fabric/inventory.hpp"

#include "base/status.hpp"
#include "provider/verbs/device.hpp"
#include "shim/mlx5.hpp"

#include <array>
#include <endian.h>
#include <utility>

namespace zerohop::fabric {

namespace {

using verbs::Device;

std::string guid_text(uint64_t network_order) {
    constexpr const char* kDigits = "0123456789abcdef";
    const uint64_t guid = be64toh(network_order);
    std::string text;
    for (int shift = 60; shift >= 0; shift -= 4) {
        text += kDigits[guid >> shift & 0xf];
        if (shift % 16 == 0 && shift != 0) {
            text += ':';
        }
    }
    return text;
}

// The names of verbs' numbers from 0 on, and of those that came later.
constexpr std::array kStates{"unknown", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER"};
constexpr std::array kLinkLayers{"unknown", "InfiniBand", "Ethernet"};
constexpr std::array kAtomics{"none", "hca", "global"};
static_assert(IBV_PORT_ACTIVE_DEFER == 5 && IBV_LINK_LAYER_ETHERNET == 2 && IBV_ATOMIC_GLOB == 2);

template <size_t kCount> const char* name_of(size_t number, const std::array<const char*, kCount>& names) {
    return names[number < kCount ? number : 0];
}

int mtu_bytes(ibv_mtu code) {
    return code < IBV_MTU_256 || code > IBV_MTU_4096 ? 0 : 128 << code;
}

Facts port_facts(const Device& device) {
    const ibv_port_attr& port = device.port_attributes();
    return {
        {"number", int64_t{device.port()}},
        {"state", name_of(port.state, kStates)},
        {"link_layer", name_of(port.link_layer, kLinkLayers)},
        {"lid", int64_t{port.lid}},
        {"max_mtu", int64_t{mtu_bytes(port.max_mtu)}},
        {"active_mtu", int64_t{mtu_bytes(port.active_mtu)}},
        {"max_message", uint64_t{device.max_message()}},
        {"gid_entries", int64_t{port.gid_tbl_len}},
    };
}

Facts device_facts(const std::string& name, const std::string& why_not, const ibv_device_attr& limits) {
    return {
        {"name", name},
        {"why_not", why_not},
        {"guid", why_not.empty() ? guid_text(limits.node_guid) : ""},
        {"firmware", limits.fw_ver},
        {"vendor", int64_t{limits.vendor_id}},
        {"part", int64_t{limits.vendor_part_id}},
        {"max_queue_pairs", int64_t{limits.max_qp}},
        {"max_requests", int64_t{limits.max_qp_wr}}, // of one queue
        {"max_sge", int64_t{limits.max_sge}},
        {"max_completions", int64_t{limits.max_cqe}}, // of one queue
        {"max_regions", int64_t{limits.max_mr}},
        {"max_region", uint64_t{limits.max_mr_size}}, // bytes
        {"read_credit", int64_t{limits.max_qp_rd_atom}},
        {"atomics", name_of(limits.atomic_cap, kAtomics)},
    };
}

} // namespace

std::vector<DeviceFacts> devices() {
    std::vector<DeviceFacts> found;
    for (const std::string& name : Device::names()) {
        DeviceFacts facts;
        try {
            const std::shared_ptr<Device> first = Device::open(name, 1);
            facts.device = device_facts(name, "", first->attributes());
            facts.ports.push_back(port_facts(*first));
            for (int port = 2; port <= first->attributes().phys_port_cnt; ++port) {
                facts.ports.push_back(port_facts(*Device::open(name, static_cast<uint8_t>(port))));
            }
        } catch (const NativeError& error) { // a device that this user may not open hides no other
            facts = {device_facts(name, error.what(), {}), {}};
        }
        found.push_back(std::move(facts));
    }
    return found;
}

std::string why_not_direct() {
    const auto& mlx5 = shim::mlx5();
    if (!mlx5) {
        return "libmlx5 is not usable: " + mlx5.why_not();
    }
    std::string others;
    for (const std::string& name : Device::names()) {
        try {
            if (mlx5->is_supported(Device::open(name, 1)->context()->device)) {
                return "this version does not write the queues of " + name + " directly, although it is an mlx5 device";
            }
            others += (others.empty() ? "" : ", ") + name;
        } catch (const NativeError& error) {
            others += (others.empty() ? "" : ", ") + name + " (" + error.what() + ")";
        }
    }
    if (others.empty()) {
        return "this machine has no RDMA device";
    }
    return "no RDMA device here is driven by mlx5, whose queues alone could be written directly; there is " + others;
}

} // namespace zerohop::fabric
