// Registered host buffers of one size: where segments are received, and where they are built for sending.
#pragma once

#include "base/sync.hpp"
#include "memory/registration.hpp"
#include "provider/verbs/device.hpp"
#include "provider/verbs/tuning.hpp"

#include <cstddef>
#include <memory>
#include <vector>

namespace zerohop::verbs {

struct Buffer {
    std::byte* data = nullptr;
    uint32_t key = 0;

    explicit operator bool() const { return data != nullptr; }
};

// Thread-safe. Grows by slabs, and never shrinks while it lives.
class BufferPool {
public:
    BufferPool(std::shared_ptr<Device> device, size_t most) : device_(std::move(device)), most_(most) {}

    // Takes a buffer; empty if there are no more, or the system gives no more memory to register.
    [[nodiscard]] Buffer take();
    void give(Buffer buffer);
    // Makes sure that the first slab is there. Throws NativeError.
    void prepare();

private:
    struct Slab {
        std::shared_ptr<void> pages;
        std::unique_ptr<Registration> registration; // ends before the pages go
    };
    void grow();

    std::shared_ptr<Device> device_;
    const size_t most_;
    SpinLock lock_;
    size_t made_ = 0;
    std::vector<Buffer> free_;
    std::vector<Slab> slabs_;
};

} // namespace zerohop::verbs
