// An opened RDMA device port with its protection domain: what everything else of it is made from.
#pragma once

#include "provider/verbs/refusal.hpp"
#include "shim/ibverbs.hpp"

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <unistd.h>
#include <vector>

namespace zerohop::verbs {

using Gid = std::array<uint8_t, 16>;

class Device {
public:
    // Throws NativeError(unsupported) with what is missing.
    [[nodiscard]] static std::shared_ptr<Device> open(const std::string& name, uint8_t port);
    // Returns the names of all devices; throws as open() if libibverbs is missing.
    [[nodiscard]] static std::vector<std::string> names();
    ~Device();
    Device(const Device&) = delete;
    Device& operator=(const Device&) = delete;

    const std::string& name() const { return name_; }
    uint8_t port() const { return port_; }
    const shim::IbVerbs& api() const { return api_; }
    ibv_context* context() const { return context_; }
    ibv_pd* pd() const { return pd_; }
    const ibv_device_attr& attributes() const { return attributes_; }
    // Returns the port as it was when opened: what never changes of it, and a first word on the rest.
    const ibv_port_attr& port_attributes() const { return port_attributes_; }
    bool is_ethernet() const { return port_attributes_.link_layer == IBV_LINK_LAYER_ETHERNET; }
    // Returns the port as it is now: its LID, MTU and state may be others. Throws NativeError if it does not answer.
    [[nodiscard]] ibv_port_attr ask_port() const;
    // Returns false also if the device does not answer.
    bool port_active() const;
    [[nodiscard]] Gid gid(int index) const; // throws NativeError
    // Returns the longest message that one work request may carry.
    uint64_t max_message() const;
    // True if this process opened it. In a forked child all of it is the parent's, and must be left alone.
    bool is_ours() const { return getpid() == opened_by_; }

private:
    explicit Device(const shim::IbVerbs& api) : api_(api), opened_by_(getpid()) {}

    const shim::IbVerbs& api_;
    const pid_t opened_by_;
    std::string name_;
    uint8_t port_ = 1;
    ibv_context* context_ = nullptr;
    ibv_pd* pd_ = nullptr;
    ibv_device_attr attributes_{};
    ibv_port_attr port_attributes_{};
};

// Destroys what was made on a device. In a forked child that is the parent's, and is left alone.
template <class T> struct Destroyer {
    const Device* device = nullptr;
    int (*destroy)(T*) = nullptr;
    void operator()(T* made) const {
        if (device->is_ours()) {
            destroy(made);
        }
    }
};
template <class T> using Made = std::unique_ptr<T, Destroyer<T>>;
// Returns a completion channel whose events are read without waiting. Throws NativeError.
[[nodiscard]] Made<ibv_comp_channel> make_channel(const Device& device);

// Returns the table of functions; throws NativeError that says why there is none.
[[nodiscard]] const shim::IbVerbs& api_or_raise();

} // namespace zerohop::verbs
