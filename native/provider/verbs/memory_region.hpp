// One registration of memory with one device.
#pragma once

#include "accel/driver.hpp"
#include "provider/provider.hpp"
#include "provider/verbs/device.hpp"

#include <memory>
#include <string>

namespace zerohop::verbs {

class MemoryRegion final : public Registration {
public:
    enum class Whose : uint8_t { host, accelerator };
    // `access`: IBV_ACCESS_*; `ways` are tried in this order. Throws NativeError whose text tells each step that
    // failed.
    MemoryRegion(std::shared_ptr<Device> device, const std::vector<accel::Registrable>& ways, uint64_t iova,
                 size_t nbytes, int access, Whose whose);
    // The plainest one: host memory of our own.
    MemoryRegion(std::shared_ptr<Device> device, void* address, size_t nbytes, int access);

    uint32_t local_key() const override { return mr_->lkey; }
    uint32_t remote_key() const override { return mr_->rkey; }
    // How it was registered, and what had failed before, in words.
    const std::string& how() const override { return how_; }

private:
    [[nodiscard]] ibv_mr* try_way(const accel::Registrable& way, uint64_t iova, size_t nbytes, int access);

    std::shared_ptr<Device> device_;
    Made<ibv_mr> mr_; // once destroyed, the device cannot touch the memory any more
    std::string how_;
};

} // namespace zerohop::verbs
