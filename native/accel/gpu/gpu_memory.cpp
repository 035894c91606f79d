#include "accel/gpu/gpu_memory.hpp"

#include "accel/gpu/memory_forms.hpp"

#include <array>
#include <cstring>
#include <span>
#include <string>
#include <unistd.h>

namespace zerohop::accel::gpu {

namespace {

using shim::GpuPointer;

constexpr int kDmaBuf = 1;
constexpr unsigned kHost = 1;
constexpr unsigned kOnDevice = 2;

struct Attributes {
    unsigned type = 0;
    int device = -1;
    uint64_t id = 0;
    unsigned managed = 0;
    int legacy_ipc = 0;
    void* pool = nullptr;
};

// Gets some attributes of an address; values stay unchanged if the driver does not know it.
bool get_attributes(const Devices& devices, std::span<const int> which, void** values, uint64_t address) {
    const GpuApi& api = devices.front()->api;
    const auto count = static_cast<unsigned>(which.size());
    GpuResult result = api.pointer_attributes(count, which.data(), values, address);
    if (result == shim::kGpuInvalidContext) {
        const CurrentContext current(*devices.front());
        result = api.pointer_attributes(count, which.data(), values, address);
    }
    return result == 0;
}

Attributes attributes_of(const Devices& devices, uint64_t address) {
    Attributes found;
    std::array<int, 6> which{static_cast<int>(GpuPointer::memory_type), static_cast<int>(GpuPointer::device),
                             static_cast<int>(GpuPointer::buffer_id),   static_cast<int>(GpuPointer::managed),
                             static_cast<int>(GpuPointer::legacy_ipc),  static_cast<int>(GpuPointer::pool)};
    std::array<void*, 6> values{&found.type,    &found.device,     &found.id,
                                &found.managed, &found.legacy_ipc, static_cast<void*>(&found.pool)};
    return get_attributes(devices, which, values.data(), address) ? found : Attributes{};
}

void close_all(Exported& exported) {
    for (Exported::Piece& piece : exported.pieces) {
        if (piece.fd >= 0) {
            ::close(piece.fd);
        }
    }
}

// Exports the allocations under a range, one after the other.
void export_pieces(const Devices& devices, const Description& first, uint64_t stop, Exported& exported) {
    const GpuApi& api = devices.front()->api;
    for (Description piece = first;; piece = describe(devices, piece.base + piece.size)) {
        if (piece.kind != MemoryKind::device || piece.device != first.device) {
            throw NativeError(Status::access_denied, Reason::bounds, "the range is not all mapped on one device");
        }
        uint64_t handle = 0;
        check(api, api.vmm_retain(&handle, reinterpret_cast<void*>(piece.base)), "the memory cannot be shared");
        int fd = -1;
        const GpuResult result = api.vmm_export(&fd, handle, kDescriptor, 0);
        (void)api.vmm_release(handle);
        if (result != 0) {
            throw NativeError(Status::unsupported, Reason::none,
                              "this memory was not allocated to be shared (" + name_of(api, result) +
                                  "): virtual memory needs the handle type of a file descriptor");
        }
        exported.pieces.push_back({.nbytes = piece.size, .handle = "", .fd = fd});
        if (piece.base + piece.size >= stop) {
            return;
        }
    }
}

// Exports an allocation by its pool pointer, and its pool by a descriptor.
void export_from_pool(const GpuApi& api, void* pool, const Description& allocation, Exported& exported) {
    int fd = -1;
    if (const GpuResult result = api.pool_export(&fd, pool, kDescriptor, 0); result != 0) {
        throw NativeError(Status::unsupported, Reason::none,
                          "its memory pool was not made to be shared (" + name_of(api, result) +
                              "): that of cudaMallocAsync is not; make one whose handle type is a file descriptor, or "
                              "use cudaMalloc or expandable segments");
    }
    shim::GpuPoolPointer pointer{};
    if (const GpuResult result = api.pool_export_pointer(&pointer, allocation.base); result != 0) {
        ::close(fd);
        check(api, result, "the memory cannot be shared");
    }
    exported.pieces.push_back(
        {.nbytes = allocation.size, .handle = std::string(pointer.bytes, sizeof pointer), .fd = -1});
    exported.pieces.push_back({.nbytes = 0, .handle = "", .fd = fd});
}

} // namespace

Description describe(const Devices& devices, uint64_t address) {
    const GpuApi& api = devices.front()->api;
    const Attributes found = attributes_of(devices, address);
    if (found.managed != 0 || (found.type != kHost && found.type != kOnDevice) || found.device < 0 ||
        static_cast<size_t>(found.device) >= devices.size()) {
        return {};
    }
    Description description;
    description.kind = found.type == kHost ? MemoryKind::host : MemoryKind::device;
    description.device = found.type == kHost ? -1 : found.device;
    description.allocation_id = found.id;
    description.allocated_by = found.type == kHost     ? AllocatedBy::unknown
                               : found.pool != nullptr ? AllocatedBy::pool
                               : found.legacy_ipc != 0 ? AllocatedBy::plain
                                                       : AllocatedBy::vmm;
    // The attributes for a range would not do: for virtual memory they give all that was reserved. This thread may have
    // no context, but the device has one, for it has memory.
    const CurrentContext current(*devices.at(static_cast<size_t>(found.device)));
    if (api.address_range(&description.base, &description.size, address) != 0) {
        return {};
    }
    return description;
}

uint64_t allocation_id(const Devices& devices, uint64_t address) {
    uint64_t id = 0;
    const auto which = static_cast<int>(GpuPointer::buffer_id);
    void* value = &id;
    return get_attributes(devices, {&which, 1}, &value, address) ? id : 0;
}

std::vector<Registrable> registrable(DeviceState& device, uint64_t address, size_t nbytes) {
    using Kind = Registrable::Kind;
    std::vector<Registrable> ways;
    const uint64_t page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
    const uint64_t start = address / page * page;
    const uint64_t stop = (address + nbytes + page - 1) / page * page;
    Registrable buffer{.kind = Kind::dma_buf, .buffer = nullptr, .offset = address - start, .why_not = ""};
    const CurrentContext current(device);
    // The attribute makes calls wait for copies that they would otherwise leave running, so that a NIC reads the copied
    // bytes. Virtual memory has no such attribute: there the calls of frameworks are ordered by streams.
    const unsigned on = 1;
    if (device.api.pointer_set != nullptr) {
        (void)device.api.pointer_set(&on, static_cast<int>(GpuPointer::sync_memops), address);
    }
    int fd = -1;
    if (device.api.dma_buf == nullptr) {
        buffer.why_not = "the driver has no dma-buf";
    } else if (const GpuResult result = device.api.dma_buf(&fd, start, stop - start, kDmaBuf, 0); result != 0) {
        buffer.why_not = "the driver exports no dma-buf: " + name_of(device.api, result);
    } else {
        buffer.buffer = std::make_shared<const Descriptor>(fd);
    }
    ways.push_back(std::move(buffer));
    ways.push_back({.kind = Kind::plain, .address = address, .why_not = ""});
    return ways;
}

Exported export_memory(const Devices& devices, uint64_t address, size_t nbytes) {
    const Description first = describe(devices, address);
    if (first.kind != MemoryKind::device) {
        throw NativeError(Status::access_denied, Reason::bounds, "the address is no memory of a device");
    }
    DeviceState& device = *devices.at(static_cast<size_t>(first.device));
    const GpuApi& api = device.api;
    const CurrentContext current(device);
    current.require();
    const std::string kind = api.kind;
    Exported exported{.form = "", // set below
                      .device = device.facts.identity,
                      .process = this_process(),
                      .address = address,
                      .offset = address - first.base,
                      .nbytes = nbytes,
                      .pieces = {}};
    switch (first.allocated_by) {
    case AllocatedBy::plain: {
        if (nbytes > first.size - exported.offset) {
            throw NativeError(Status::access_denied, Reason::bounds, "the range is not one allocation");
        }
        shim::GpuIpcHandle handle{};
        check(api, api.ipc_get(&handle, first.base), "the memory cannot be shared");
        exported.form = kind + "-" + kIpc;
        exported.pieces.push_back({.nbytes = first.size, .handle = std::string(handle.bytes, sizeof handle), .fd = -1});
        return exported;
    }
    case AllocatedBy::vmm:
        exported.form = kind + "-" + kFd;
        try {
            export_pieces(devices, first, address + nbytes, exported);
        } catch (...) { // nobody else owns the descriptors yet
            close_all(exported);
            throw;
        }
        return exported;
    case AllocatedBy::pool:
        if (nbytes > first.size - exported.offset) {
            throw NativeError(Status::access_denied, Reason::bounds, "the range is not one allocation");
        }
        exported.form = kind + "-" + kPool;
        export_from_pool(api, attributes_of(devices, address).pool, first, exported);
        return exported;
    case AllocatedBy::unknown:
        break;
    }
    throw NativeError(Status::unsupported, Reason::none, "the driver does not say how this memory was allocated");
}

} // namespace zerohop::accel::gpu
