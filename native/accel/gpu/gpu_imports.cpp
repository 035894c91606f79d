// Maps memory of other processes under addresses of this one.
#include "accel/gpu/gpu_memory.hpp"
#include "accel/gpu/memory_forms.hpp"
#include "accel/idle_calls.hpp"

#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <utility>

namespace zerohop::accel::gpu {

namespace {

using shim::GpuPointer;

constexpr unsigned kLazyPeerAccess = 1;
constexpr size_t kHandleBytes = sizeof(shim::GpuIpcHandle);
static_assert(sizeof(shim::GpuPoolPointer) == kHandleBytes);

// Enabling peer access between contexts does not cover pools.
GpuResult give_access(const GpuApi& api, void* pool, int device) {
    const shim::GpuAccess access{.location = {.type = 1, .id = device}, .flags = 3}; // a device: read and write
    return api.pool_access(pool, &access, 1);
}

void* pool_of(const GpuApi& api, uint64_t address) {
    void* pool = nullptr;
    const int which = static_cast<int>(GpuPointer::pool);
    void* value = static_cast<void*>(&pool);
    return api.pointer_attributes(1, &which, &value, address) == 0 ? pool : nullptr;
}

// Memory of another process. Each device gets access at its first open(); any failure but want of memory is taken for a
// missing link.
class ForeignImport : public Imported {
public:
    ForeignImport(const Devices& all, const Exported& exported)
        : devices(all), api(all.front()->api), offset_(exported.offset) {}

    Outcome open(int device, uint64_t& address) final {
        const std::lock_guard lock(mutex_);
        auto found = bases.find(device);
        if (found == bases.end()) {
            const CurrentContext current(*devices.at(static_cast<size_t>(device)));
            if (!current.ok()) {
                return current.outcome();
            }
            uint64_t base = 0;
            if (const GpuResult result = give_access_to(device, base); result != 0) {
                return result == shim::kGpuOutOfMemory ? outcome_of(result)
                                                       : Outcome{Status::unsupported, Reason::no_peer_link};
            }
            found = bases.emplace(device, base).first;
        }
        address = found->second + offset_;
        return {};
    }

protected:
    // Called with the device's context current; `base`: where the memory begins for it.
    virtual GpuResult give_access_to(int device, uint64_t& base) = 0;

    const Devices devices;
    const GpuApi& api;
    std::map<int, uint64_t> bases; // of the devices that have access

private:
    const uint64_t offset_;
    std::mutex mutex_;
};

// An allocation of another process, imported by an IPC handle: each device opens it in its own context.
class IpcImport final : public ForeignImport {
public:
    IpcImport(const Devices& devices, const Exported& exported) : ForeignImport(devices, exported) {
        std::memcpy(&handle_, exported.pieces[0].handle.data(), sizeof handle_);
    }
    ~IpcImport() override {
        if (bases.empty()) {
            return;
        }
        IdleCalls::of_process().later([devices = devices, bases = std::move(bases)] {
            for (const auto& [device, address] : bases) {
                const CurrentContext current(*devices.at(static_cast<size_t>(device)));
                if (current.ok()) {
                    (void)devices.front()->api.ipc_close(address);
                }
            }
        });
    }

private:
    GpuResult give_access_to(int /*device*/, uint64_t& base) override {
        return api.ipc_open(&base, handle_, kLazyPeerAccess);
    }

    shim::GpuIpcHandle handle_{};
};

// Allocations of another process, imported by descriptors: mapped side by side, once, and each device is given access.
class FdImport final : public ForeignImport {
public:
    FdImport(const Devices& devices, const Exported& exported) : ForeignImport(devices, exported) {
        try {
            map(exported);
        } catch (...) { // the constructor fails, so that the destructor does not run
            unmap();
            throw;
        }
    }
    ~FdImport() override { unmap(); }

private:
    GpuResult give_access_to(int device, uint64_t& base) override {
        const shim::GpuAccess access{.location = {.type = 1, .id = device}, .flags = 3}; // as in give_access()
        base = base_;
        return api.vmm_access(base_, reserved_, &access, 1);
    }

    void map(const Exported& exported) {
        size_t total = 0;
        for (const Exported::Piece& piece : exported.pieces) {
            total += piece.nbytes;
        }
        check(api, api.vmm_reserve(&base_, total, 0, 0, 0), "no addresses for a peer's memory");
        reserved_ = total;
        for (const Exported::Piece& piece : exported.pieces) {
            uint64_t handle = 0;
            check(api, api.vmm_import(&handle, reinterpret_cast<void*>(static_cast<intptr_t>(piece.fd)), kDescriptor),
                  "a peer's memory cannot be imported");
            const GpuResult result = api.vmm_map(base_ + mapped_, piece.nbytes, 0, handle, 0);
            (void)api.vmm_release(handle); // the mapping keeps the allocation alive
            check(api, result, "a peer's memory cannot be mapped");
            mapped_ += piece.nbytes;
            sizes_.push_back(piece.nbytes);
        }
    }

    void unmap() {
        uint64_t at = base_;
        for (const size_t size : sizes_) {
            (void)api.vmm_unmap(at, size);
            at += size;
        }
        if (reserved_ != 0) {
            (void)api.vmm_unreserve(base_, reserved_);
        }
    }

    uint64_t base_ = 0;
    size_t reserved_ = 0;
    size_t mapped_ = 0;
    std::vector<size_t> sizes_;
};

// An allocation of another process's memory pool: each device is given access to the pool.
class PoolImport final : public ForeignImport {
public:
    PoolImport(const Devices& devices, const Exported& exported) : ForeignImport(devices, exported) {
        std::memcpy(&pointer_, exported.pieces[0].handle.data(), sizeof pointer_);
        const CurrentContext current(*devices.front());
        current.require();
        void* const fd = reinterpret_cast<void*>(static_cast<intptr_t>(exported.pieces[1].fd));
        check(api, api.pool_import(&pool_, fd, kDescriptor, 0), "a peer's memory pool cannot be imported");
    }
    ~PoolImport() override {
        if (base_ != 0) {
            const CurrentContext current(*devices.at(static_cast<size_t>(opened_by_)));
            if (current.ok()) {
                (void)api.memory_free(base_);
            }
        }
        (void)api.pool_destroy(pool_);
    }

private:
    GpuResult give_access_to(int device, uint64_t& base) override {
        GpuResult result = give_access(api, pool_, device);
        if (result == 0 && base_ == 0) {
            result = api.pool_import_pointer(&base_, pool_, &pointer_);
            opened_by_ = device;
        }
        base = base_;
        return result;
    }

    shim::GpuPoolPointer pointer_{};
    void* pool_ = nullptr;
    uint64_t base_ = 0;
    int opened_by_ = 0;
};

// Memory of this process itself, under its own address. Two pieces: a pool pointer, and its pool.
class SameProcessImport final : public Imported {
public:
    SameProcessImport(const Devices& devices, const Exported& exported)
        : devices_(devices), owner_(exported.device), address_(exported.address), pooled_(exported.pieces.size() == 2) {
    }
    Outcome open(int device, uint64_t& address) override {
        DeviceState& state = *devices_.at(static_cast<size_t>(device));
        for (const auto& other : devices_) {
            if (other->facts.identity == owner_ && other->index != device) {
                Outcome outcome;
                void* const theirs = other->context(outcome);
                const CurrentContext current(state);
                if (theirs == nullptr || !current.ok()) {
                    return theirs == nullptr ? outcome : current.outcome();
                }
                GpuResult result = state.api.context_enable_peer(theirs, 0);
                result = result == shim::kGpuPeerAccessEnabled ? 0 : result;
                if (result == 0 && pooled_) {
                    result = give_access(state.api, pool_of(state.api, address_), device);
                }
                if (result != 0) {
                    return {Status::unsupported, Reason::no_peer_link};
                }
            }
        }
        address = address_;
        return {};
    }

private:
    const Devices devices_;
    const std::string owner_;
    const uint64_t address_;
    const bool pooled_;
};

} // namespace

uint64_t this_process() {
    static const uint64_t number = [] {
        std::random_device random;
        return (static_cast<uint64_t>(random()) << 32 | random()) >> 1;
    }();
    return number;
}

std::shared_ptr<Imported> import_memory(const Devices& devices, const Exported& exported) {
    if (devices.empty()) {
        throw NativeError(Status::unsupported, Reason::no_peer_link, "this process sees no device");
    }
    const std::string form = exported.form.substr(exported.form.find('-') + 1);
    size_t total = 0;
    const bool pooled = form == kPool && exported.pieces.size() == 2;
    for (const Exported::Piece& piece : exported.pieces) {
        const bool by_handle = form == kIpc || (pooled && &piece == exported.pieces.data());
        const bool fits = by_handle ? piece.handle.size() == kHandleBytes : piece.fd >= 0;
        const bool is_pool = pooled && !by_handle; // the only piece that stands for no bytes
        if (!fits || (piece.nbytes == 0) != is_pool || piece.nbytes > SIZE_MAX - total) {
            throw NativeError(Status::protocol, Reason::malformed, "no memory of a GPU");
        }
        total += piece.nbytes;
    }
    if (exported.offset > total || exported.nbytes > total - exported.offset) {
        throw NativeError(Status::protocol, Reason::malformed, "a peer's memory is smaller than it says");
    }
    if (pooled || (form == kIpc && exported.pieces.size() == 1)) {
        if (exported.process == this_process()) {
            return std::make_shared<SameProcessImport>(devices, exported);
        }
        if (pooled) {
            return std::make_shared<PoolImport>(devices, exported);
        }
        return std::make_shared<IpcImport>(devices, exported);
    }
    if (form == kFd && !exported.pieces.empty()) {
        return std::make_shared<FdImport>(devices, exported);
    }
    throw NativeError(Status::protocol, Reason::malformed, "memory shared as " + exported.form);
}

} // namespace zerohop::accel::gpu
