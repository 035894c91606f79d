// Fills the driver table from libcuda.
#include "shim/gpu_api.hpp"
#include "shim/library.hpp"

namespace zerohop::shim {

namespace {

struct Loaded {
    Loaded() {
        table.kind = "cuda";
        library.need(table.init, "cuInit");
        library.need(table.error_name, "cuGetErrorName");
        library.need(table.driver_version, "cuDriverGetVersion");
        library.need(table.device_count, "cuDeviceGetCount");
        library.need(table.device_get, "cuDeviceGet");
        library.need(table.device_name, "cuDeviceGetName");
        library.need(table.device_uuid, "cuDeviceGetUuid_v2");
        library.need(table.device_bus_id, "cuDeviceGetPCIBusId");
        library.need(table.device_memory, "cuDeviceTotalMem_v2");
        library.need(table.device_attribute, "cuDeviceGetAttribute");
        library.need(table.can_access_peer, "cuDeviceCanAccessPeer");
        library.need(table.context_retain, "cuDevicePrimaryCtxRetain");
        library.need(table.context_push, "cuCtxPushCurrent_v2");
        library.need(table.context_pop, "cuCtxPopCurrent_v2");
        library.need(table.context_enable_peer, "cuCtxEnablePeerAccess");
        library.need(table.context_synchronize, "cuCtxSynchronize");
        library.may_have(table.context_record, "cuCtxRecordEvent"); // came with CUDA 12.5
        library.need(table.pointer_attributes, "cuPointerGetAttributes");
        library.need(table.address_range, "cuMemGetAddressRange_v2");
        library.need(table.memory_alloc, "cuMemAlloc_v2");
        library.need(table.memory_free, "cuMemFree_v2");
        library.need(table.host_alloc, "cuMemHostAlloc");
        library.need(table.host_register, "cuMemHostRegister_v2");
        library.need(table.host_unregister, "cuMemHostUnregister");
        library.may_have(table.dma_buf, "cuMemGetHandleForAddressRange");
        library.need(table.pointer_set, "cuPointerSetAttribute");
        library.may_have(table.flush_direct, "cuFlushGPUDirectRDMAWrites");
        library.need(table.ipc_get, "cuIpcGetMemHandle");
        library.need(table.ipc_open, "cuIpcOpenMemHandle_v2");
        library.need(table.ipc_close, "cuIpcCloseMemHandle");
        library.need(table.vmm_retain, "cuMemRetainAllocationHandle");
        library.need(table.vmm_release, "cuMemRelease");
        library.need(table.vmm_export, "cuMemExportToShareableHandle");
        library.need(table.vmm_import, "cuMemImportFromShareableHandle");
        library.need(table.vmm_reserve, "cuMemAddressReserve");
        library.need(table.vmm_unreserve, "cuMemAddressFree");
        library.need(table.vmm_map, "cuMemMap");
        library.need(table.vmm_unmap, "cuMemUnmap");
        library.need(table.vmm_access, "cuMemSetAccess");
        library.need(table.pool_export, "cuMemPoolExportToShareableHandle");
        library.need(table.pool_import, "cuMemPoolImportFromShareableHandle");
        library.need(table.pool_destroy, "cuMemPoolDestroy");
        library.need(table.pool_access, "cuMemPoolSetAccess");
        library.need(table.pool_export_pointer, "cuMemPoolExportPointer");
        library.need(table.pool_import_pointer, "cuMemPoolImportPointer");
        library.need(table.stream_create, "cuStreamCreateWithPriority");
        library.need(table.stream_destroy, "cuStreamDestroy_v2");
        library.need(table.stream_query, "cuStreamQuery");
        library.need(table.stream_context, "cuStreamGetCtx");
        library.need(table.stream_capturing, "cuStreamIsCapturing");
        library.need(table.stream_wait_event, "cuStreamWaitEvent");
        // The second version works without a module option, and came with CUDA 12.
        library.need(table.stream_write32, "cuStreamWriteValue32_v2");
        library.need(table.stream_wait32, "cuStreamWaitValue32_v2");
        library.need(table.event_create, "cuEventCreate");
        library.need(table.event_destroy, "cuEventDestroy_v2");
        library.need(table.event_record, "cuEventRecord");
        library.need(table.event_query, "cuEventQuery");
        library.need(table.copy, "cuMemcpyAsync");
        library.may_have(table.copy_batch, "cuMemcpyBatchAsync"); // came with CUDA 12.8
        library.need(table.module_load, "cuModuleLoadData");
        library.need(table.module_unload, "cuModuleUnload");
        library.need(table.module_function, "cuModuleGetFunction");
        library.need(table.launch, "cuLaunchKernel");
    }

    static constexpr const char* kNames[] = {"libcuda.so.1"};
    Library library{kNames, 1};
    GpuApi table{};
};

const Loaded& loaded() {
    static const Loaded once;
    return once;
}

} // namespace

const GpuApi* cuda() {
    return loaded().library ? &loaded().table : nullptr;
}

const std::string& why_no_cuda() {
    return loaded().library.why_not();
}

} // namespace zerohop::shim
