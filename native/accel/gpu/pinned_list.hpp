// Holds the lists of the copy kernels in pinned host memory, which the device fetches itself.
#pragma once

#include "accel/gpu/gpu_device.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace zerohop::accel::gpu {

// A buffer of pinned host memory. It returns to a pool of the process when dropped, which the holder does only once the
// device has read it.
class PinnedList {
public:
    // Returns null if there is no pinned memory. A context must be current.
    [[nodiscard]] static std::shared_ptr<PinnedList> of(const GpuApi& api, size_t nbytes);
    PinnedList(std::byte* data, size_t capacity) : data_(data), capacity_(capacity) {}
    ~PinnedList();
    PinnedList(const PinnedList&) = delete;
    PinnedList& operator=(const PinnedList&) = delete;

    template <class T> [[nodiscard]] T* data() const { return reinterpret_cast<T*>(data_); }

private:
    std::byte* const data_;
    const size_t capacity_;
};

// Holds the numbers of pages in 32 bits: all of source pages, then as many of destination pages. Returns null if a
// number has more than 32 bits, or there is no pinned memory. A context must be current.
[[nodiscard]] std::shared_ptr<PinnedList> pinned_pages(const GpuApi& api, std::span<const uint64_t> src,
                                                       std::span<const uint64_t> dst);

} // namespace zerohop::accel::gpu
