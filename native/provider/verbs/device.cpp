#include "provider/verbs/device.hpp"

#include "base/status.hpp"
#include "provider/verbs/tuning.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>

namespace zerohop::verbs {

namespace {

struct DeviceList {
    explicit DeviceList(const shim::IbVerbs& table) : api(table), devices(table.get_device_list(&count)) {}
    ~DeviceList() {
        if (devices != nullptr) {
            api.free_device_list(devices);
        }
    }
    DeviceList(const DeviceList&) = delete;
    DeviceList& operator=(const DeviceList&) = delete;

    const shim::IbVerbs& api;
    int count = 0;
    ibv_device** devices;
};

} // namespace

const shim::IbVerbs& api_or_raise() {
    const shim::IbVerbs* api = shim::ibverbs().get();
    if (api == nullptr) {
        throw NativeError(Status::unsupported, Reason::none, "libibverbs is not usable: " + shim::ibverbs().why_not());
    }
    return *api;
}

std::vector<std::string> Device::names() {
    const DeviceList list(api_or_raise());
    std::vector<std::string> names;
    names.reserve(static_cast<size_t>(list.count));
    for (int i = 0; i < list.count; ++i) {
        names.emplace_back(list.api.get_device_name(list.devices[i]));
    }
    return names;
}

std::shared_ptr<Device> Device::open(const std::string& name, uint8_t port) {
    const shim::IbVerbs& api = api_or_raise();
    const DeviceList list(api);
    std::shared_ptr<Device> device(new Device(api));
    device->name_ = name;
    device->port_ = port;
    for (int i = 0; i < list.count && device->context_ == nullptr; ++i) {
        if (name == api.get_device_name(list.devices[i])) {
            errno = 0;
            device->context_ = api.open_device(list.devices[i]);
            if (device->context_ == nullptr) {
                raise("cannot open the RDMA device " + name, errno == 0 ? EACCES : errno);
            }
        }
    }
    if (device->context_ == nullptr) {
        throw NativeError(Status::unsupported, Reason::none, "there is no RDMA device named " + name);
    }
    if (const int error = api.query_device(device->context_, &device->attributes_); error != 0) {
        raise("the RDMA device " + name + " does not answer", error);
    }
    if (port == 0 || port > device->attributes_.phys_port_cnt) {
        throw NativeError(Status::unsupported, Reason::none,
                          name + " has no port " + std::to_string(port) + "; it has " +
                              std::to_string(device->attributes_.phys_port_cnt));
    }
    device->port_attributes_ = device->ask_port();
    device->pd_ = api.alloc_pd(device->context_);
    if (device->pd_ == nullptr) {
        raise("cannot make a protection domain on " + name, errno);
    }
    const int flags = fcntl(device->context_->async_fd, F_GETFL);
    fcntl(device->context_->async_fd, F_SETFL, flags | O_NONBLOCK);
    return device;
}

Device::~Device() {
    if (!is_ours()) {
        return;
    }
    if (pd_ != nullptr) {
        api_.dealloc_pd(pd_);
    }
    if (context_ != nullptr) {
        api_.close_device(context_);
    }
}

ibv_port_attr Device::ask_port() const {
    ibv_port_attr now{};
    if (const int error = api_.query_port(context_, port_, &now); error != 0) {
        raise("port " + std::to_string(port_) + " of " + name_ + " does not answer", error);
    }
    return now;
}

bool Device::port_active() const {
    ibv_port_attr now{};
    return api_.query_port(context_, port_, &now) == 0 && now.state == IBV_PORT_ACTIVE;
}

Gid Device::gid(int index) const {
    union ibv_gid raw{};
    if (index < 0 || api_.query_gid(context_, port_, index, &raw) != 0) {
        throw NativeError(Status::unsupported, Reason::none,
                          "port " + std::to_string(port_) + " of " + name_ + " has no GID of index " +
                              std::to_string(index));
    }
    Gid gid;
    std::memcpy(gid.data(), raw.raw, gid.size());
    return gid;
}

uint64_t Device::max_message() const {
    const uint64_t said = port_attributes_.max_msg_sz;
    return said == 0 ? kMaxMessage : std::min<uint64_t>(said, kMaxMessage);
}

Made<ibv_comp_channel> make_channel(const Device& device) {
    const shim::IbVerbs& api = device.api();
    ibv_comp_channel* const channel = api.create_comp_channel(device.context());
    if (channel == nullptr) {
        raise("cannot make a completion channel on " + device.name(), errno);
    }
    fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK);
    return {channel, {&device, api.destroy_comp_channel}};
}

} // namespace zerohop::verbs
