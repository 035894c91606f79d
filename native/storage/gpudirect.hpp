// Moves bytes between files and memory of NVIDIA's GPUs without host memory: GPUDirect Storage, by cuFile. Not verified
// on hardware.
#pragma once

#include "base/once.hpp"
#include "shim/cufile.hpp"
#include "storage/file_io.hpp"

#include <cstdint>
#include <memory>
#include <string>

namespace zerohop::storage {

// Ranges that cuFile takes: their offset in the file, length and address are multiples of this. It would move others,
// too, by a copy in the GPU and by reading what it then writes back.
inline constexpr uint64_t kGpuAlignment = 4096;

// The library, with its driver open and unable to let bytes pass through host memory. Any thread.
class CuFile {
public:
    explicit CuFile(const shim::Loaded<shim::CuFileApi>& library) : library_(library) {}
    CuFile(const CuFile&) = delete;
    CuFile& operator=(const CuFile&) = delete;
    // Returns the one that all Stores share, as the library has one driver for a process. It is never closed.
    [[nodiscard]] static CuFile& of_process();

    // Opens the driver, the first time; that may take a second, and memory of each GPU. Returns why it cannot be used,
    // then and later; nothing, if it can.
    [[nodiscard]] const std::string& why_not();
    [[nodiscard]] const shim::CuFileApi& api() const { return *library_; }

private:
    [[nodiscard]] std::string open() const;

    const shim::Loaded<shim::CuFileApi>& library_;
    Once opened_;
    std::string why_not_;
};

// A file that cuFile has taken. Its data's addresses are those of a GPU.
class GpuFile final : public Carrier {
public:
    // Takes the descriptor, which has O_DIRECT and stays the caller's. Returns null, and `why`, if that cannot be.
    [[nodiscard]] static std::unique_ptr<GpuFile> open(CuFile& library, int fd, std::string& why);
    GpuFile(const CuFile& library, void* handle) : library_(library), handle_(handle) {}
    ~GpuFile() override { library_.api().handle_deregister(handle_); }
    GpuFile(const GpuFile&) = delete;
    GpuFile& operator=(const GpuFile&) = delete;

    int32_t carry_out(const Job& job) const override;

private:
    const CuFile& library_;
    void* const handle_;
};

} // namespace zerohop::storage
