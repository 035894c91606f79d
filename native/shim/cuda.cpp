// Fills the driver table from libcuda.
#include "shim/gpu_functions.hpp"

namespace zerohop::shim {

const Loaded<GpuApi>& cuda() {
    static const Loaded<GpuApi> once({"libcuda.so.1"}, [](Library& library, GpuApi& table) {
        table.kind = "cuda";
        find_common_functions(library, table);
        library.need(table.error_name, "cuGetErrorName");
        library.need(table.device_attribute, "cuDeviceGetAttribute");
        library.may_have(table.context_record, "cuCtxRecordEvent"); // came with CUDA 12.5
        library.need(table.pointer_attributes, "cuPointerGetAttributes");
        library.need(table.pointer_set, "cuPointerSetAttribute");
        library.may_have(table.flush_direct, "cuFlushGPUDirectRDMAWrites");
        library.need(table.stream_context, "cuStreamGetCtx");
        // Its second version, for the reason that stream_write32 has.
        library.need(table.stream_wait32, "cuStreamWaitValue32_v2");
        library.need(table.copy, "cuMemcpyAsync");
        library.may_have(table.function_load, "cuFuncLoad");      // came with CUDA 12.4
        library.may_have(table.copy_batch, "cuMemcpyBatchAsync"); // came with CUDA 12.8
    });
    return once;
}

} // namespace zerohop::shim
