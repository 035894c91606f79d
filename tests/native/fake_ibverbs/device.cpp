// Implements devices, contexts and asynchronous events.
#include "state.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <endian.h>
#include <sys/eventfd.h>
#include <unistd.h>

namespace zerohop::fake {

namespace {

ibv_gid gid_of(uint64_t subnet, uint64_t interface) {
    ibv_gid gid{};
    gid.global.subnet_prefix = htobe64(subnet);
    gid.global.interface_id = htobe64(interface);
    return gid;
}

std::unique_ptr<Device> make_device(const char* name, bool ethernet, uint16_t lid, ibv_mtu mtu, int reads) {
    auto device = std::make_unique<Device>();
    std::strncpy(device->name, name, sizeof device->name - 1);
    device->node_type = IBV_NODE_CA;
    device->transport_type = IBV_TRANSPORT_IB;
    ibv_port_attr& port = device->port;
    port.state = IBV_PORT_ACTIVE;
    port.max_mtu = IBV_MTU_4096;
    port.active_mtu = mtu;
    port.max_msg_sz = kMaxMessage;
    port.pkey_tbl_len = 2;
    port.lid = lid;
    port.active_width = 2; // 4 lanes
    port.active_speed = 32;
    port.phys_state = 5;
    port.link_layer = ethernet ? IBV_LINK_LAYER_ETHERNET : IBV_LINK_LAYER_INFINIBAND;
    ibv_device_attr& limits = device->limits;
    std::strncpy(limits.fw_ver, "fake", sizeof limits.fw_ver - 1);
    limits.max_qp = 1 << 16;
    limits.max_qp_wr = 4096;
    limits.max_sge = kMaxSge;
    limits.max_cq = 1 << 16;
    limits.max_cqe = 1 << 16;
    limits.max_mr = 1 << 20;
    limits.max_pd = 1 << 16;
    limits.max_qp_rd_atom = reads;
    limits.max_qp_init_rd_atom = reads;
    limits.atomic_cap = IBV_ATOMIC_HCA;
    limits.max_srq = 1 << 16;
    limits.max_srq_wr = 4096;
    limits.max_srq_sge = kMaxSge;
    limits.max_pkeys = 2;
    limits.phys_port_cnt = 1;
    return device;
}

} // namespace

Bell::Bell() : fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

Bell::~Bell() {
    ::close(fd_);
}

void Bell::ring() const {
    const uint64_t one = 1;
    (void)!::write(fd_, &one, sizeof one);
}

void Bell::silence() const {
    uint64_t count = 0;
    (void)!::read(fd_, &count, sizeof count);
}

World::World() {
    constexpr uint64_t kLinkLocal = 0xfe80'0000'0000'0000;
    for (const uint8_t last : {uint8_t{1}, uint8_t{2}}) {
        auto device =
            last == 1 ? make_device(kRoce0, true, 0, IBV_MTU_1024, 16) : make_device(kRoce1, true, 0, IBV_MTU_4096, 8);
        // The GID table is filled as Linux does it: the address of the MAC and the one of IPv4, each for RoCE v1 and
        // for v2.
        const ibv_gid mac = gid_of(kLinkLocal, last);
        const ibv_gid ip = gid_of(0, 0x0000'ffff'0a00'0000 | last);
        device->gids = {mac, mac, ip, ip};
        devices.push_back(std::move(device));
    }
    uint16_t lid = 11;
    for (const char* name : {kIb0, kIb1, kIb2}) {
        auto device = make_device(name, false, lid, IBV_MTU_4096, 16);
        device->gids = {gid_of(name == kIb2 ? 0xfec0'0000'0000'0001 : kLinkLocal, lid)};
        devices.push_back(std::move(device));
        ++lid;
    }
    for (const auto& device : devices) {
        device->port.gid_tbl_len = static_cast<int>(device->gids.size());
    }
}

World& world() {
    static World the;
    return the;
}

bool fails(Call call, const ibv_context* context) {
    auto& [left, error] = world().failures[static_cast<size_t>(call)];
    if (left != 0) {
        --left;
        if (left == 0) {
            errno = error;
            return true;
        }
    }
    if (static_cast<const Context*>(context)->dead) {
        errno = EIO;
        return true;
    }
    return false;
}

void raise(Context& context, const Event& event) {
    context.events.push_back(event);
    context.bell.ring();
}

void forget_events(Context& context, const unsigned* acknowledged) {
    std::erase_if(context.events, [&](const Event& event) { return event.acknowledged == acknowledged; });
    if (context.events.empty()) {
        context.bell.silence();
    }
}

} // namespace zerohop::fake

using namespace zerohop::fake;

extern "C" {

ibv_device** ibv_get_device_list(int* count) {
    const auto& devices = world().devices;
    auto** list = new ibv_device*[devices.size() + 1]();
    std::transform(devices.begin(), devices.end(), list, [](const auto& device) { return device.get(); });
    if (count != nullptr) {
        *count = static_cast<int>(devices.size());
    }
    return list;
}

void ibv_free_device_list(ibv_device** list) {
    delete[] list;
}

const char* ibv_get_device_name(ibv_device* device) {
    return device->name;
}

__be64 ibv_get_device_guid(ibv_device* device) {
    return static_cast<Device*>(device)->gids.front().global.interface_id;
}

ibv_context* ibv_open_device(ibv_device* device) {
    const std::lock_guard lock(world().mutex);
    auto* context = new Context;
    context->device = device;
    context->of = static_cast<Device*>(device);
    context->ops.post_send = zerohop::fake::post_send;
    context->ops.post_recv = zerohop::fake::post_recv;
    context->ops.post_srq_recv = zerohop::fake::post_srq_recv;
    context->ops.poll_cq = zerohop::fake::poll_cq;
    context->ops.req_notify_cq = zerohop::fake::req_notify_cq;
    context->cmd_fd = -1;
    context->async_fd = context->bell.fd();
    context->num_comp_vectors = 1;
    world().contexts.insert(context);
    ++world().open.contexts;
    return context;
}

int ibv_close_device(ibv_context* context) {
    const std::lock_guard lock(world().mutex);
    auto* ours = static_cast<Context*>(context);
    if (ours->users != 0) {
        ++world().open.misuses;
        return EBUSY;
    }
    world().contexts.erase(ours);
    --world().open.contexts;
    delete ours;
    return 0;
}

int ibv_query_device(ibv_context* context, ibv_device_attr* attributes) {
    const std::lock_guard lock(world().mutex);
    *attributes = static_cast<Context*>(context)->of->limits;
    return static_cast<Context*>(context)->dead ? EIO : 0;
}

#undef ibv_query_port
// A caller of this symbol has the older and shorter layout: later fields must stay unchanged.
int ibv_query_port(ibv_context* context, uint8_t number, _compat_ibv_port_attr* attributes) {
    const std::lock_guard lock(world().mutex);
    const auto* ours = static_cast<Context*>(context);
    if (ours->dead || number != 1) {
        return ours->dead ? EIO : EINVAL;
    }
    std::memcpy(static_cast<void*>(attributes), &ours->of->port, offsetof(ibv_port_attr, port_cap_flags2));
    return 0;
}

int ibv_query_gid(ibv_context* context, uint8_t number, int index, ibv_gid* gid) {
    const auto* device = static_cast<Context*>(context)->of;
    if (number != 1 || index < 0 || static_cast<size_t>(index) >= device->gids.size()) {
        errno = EINVAL;
        return -1;
    }
    *gid = device->gids[static_cast<size_t>(index)];
    return 0;
}

int ibv_query_pkey(ibv_context* /*context*/, uint8_t number, int index, __be16* pkey) {
    if (number != 1 || index < 0 || index > 1) {
        errno = EINVAL;
        return -1;
    }
    *pkey = htobe16(index == 0 ? 0xffff : 0x8001);
    return 0;
}

// Never blocks, whatever the descriptor's flags.
int ibv_get_async_event(ibv_context* context, ibv_async_event* event) {
    const std::lock_guard lock(world().mutex);
    auto* ours = static_cast<Context*>(context);
    if (ours->events.empty()) {
        errno = EAGAIN;
        return -1;
    }
    *event = ours->events.front().event;
    ours->events.pop_front();
    if (ours->events.empty()) {
        ours->bell.silence();
    }
    if (event->event_type == IBV_EVENT_CQ_ERR) {
        ++static_cast<CompletionQueue*>(event->element.cq)->async_told;
    } else if (event->event_type <= IBV_EVENT_PATH_MIG_ERR || event->event_type == IBV_EVENT_QP_LAST_WQE_REACHED) {
        ++static_cast<QueuePair*>(event->element.qp)->async_told;
    }
    return 0;
}

void ibv_ack_async_event(ibv_async_event* event) {
    const std::lock_guard lock(world().mutex);
    if (event->event_type == IBV_EVENT_CQ_ERR) {
        ++static_cast<CompletionQueue*>(event->element.cq)->async_acknowledged;
    } else if (event->event_type <= IBV_EVENT_PATH_MIG_ERR || event->event_type == IBV_EVENT_QP_LAST_WQE_REACHED) {
        ++static_cast<QueuePair*>(event->element.qp)->async_acknowledged;
    }
    world().acknowledged.notify_all();
}

const char* ibv_event_type_str(ibv_event_type /*event*/) {
    return "an event";
}

} // extern "C"
