#include "shim/cufile.hpp"

#include <cstdlib>

namespace zerohop::shim {

const Loaded<CuFileApi>& cufile() {
    // The second is where CUDA's toolkit lies if the loader was not told of it.
    static const Loaded<CuFileApi> once({"libcufile.so.0", "/usr/local/cuda/lib64/libcufile.so.0"},
                                        [](Library& library, CuFileApi& table) {
                                            library.need(table.driver_open, "cuFileDriverOpen");
                                            library.need(table.set_switch, "cuFileSetParameterBool");
                                            library.need(table.get_switch, "cuFileGetParameterBool");
                                            library.need(table.handle_register, "cuFileHandleRegister");
                                            library.need(table.handle_deregister, "cuFileHandleDeregister");
                                            library.need(table.read, "cuFileRead");
                                            library.need(table.write, "cuFileWrite");
                                        });
    return once;
}

std::string cufile_name(int code) {
    const int number = std::abs(code);
    switch (number) {
    case 5001:
        return "CU_FILE_DRIVER_NOT_INITIALIZED";
    case 5004:
        return "CU_FILE_DRIVER_VERSION_MISMATCH";
    case 5005:
        return "CU_FILE_DRIVER_VERSION_READ_ERROR";
    case 5006:
        return "CU_FILE_DRIVER_CLOSING";
    case 5007:
        return "CU_FILE_PLATFORM_NOT_SUPPORTED";
    case 5008:
        return "CU_FILE_IO_NOT_SUPPORTED";
    case 5009:
        return "CU_FILE_DEVICE_NOT_SUPPORTED";
    case 5010:
        return "CU_FILE_NVFS_DRIVER_ERROR";
    case 5011:
        return "CU_FILE_CUDA_DRIVER_ERROR";
    case 5012:
        return "CU_FILE_CUDA_POINTER_INVALID";
    case 5013:
        return "CU_FILE_CUDA_MEMORY_TYPE_INVALID";
    case 5014:
        return "CU_FILE_CUDA_POINTER_RANGE_ERROR";
    case 5018:
        return "CU_FILE_INVALID_FILE_TYPE";
    case 5019:
        return "CU_FILE_INVALID_FILE_OPEN_FLAG";
    case 5020:
        return "CU_FILE_DIO_NOT_SET";
    case 5022:
        return "CU_FILE_INVALID_VALUE";
    case 5025:
        return "CU_FILE_PERMISSION_DENIED";
    case 5028:
        return "CU_FILE_HANDLE_ALREADY_REGISTERED";
    case 5033:
        return "CU_FILE_NVFS_SETUP_ERROR";
    case 5034:
        return "CU_FILE_IO_DISABLED";
    case 5036:
        return "CU_FILE_GPU_MEMORY_PINNING_FAILED";
    case 5044:
        return "CU_FILE_IO_ERROR";
    case kCuFileNoContext:
        return "CU_FILE_INVALID_CONTEXT_ERROR";
    default:
        return "error " + std::to_string(number);
    }
}

} // namespace zerohop::shim
