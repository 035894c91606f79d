// Implements memory pools as far as they are shared: an allocation is one of cuMemAlloc that knows its pool.
#include "fake_cuda/state.hpp"

#include <set>
#include <sys/mman.h>

using namespace fake;

namespace {

struct Properties { // the first fields of CUmemPoolProps
    int allocated = 0;
    int handle_types = 0;
    int location = 0;
    int device = 0;
};

struct Pool {
    bool shareable = false;
    bool imported = false;
    std::set<int> access; // devices with access, if imported
};

} // namespace

FAKE_CUDA cuMemAlloc_v2(uint64_t* address, size_t nbytes);

FAKE_CUDA cuMemPoolCreate(void** pool, const Properties* properties) {
    *pool = new Pool{.shareable = properties->handle_types == 1, .imported = false, .access = {properties->device}};
    return kSuccess;
}

FAKE_CUDA cuMemPoolDestroy(void* pool) {
    delete static_cast<Pool*>(pool);
    return kSuccess;
}

FAKE_CUDA cuMemAllocFromPoolAsync(uint64_t* address, size_t nbytes, void* pool, void* /*stream*/) {
    const int result = cuMemAlloc_v2(address, nbytes);
    if (result == kSuccess) {
        const std::lock_guard lock(state().mutex);
        state().ranges.at(*address).pool = pool;
    }
    return result;
}

FAKE_CUDA cuMemPoolExportToShareableHandle(int* handle, void* pool, int kind, unsigned long long /*flags*/) {
    if (kind != 1 || !static_cast<Pool*>(pool)->shareable) {
        return kInvalidValue;
    }
    *handle = memfd_create("fake_cuda pool", MFD_CLOEXEC);
    return *handle < 0 ? kOutOfMemory : kSuccess;
}

FAKE_CUDA cuMemPoolImportFromShareableHandle(void** pool, void* /*handle*/, int kind, unsigned long long /*flags*/) {
    if (kind != 1) {
        return kInvalidValue;
    }
    *pool = new Pool{.shareable = false, .imported = true, .access = {}};
    return kSuccess;
}

FAKE_CUDA cuMemPoolSetAccess(void* pool, const int* access, size_t count) {
    for (size_t i = 0; i < count; ++i) {
        static_cast<Pool*>(pool)->access.insert(access[3 * i + 1]);
    }
    return kSuccess;
}

FAKE_CUDA cuMemPoolExportPointer(SharedHandle* handle, uint64_t address) {
    const std::lock_guard lock(state().mutex);
    const auto found = state().ranges.find(address); // the start of an allocation, as the real driver demands
    if (found == state().ranges.end() || found->second.pool == nullptr) {
        return kInvalidValue;
    }
    return give(address, found->second, *handle);
}

FAKE_CUDA cuMemPoolImportPointer(uint64_t* address, void* pool, const SharedHandle* handle) {
    const Context* const context = current();
    const Pool& from = *static_cast<Pool*>(pool);
    if (context == nullptr) {
        return kInvalidContext;
    }
    if (!from.imported || !from.access.contains(context->device)) {
        return kInvalidValue;
    }
    return take(*handle, context->device, *address);
}
