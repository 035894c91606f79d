// The driver interface of GPUs as a table of functions: CUDA's driver API, and its counterparts in HIP.
//
// It is written from the vendors' documentation, so that none of their headers is needed to build. Types have the
// layout that both libraries give them; the numbers of attributes and flags are equal in both unless a comment says
// otherwise.
#pragma once

#include "shim/library.hpp"

#include <cstddef>
#include <cstdint>

namespace zerohop::shim {

using GpuResult = int; // 0: success
using GpuAddress = uint64_t;

struct GpuUuid {
    unsigned char bytes[16];
};
struct GpuIpcHandle {
    char bytes[64];
};
struct GpuPoolPointer {
    char bytes[64];
};
struct GpuLocation {
    int type = 1; // CU_MEM_LOCATION_TYPE_DEVICE
    int id = 0;
};
struct GpuAccess {
    GpuLocation location;
    int flags = 3; // read and write
};

struct GpuCopyAttributes { // for the copies of a batch
    int order = 1;         // sources are read in stream order
    GpuLocation src{.type = 0, .id = 0};
    GpuLocation dst{.type = 0, .id = 0}; // hints, used for managed memory only
    unsigned flags = 0;
};

enum class GpuAttribute : int { // device attributes
    multiprocessors = 16,
    capability_major = 75,
    capability_minor = 76,
    virtual_memory = 102,
    direct_flush_options = 117, // bit 0: the host can flush a NIC's writes
    direct_ordering = 118,      // 0: nobody sees a NIC's writes in order; 100: the device itself does
    dma_buf = 124,
};
enum class GpuPointer : int { // attributes of an address
    memory_type = 2,          // 1: host, 2: device
    sync_memops = 6,
    buffer_id = 7,
    managed = 8,
    device = 9,
    legacy_ipc = 10,
    pool = 17,
};

struct GpuApi {
    const char* kind; // "cuda", "hip"

    GpuResult (*init)(unsigned);
    GpuResult (*error_name)(GpuResult, const char**);
    GpuResult (*driver_version)(int*);
    GpuResult (*device_count)(int*);
    GpuResult (*device_get)(int*, int);
    GpuResult (*device_uuid)(GpuUuid*, int);
    GpuResult (*device_bus_id)(char*, int, int);
    GpuResult (*device_memory)(size_t*, int);
    GpuResult (*device_attribute)(int*, int, int);

    GpuResult (*context_retain)(void**, int);
    GpuResult (*context_push)(void*);
    GpuResult (*context_pop)(void**);
    GpuResult (*context_enable_peer)(void*, unsigned);
    GpuResult (*context_synchronize)();
    GpuResult (*context_record)(void*, void*); // null if the library does not have it

    GpuResult (*pointer_attributes)(unsigned, const int*, void**, GpuAddress);
    GpuResult (*address_range)(GpuAddress*, size_t*, GpuAddress);
    GpuResult (*memory_alloc)(GpuAddress*, size_t);
    GpuResult (*memory_free)(GpuAddress);
    GpuResult (*host_alloc)(void**, size_t, unsigned);
    GpuResult (*host_register)(void*, size_t, unsigned);
    GpuResult (*host_unregister)(void*);
    // Null if the library does not have it.
    GpuResult (*dma_buf)(int*, GpuAddress, size_t, int, unsigned long long);
    GpuResult (*pointer_set)(const void*, int, GpuAddress);
    GpuResult (*flush_direct)(int, int);

    GpuResult (*ipc_get)(GpuIpcHandle*, GpuAddress);
    GpuResult (*ipc_open)(GpuAddress*, GpuIpcHandle, unsigned);
    GpuResult (*ipc_close)(GpuAddress);
    GpuResult (*vmm_retain)(uint64_t*, void*);
    GpuResult (*vmm_release)(uint64_t);
    GpuResult (*vmm_export)(void*, uint64_t, int, unsigned long long);
    GpuResult (*vmm_import)(uint64_t*, void*, int);
    GpuResult (*vmm_reserve)(GpuAddress*, size_t, size_t, GpuAddress, unsigned long long);
    GpuResult (*vmm_unreserve)(GpuAddress, size_t);
    GpuResult (*vmm_map)(GpuAddress, size_t, size_t, uint64_t, unsigned long long);
    GpuResult (*vmm_unmap)(GpuAddress, size_t);
    GpuResult (*vmm_access)(GpuAddress, size_t, const GpuAccess*, size_t);
    GpuResult (*pool_export)(void*, void*, int, unsigned long long);
    GpuResult (*pool_import)(void**, void*, int, unsigned long long);
    GpuResult (*pool_destroy)(void*);
    GpuResult (*pool_access)(void*, const GpuAccess*, size_t);
    GpuResult (*pool_export_pointer)(GpuPoolPointer*, GpuAddress);
    GpuResult (*pool_import_pointer)(GpuAddress*, void*, GpuPoolPointer*);

    GpuResult (*stream_create)(void**, unsigned, int);
    GpuResult (*stream_destroy)(void*);
    GpuResult (*stream_query)(void*);
    GpuResult (*stream_context)(void*, void**);
    GpuResult (*stream_capturing)(void*, int*);
    GpuResult (*stream_wait_event)(void*, void*, unsigned);
    GpuResult (*stream_write32)(void*, GpuAddress, uint32_t, unsigned);
    GpuResult (*stream_wait32)(void*, GpuAddress, uint32_t, unsigned); // 0: until word - value, signed, is not negative
    GpuResult (*event_create)(void**, unsigned);
    GpuResult (*event_destroy)(void*);
    GpuResult (*event_record)(void*, void*);
    GpuResult (*event_query)(void*);
    GpuResult (*copy)(GpuAddress, GpuAddress, size_t, void*);
    // Null if the library does not have it.
    GpuResult (*copy_batch)(const GpuAddress*, const GpuAddress*, const size_t*, size_t, const GpuCopyAttributes*,
                            const size_t*, size_t, size_t*, void*);

    GpuResult (*module_load)(void**, const void*);
    GpuResult (*module_function)(void**, void*, const char*);
    // Loads a kernel, which otherwise is loaded with its first launch. Null if the library does not have it.
    GpuResult (*function_load)(void*);
    GpuResult (*launch)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**,
                        void**);
};

// Error codes that need handling of their own; the numbers are equal in both libraries.
inline constexpr GpuResult kGpuInvalidValue = 1;
inline constexpr GpuResult kGpuOutOfMemory = 2;
inline constexpr GpuResult kGpuNoDevice = 100;
inline constexpr GpuResult kGpuInvalidDevice = 101; // HIP's code for "no device" at initialization
inline constexpr GpuResult kGpuInvalidContext = 201;
inline constexpr GpuResult kGpuPeerAccessUnsupported = 217;
inline constexpr GpuResult kGpuNotReady = 600;
inline constexpr GpuResult kGpuPeerAccessEnabled = 704;
inline constexpr GpuResult kGpuHostRegistered = 712;
// Errors of a request that the driver, the device or this image cannot serve, or of an invalid handle.
inline constexpr GpuResult kGpuInvalidImage = 200;
inline constexpr GpuResult kGpuNoBinary = 209;
inline constexpr GpuResult kGpuUnsupportedPtx = 222;
inline constexpr GpuResult kGpuInvalidHandle = 400;
inline constexpr GpuResult kGpuNotPermitted = 800;
inline constexpr GpuResult kGpuNotSupported = 801;
// The range of errors for a stream, or the default stream, that cannot be used because of a capture into a graph.
inline constexpr GpuResult kGpuFirstCapture = 900;
inline constexpr GpuResult kGpuLastCapture = 908;

// Flags of the functions above.
inline constexpr unsigned kGpuPortable = 1;       // host memory usable in all contexts
inline constexpr unsigned kGpuNoTiming = 2;       // events
inline constexpr unsigned kGpuGreaterOrEqual = 0; // waits for words

// CUDA's table, from libcuda.so.1.
[[nodiscard]] const Loaded<GpuApi>& cuda();
// HIP's table, from libamdhip64. Not verified on hardware.
[[nodiscard]] const Loaded<GpuApi>& hip();

} // namespace zerohop::shim
