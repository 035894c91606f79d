#include "shim/gpu_functions.hpp"

#include <string_view>

namespace zerohop::shim {

void find_common_functions(Library& library, GpuApi& table) {
    const bool cuda = std::string_view(table.kind) == "cuda";
    const auto need = [&](auto*& function, const char* cuda_name, const char* hip_name) {
        library.need(function, cuda ? cuda_name : hip_name);
    };
    need(table.init, "cuInit", "hipInit");
    need(table.driver_version, "cuDriverGetVersion", "hipDriverGetVersion");
    need(table.device_count, "cuDeviceGetCount", "hipGetDeviceCount");
    need(table.device_get, "cuDeviceGet", "hipDeviceGet");
    need(table.device_uuid, "cuDeviceGetUuid_v2", "hipDeviceGetUuid");
    need(table.device_bus_id, "cuDeviceGetPCIBusId", "hipDeviceGetPCIBusId");
    need(table.device_memory, "cuDeviceTotalMem_v2", "hipDeviceTotalMem");
    need(table.context_retain, "cuDevicePrimaryCtxRetain", "hipDevicePrimaryCtxRetain");
    need(table.context_push, "cuCtxPushCurrent_v2", "hipCtxPushCurrent");
    need(table.context_pop, "cuCtxPopCurrent_v2", "hipCtxPopCurrent");
    need(table.context_enable_peer, "cuCtxEnablePeerAccess", "hipCtxEnablePeerAccess");
    need(table.context_synchronize, "cuCtxSynchronize", "hipDeviceSynchronize");
    need(table.address_range, "cuMemGetAddressRange_v2", "hipMemGetAddressRange");
    need(table.memory_alloc, "cuMemAlloc_v2", "hipMalloc");
    need(table.memory_free, "cuMemFree_v2", "hipFree");
    need(table.host_alloc, "cuMemHostAlloc", "hipHostMalloc");
    need(table.host_register, "cuMemHostRegister_v2", "hipHostRegister");
    need(table.host_unregister, "cuMemHostUnregister", "hipHostUnregister");
    library.may_have(table.dma_buf, cuda ? "cuMemGetHandleForAddressRange" : "hipMemGetHandleForAddressRange");
    need(table.ipc_get, "cuIpcGetMemHandle", "hipIpcGetMemHandle");
    need(table.ipc_open, "cuIpcOpenMemHandle_v2", "hipIpcOpenMemHandle");
    need(table.ipc_close, "cuIpcCloseMemHandle", "hipIpcCloseMemHandle");
    need(table.vmm_retain, "cuMemRetainAllocationHandle", "hipMemRetainAllocationHandle");
    need(table.vmm_release, "cuMemRelease", "hipMemRelease");
    need(table.vmm_export, "cuMemExportToShareableHandle", "hipMemExportToShareableHandle");
    need(table.vmm_import, "cuMemImportFromShareableHandle", "hipMemImportFromShareableHandle");
    need(table.vmm_reserve, "cuMemAddressReserve", "hipMemAddressReserve");
    need(table.vmm_unreserve, "cuMemAddressFree", "hipMemAddressFree");
    need(table.vmm_map, "cuMemMap", "hipMemMap");
    need(table.vmm_unmap, "cuMemUnmap", "hipMemUnmap");
    need(table.vmm_access, "cuMemSetAccess", "hipMemSetAccess");
    need(table.pool_export, "cuMemPoolExportToShareableHandle", "hipMemPoolExportToShareableHandle");
    need(table.pool_import, "cuMemPoolImportFromShareableHandle", "hipMemPoolImportFromShareableHandle");
    need(table.pool_destroy, "cuMemPoolDestroy", "hipMemPoolDestroy");
    need(table.pool_access, "cuMemPoolSetAccess", "hipMemPoolSetAccess");
    need(table.pool_export_pointer, "cuMemPoolExportPointer", "hipMemPoolExportPointer");
    need(table.pool_import_pointer, "cuMemPoolImportPointer", "hipMemPoolImportPointer");
    need(table.stream_create, "cuStreamCreateWithPriority", "hipStreamCreateWithPriority");
    need(table.stream_destroy, "cuStreamDestroy_v2", "hipStreamDestroy");
    need(table.stream_query, "cuStreamQuery", "hipStreamQuery");
    need(table.stream_capturing, "cuStreamIsCapturing", "hipStreamIsCapturing");
    need(table.stream_wait_event, "cuStreamWaitEvent", "hipStreamWaitEvent");
    // The second version works without a module option, and came with CUDA 12.
    need(table.stream_write32, "cuStreamWriteValue32_v2", "hipStreamWriteValue32");
    need(table.event_create, "cuEventCreate", "hipEventCreateWithFlags");
    need(table.event_destroy, "cuEventDestroy_v2", "hipEventDestroy");
    need(table.event_record, "cuEventRecord", "hipEventRecord");
    need(table.event_query, "cuEventQuery", "hipEventQuery");
    need(table.module_load, "cuModuleLoadData", "hipModuleLoadData");
    need(table.module_function, "cuModuleGetFunction", "hipModuleGetFunction");
    need(table.launch, "cuLaunchKernel", "hipModuleLaunchKernel");
}

} // namespace zerohop::shim
