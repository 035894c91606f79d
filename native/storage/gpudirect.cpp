#include "storage/gpudirect.hpp"

#include "accel/driver.hpp"

#include <cerrno>

namespace zerohop::storage {

namespace {

// Returns the words for a call that has failed.
std::string failed(const char* call, shim::CuFileError error) {
    std::string told = std::string(call) + ": " + shim::cufile_name(error.code);
    if (error.cuda_code != 0) {
        told += ", CUDA's error " + std::to_string(error.cuda_code);
    }
    return told;
}

} // namespace

CuFile& CuFile::of_process() {
    // Not destroyed: the library may be in use until the process has ended.
    static CuFile* const one = new CuFile(shim::cufile());
    return *one;
}

const std::string& CuFile::why_not() {
    opened_.run([this] { why_not_ = library_ ? open() : library_.why_not(); });
    return why_not_;
}

std::string CuFile::open() const {
    const shim::CuFileApi& api = *library_;
    // If another library has opened the driver, it has chosen, and the answer is looked at below.
    for (const auto each : {shim::CuFileSwitch::allow_compat_mode, shim::CuFileSwitch::force_compat_mode}) {
        const shim::CuFileError error = api.set_switch(each, false);
        if (error.code != 0 && error.code != shim::kCuFileAlreadyOpen) {
            return failed("cuFileSetParameterBool", error);
        }
    }
    const shim::CuFileError error = api.driver_open();
    if (error.code != 0 && error.code != shim::kCuFileAlreadyOpen) {
        return failed("cuFileDriverOpen", error);
    }
    for (const auto each : {shim::CuFileSwitch::allow_compat_mode, shim::CuFileSwitch::force_compat_mode}) {
        bool on = true;
        if (const shim::CuFileError asked = api.get_switch(each, &on); asked.code != 0) {
            return failed("cuFileGetParameterBool", asked);
        }
        if (on) {
            return "cuFile is open in this process with its compatibility mode, in which bytes may pass through host "
                   "memory without a word";
        }
    }
    return "";
}

std::unique_ptr<GpuFile> GpuFile::open(CuFile& library, int fd, std::string& why) {
    why = library.why_not();
    if (!why.empty()) {
        return nullptr;
    }
    shim::CuFileDescription file;
    file.fd = fd;
    void* handle = nullptr;
    const shim::CuFileError error = library.api().handle_register(&handle, &file);
    if (error.code != 0) {
        why = failed("cuFileHandleRegister", error);
        return nullptr;
    }
    return std::make_unique<GpuFile>(library, handle);
}

int32_t GpuFile::carry_out(const Job& job) const {
    Outcome why;
    const std::shared_ptr<const void> current = job.device->enter(why);
    if (!why.ok()) {
        return -shim::kCuFileNoContext;
    }
    const auto offset = static_cast<off_t>(job.offset);
    errno = 0;
    const ssize_t moved = job.write ? library_.api().write(handle_, job.data, job.nbytes, offset, 0)
                                    : library_.api().read(handle_, job.data, job.nbytes, offset, 0);
    if (moved == -1) {
        return errno != 0 ? -errno : -EIO;
    }
    return static_cast<int32_t>(moved);
}

} // namespace zerohop::storage
