// Makes virtual memory of GPUs in software as PyTorch's expandable segments do: allocations that follow one another.
#pragma once

#include "gpu_vendors.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <vector>

namespace zerohop::test {

inline constexpr size_t kSegment = 128 * 1024;

// A range of addresses of one device, in which segments are mapped and unmapped.
template <class Vendor> class Segments {
public:
    Segments(size_t count, int device, bool shareable = true) : device_(device), shareable_(shareable) {
        REQUIRE(api_.vmm_reserve(&base_, room_, 0, 0, 0) == 0);
        for (size_t index = 0; index < count; ++index) {
            map(index);
        }
    }
    ~Segments() {
        for (const size_t index : std::vector(mapped_)) {
            unmap(index);
        }
        CHECK(api_.vmm_unreserve(base_, room_) == 0);
    }
    Segments(const Segments&) = delete;
    Segments& operator=(const Segments&) = delete;

    void map(size_t index) { map(index, device_); }
    void map(size_t index, int device) {
        const std::array<int, 8> properties{1, shareable_ ? 1 : 0, 1, device};
        uint64_t handle = 0;
        REQUIRE(Vendor::kCreate(&handle, kSegment, properties.data(), 0) == 0);
        CHECK(api_.vmm_map(address(index), kSegment, 0, handle, 0) == 0);
        CHECK(api_.vmm_release(handle) == 0);
        const shim::GpuAccess access{.location = {.type = 1, .id = device}, .flags = 3};
        CHECK(api_.vmm_access(address(index), kSegment, &access, 1) == 0);
        mapped_.push_back(index);
    }
    void unmap(size_t index) {
        CHECK(api_.vmm_unmap(address(index), kSegment) == 0);
        std::erase(mapped_, index);
    }
    [[nodiscard]] uint64_t address(size_t index = 0) const { return base_ + index * kSegment; }

private:
    const shim::GpuApi& api_ = Vendor::api();
    const int device_;
    const bool shareable_;
    const size_t room_ = 8 * kSegment;
    uint64_t base_ = 0;
    std::vector<size_t> mapped_;
};

} // namespace zerohop::test
