// Fills the driver table from HIP's runtime: most functions are CUDA's under other names; this file translates the
// others. Written from AMD's documentation, tried against the library without a device and tested over GPUs in
// software: not verified on hardware.
#include "shim/gpu_functions.hpp"

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
    int (*device_uuid)(GpuUuid*, int);
    int (*stream_device)(void*);
    int (*context_retain)(void**, int);
    int (*context_release)(int);
};

HipFunctions hip_functions; // filled in before any function of the table is called

constexpr int kMemcpyDefault = 4; // hipMemcpyDefault: the addresses tell the kinds of memory

GpuResult error_name(GpuResult error, const char** name) {
    *name = hip_functions.error_name(error);
    return 0;
}

// The bytes of a UUID are characters here. "XX" stands for a device without one, such as the graphics of a processor:
// several may have it.
GpuResult device_uuid(GpuUuid* uuid, int device) {
    const GpuResult result = hip_functions.device_uuid(uuid, device);
    const bool none = uuid->bytes[0] == 'X' || uuid->bytes[0] == 0;
    return result == 0 && none ? kGpuNotSupported : result;
}

// Translates the attributes that our driver asks for; an attribute that AMD does not have reads 0.
GpuResult device_attribute(int* value, int attribute, int device) {
    *value = 0;
    switch (static_cast<GpuAttribute>(attribute)) {
    case GpuAttribute::multiprocessors:
        return hip_functions.device_attribute(value, 63, device);
    case GpuAttribute::capability_major:
        return hip_functions.device_attribute(value, 23, device);
    case GpuAttribute::capability_minor:
        return hip_functions.device_attribute(value, 61, device);
    case GpuAttribute::virtual_memory:
    case GpuAttribute::direct_flush_options:
    case GpuAttribute::direct_ordering:
    case GpuAttribute::dma_buf:
        break;
    }
    return 0;
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

// HIP tells a stream's device, not its context. The stream keeps the context, which needs no reference of ours.
GpuResult stream_context(void* stream, void** context) {
    const int device = hip_functions.stream_device(stream);
    if (device < 0) {
        return kGpuInvalidHandle;
    }
    const GpuResult result = hip_functions.context_retain(context, device);
    if (result == 0) {
        (void)hip_functions.context_release(device);
    }
    return result;
}

void find_functions(Library& library, GpuApi& table) {
    table.kind = "hip";
    find_common_functions(library, table);
    hip_functions.driver_version = table.driver_version;
    hip_functions.device_uuid = table.device_uuid;
    table.device_uuid = &device_uuid;
    hip_functions.context_retain = table.context_retain;
    library.need(hip_functions.context_release, "hipDevicePrimaryCtxRelease");
    library.need(hip_functions.stream_device, "hipGetStreamDeviceId");
    table.stream_context = &stream_context;
    library.need(hip_functions.error_name, "hipGetErrorName");
    table.error_name = &error_name;
    library.need(hip_functions.device_attribute, "hipDeviceGetAttribute");
    table.device_attribute = &device_attribute;
    library.need(hip_functions.pointer_attributes, "hipDrvPointerGetAttributes");
    table.pointer_attributes = &pointer_attributes;
    library.may_have(table.pointer_set, "hipPointerSetAttribute");
    library.need(hip_functions.stream_wait32, "hipStreamWaitValue32");
    table.stream_wait32 = &wait32;
    library.need(hip_functions.copy, "hipMemcpyAsync");
    table.copy = &copy;
}

} // namespace

const Loaded<GpuApi>& hip() {
    static const Loaded<GpuApi> once({"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"}, find_functions);
    return once;
}

} // namespace zerohop::shim
