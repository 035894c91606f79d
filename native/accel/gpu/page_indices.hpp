// Holds page lists as the copy kernel reads them: 32-bit numbers in pinned host memory, which the device fetches
// itself.
#pragma once

#include "accel/gpu/gpu_device.hpp"

#include <cstdint>
#include <memory>
#include <span>

namespace zerohop::accel::gpu {

// Holds all numbers of source pages, then all of destination pages. Its buffer returns to a pool of the process when
// dropped.
class PageIndices {
public:
    // Returns null if a number has more than 32 bits, or there is no pinned memory. A context must be current.
    [[nodiscard]] static std::shared_ptr<PageIndices> of(const GpuApi& api, std::span<const uint64_t> src,
                                                         std::span<const uint64_t> dst);
    PageIndices(uint32_t* data, size_t capacity, size_t count) : data_(data), capacity_(capacity), count_(count) {}
    ~PageIndices();
    PageIndices(const PageIndices&) = delete;
    PageIndices& operator=(const PageIndices&) = delete;

    [[nodiscard]] uint64_t src() const { return reinterpret_cast<uint64_t>(data_); }
    [[nodiscard]] uint64_t dst() const { return reinterpret_cast<uint64_t>(data_ + count_); }

private:
    uint32_t* const data_;
    const size_t capacity_;
    const size_t count_;
};

} // namespace zerohop::accel::gpu
