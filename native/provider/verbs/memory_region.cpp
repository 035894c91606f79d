#include "provider/verbs/memory_region.hpp"

#include "base/status.hpp"

#include <cerrno>
#include <cstring>

namespace zerohop::verbs {

namespace {

using Whose = MemoryRegion::Whose;

const char* name_of(accel::Registrable::Kind kind) {
    switch (kind) {
    case accel::Registrable::Kind::plain:
        return "plain address";
    case accel::Registrable::Kind::alias:
        return "alias address (peermem)";
    case accel::Registrable::Kind::dma_buf:
        return "dma-buf";
    }
    return "";
}

// Returns what the kernel means if its word alone says little.
std::string meaning(int error, Whose whose) {
    std::string text = std::strerror(error);
    if (error == EFAULT && whose == Whose::host) {
        text += " (not all of it is mapped, it is mapped read-only, or its pages are a device's)";
    } else if (error == EFAULT) {
        text += " (no driver gives these pages to the NIC: for GPU memory nvidia_peermem is missing)";
    } else if (error == ENOMEM && locking_is_limited()) {
        text += " (perhaps the limit of locked memory: ulimit -l)";
    } else if (error == EOPNOTSUPP) {
        text += " (not supported by the NIC's driver)";
    }
    return text;
}

} // namespace

MemoryRegion::MemoryRegion(std::shared_ptr<Device> device, const std::vector<accel::Registrable>& ways, uint64_t iova,
                           size_t nbytes, int access, Whose whose)
    : device_(std::move(device)) {
    std::string failed;
    Outcome outcome{Status::unsupported, Reason::none};
    const auto note = [&failed](const accel::Registrable& way, const std::string& why) {
        failed += (failed.empty() ? "" : "; ") + std::string(name_of(way.kind)) + ": " + why;
    };
    for (const accel::Registrable& way : ways) {
        if (!way.why_not.empty()) {
            note(way, way.why_not);
            continue;
        }
        mr_ = Made<ibv_mr>(try_way(way, iova, nbytes, access), {device_.get(), device_->api().dereg_mr});
        if (mr_ != nullptr) {
            how_ = name_of(way.kind);
            if (!failed.empty()) {
                how_ += " (after " + failed + ")";
            }
            return;
        }
        const int error = errno;
        if (const Outcome refusal = refusal_of(error); refusal != Outcome{Status::unsupported, Reason::none}) {
            outcome = refusal; // one way may work another time
        }
        note(way, meaning(error, whose));
    }
    throw NativeError(outcome, "not registered with " + device_->name() + ": " + failed);
}

MemoryRegion::MemoryRegion(std::shared_ptr<Device> device, void* address, size_t nbytes, int access)
    : MemoryRegion(
          std::move(device),
          {{.kind = accel::Registrable::Kind::plain, .address = reinterpret_cast<uint64_t>(address), .why_not = ""}},
          reinterpret_cast<uint64_t>(address), nbytes, access, Whose::host) {}

ibv_mr* MemoryRegion::try_way(const accel::Registrable& way, uint64_t iova, size_t nbytes, int access) {
    const shim::IbVerbs& api = device_->api();
    errno = EOPNOTSUPP;
    if (way.kind == accel::Registrable::Kind::dma_buf) {
        if (api.reg_dmabuf_mr == nullptr || !way.buffer) {
            return nullptr;
        }
        const int fd = way.buffer->get(); // the registration keeps what it stands for
        ibv_mr* region = api.reg_dmabuf_mr(device_->pd(), way.offset, nbytes, iova, fd, access);
        const int plain = access & (IBV_ACCESS_OPTIONAL_FIRST - 1);
        if (region == nullptr && plain != access) { // a kernel that takes no optional flags here refuses
            region = api.reg_dmabuf_mr(device_->pd(), way.offset, nbytes, iova, fd, plain);
        }
        return region;
    }
    if (api.reg_mr_iova2 != nullptr) {
        return api.reg_mr_iova2(device_->pd(), reinterpret_cast<void*>(way.address), nbytes, iova,
                                static_cast<unsigned>(access));
    }
    if (way.address != iova) {
        return nullptr;
    }
    return api.reg_mr(device_->pd(), reinterpret_cast<void*>(way.address), nbytes,
                      access & (IBV_ACCESS_OPTIONAL_FIRST - 1));
}

} // namespace zerohop::verbs
