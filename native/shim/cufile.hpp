// NVIDIA's library for GPUDirect Storage, cuFile, as a table of functions. It is written from the library's
// documentation, so that none of its headers is needed to build. Not verified on hardware.
#pragma once

#include "shim/library.hpp"

#include <cstddef>
#include <string>
#include <sys/types.h>

namespace zerohop::shim {

struct CuFileError {
    int code = 0;      // 0: success; otherwise a CuFileCode
    int cuda_code = 0; // of CUDA's driver, if `code` says that this has failed
};

// CUfileDescr_t, of a descriptor of Linux.
struct CuFileDescription {
    int type = 1; // CU_FILE_HANDLE_TYPE_OPAQUE_FD
    union {
        int fd;
        void* handle;
    };
    const void* functions = nullptr; // of file systems in user space
};

// CUFileBoolConfigParameter_t
enum class CuFileSwitch : int {
    allow_compat_mode = 1, // bytes may pass through host memory
    force_compat_mode = 2,
};

// Codes that need handling of their own. Reads and writes return them with a minus sign.
inline constexpr int kCuFileFirst = 5000;
inline constexpr int kCuFileAlreadyOpen = 5026;
inline constexpr int kCuFileNoContext = 5047;

struct CuFileApi {
    CuFileError (*driver_open)();
    CuFileError (*set_switch)(CuFileSwitch, bool);
    CuFileError (*get_switch)(CuFileSwitch, bool*);
    CuFileError (*handle_register)(void**, CuFileDescription*);
    void (*handle_deregister)(void*);
    // The address is the sum of the base and the last offset. They return bytes, -1 with errno, or a negative code.
    ssize_t (*read)(void*, void*, size_t, off_t, off_t);
    ssize_t (*write)(void*, const void*, size_t, off_t, off_t);
};

// Returns the table of libcufile.so.0; none where there is no library, or an old one that no program can tell to keep
// away from host memory.
[[nodiscard]] const Loaded<CuFileApi>& cufile();
// Returns the library's name of a code, without its sign.
[[nodiscard]] std::string cufile_name(int code);

} // namespace zerohop::shim
