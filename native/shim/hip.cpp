// Fills the driver table from HIP's runtime: most functions are CUDA's under other names; this file translates the
// others. Written from AMD's documentation and tried against the library without a device: not verified on hardware.
#include "shim/gpu_api.hpp"
#include "shim/library.hpp"

namespace zerohop::shim {

namespace {

// HIP's functions whose signature or meaning differs from the table's.
struct HipFunctions {
    const char* (*error_name)(int);
    int (*device_attribute)(int*, int, int);
    int (*pointer_attributes)(unsigned, int*, void**, void*);
    int (*copy)(void*, const void*, size_t, int, void*);
    int (*stream_wait32)(void*, void*, uint32_t, unsigned, uint32_t);
    int (*driver_version)(int*);
};

HipFunctions hip_functions; // filled in before any function of the table is called

constexpr int kMemcpyDefault = 4; // hipMemcpyDefault: the addresses tell the kinds of memory

GpuResult error_name(GpuResult error, const char** name) {
    *name = hip_functions.error_name(error);
    return 0;
}

// Translates the attributes that our driver asks for; an attribute that AMD does not have reads 0.
GpuResult device_attribute(int* value, int attribute, int device) {
    int hip_attribute = -1;
    switch (static_cast<GpuAttribute>(attribute)) {
    case GpuAttribute::multiprocessors:
        hip_attribute = 63;
        break;
    case GpuAttribute::capability_major:
        hip_attribute = 23;
        break;
    case GpuAttribute::capability_minor:
        hip_attribute = 61;
        break;
    case GpuAttribute::unified_addressing:
    case GpuAttribute::host_pointer_for_registered:
    case GpuAttribute::virtual_memory:
    case GpuAttribute::direct_flush_options:
    case GpuAttribute::direct_ordering:
    case GpuAttribute::dma_buf:
        break;
    }
    *value = 0;
    return hip_attribute < 0 ? 0 : hip_functions.device_attribute(value, hip_attribute, device);
}

GpuResult pointer_attributes(unsigned count, const int* which, void** values, GpuAddress address) {
    const GpuResult result =
        hip_functions.pointer_attributes(count, const_cast<int*>(which), values, reinterpret_cast<void*>(address));
    // Before version 6, HIP counted the kinds of memory from 0.
    static const bool from_zero = [] {
        constexpr int kSix = 60'000'000;
        int version = 0;
        return hip_functions.driver_version(&version) == 0 && version < kSix;
    }();
    for (unsigned i = 0; from_zero && result == 0 && i < count; ++i) {
        if (which[i] == static_cast<int>(GpuPointer::memory_type)) {
            ++*static_cast<unsigned*>(values[i]);
        }
    }
    return result;
}

GpuResult copy(GpuAddress dst, GpuAddress src, size_t nbytes, void* stream) {
    return hip_functions.copy(reinterpret_cast<void*>(dst), reinterpret_cast<const void*>(src), nbytes, kMemcpyDefault,
                              stream);
}

GpuResult wait32(void* stream, GpuAddress address, uint32_t value, unsigned flags) {
    return hip_functions.stream_wait32(stream, reinterpret_cast<void*>(address), value, flags, UINT32_MAX);
}

struct Loaded {
    Loaded() {
        table.kind = "hip";
        library.need(table.init, "hipInit");
        library.need(hip_functions.error_name, "hipGetErrorName");
        table.error_name = &error_name;
        library.need(table.driver_version, "hipDriverGetVersion");
        hip_functions.driver_version = table.driver_version;
        library.need(table.device_count, "hipGetDeviceCount");
        library.need(table.device_get, "hipDeviceGet");
        library.need(table.device_name, "hipDeviceGetName");
        library.need(table.device_uuid, "hipDeviceGetUuid");
        library.need(table.device_bus_id, "hipDeviceGetPCIBusId");
        library.need(table.device_memory, "hipDeviceTotalMem");
        library.need(hip_functions.device_attribute, "hipDeviceGetAttribute");
        table.device_attribute = &device_attribute;
        library.need(table.can_access_peer, "hipDeviceCanAccessPeer");
        library.need(table.context_retain, "hipDevicePrimaryCtxRetain");
        library.need(table.context_push, "hipCtxPushCurrent");
        library.need(table.context_pop, "hipCtxPopCurrent");
        library.need(table.context_synchronize, "hipDeviceSynchronize");
        library.need(table.context_enable_peer, "hipCtxEnablePeerAccess");
        library.need(hip_functions.pointer_attributes, "hipDrvPointerGetAttributes");
        table.pointer_attributes = &pointer_attributes;
        library.need(table.address_range, "hipMemGetAddressRange");
        library.need(table.memory_alloc, "hipMalloc");
        library.need(table.memory_free, "hipFree");
        library.need(table.host_alloc, "hipHostMalloc");
        library.need(table.host_register, "hipHostRegister");
        library.need(table.host_unregister, "hipHostUnregister");
        library.may_have(table.dma_buf, "hipMemGetHandleForAddressRange");
        library.may_have(table.pointer_set, "hipPointerSetAttribute");
        library.need(table.ipc_get, "hipIpcGetMemHandle");
        library.need(table.ipc_open, "hipIpcOpenMemHandle");
        library.need(table.ipc_close, "hipIpcCloseMemHandle");
        library.need(table.vmm_retain, "hipMemRetainAllocationHandle");
        library.need(table.vmm_release, "hipMemRelease");
        library.need(table.vmm_export, "hipMemExportToShareableHandle");
        library.need(table.vmm_import, "hipMemImportFromShareableHandle");
        library.need(table.vmm_reserve, "hipMemAddressReserve");
        library.need(table.vmm_unreserve, "hipMemAddressFree");
        library.need(table.vmm_map, "hipMemMap");
        library.need(table.vmm_unmap, "hipMemUnmap");
        library.need(table.vmm_access, "hipMemSetAccess");
        library.need(table.pool_export, "hipMemPoolExportToShareableHandle");
        library.need(table.pool_import, "hipMemPoolImportFromShareableHandle");
        library.need(table.pool_destroy, "hipMemPoolDestroy");
        library.need(table.pool_access, "hipMemPoolSetAccess");
        library.need(table.pool_export_pointer, "hipMemPoolExportPointer");
        library.need(table.pool_import_pointer, "hipMemPoolImportPointer");
        library.need(table.stream_create, "hipStreamCreateWithPriority");
        library.need(table.stream_destroy, "hipStreamDestroy");
        library.need(table.stream_query, "hipStreamQuery");
        library.need(table.stream_capturing, "hipStreamIsCapturing");
        library.need(table.stream_wait_event, "hipStreamWaitEvent");
        library.need(table.stream_write32, "hipStreamWriteValue32");
        library.need(hip_functions.stream_wait32, "hipStreamWaitValue32");
        table.stream_wait32 = &wait32;
        library.need(table.event_create, "hipEventCreateWithFlags");
        library.need(table.event_destroy, "hipEventDestroy");
        library.need(table.event_record, "hipEventRecord");
        library.need(table.event_query, "hipEventQuery");
        library.need(hip_functions.copy, "hipMemcpyAsync");
        table.copy = &copy;
        library.need(table.module_load, "hipModuleLoadData");
        library.need(table.module_unload, "hipModuleUnload");
        library.need(table.module_function, "hipModuleGetFunction");
        library.need(table.launch, "hipModuleLaunchKernel");
    }

    static constexpr const char* kNames[] = {"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"};
    Library library{kNames, 3};
    GpuApi table{};
};

const Loaded& loaded() {
    static const Loaded once;
    return once;
}

} // namespace

const GpuApi* hip() {
    return loaded().library ? &loaded().table : nullptr;
}

const std::string& why_no_hip() {
    return loaded().library.why_not();
}

} // namespace zerohop::shim
