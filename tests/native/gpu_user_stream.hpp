// Makes a stream as users of GPUs do, on GPUs in software.
#pragma once

#include "gpu_vendors.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>

namespace zerohop::test {

// A user's stream: made by the library's own functions, in the context of its device.
template <class Vendor> class UserStream {
public:
    explicit UserStream(int device) : device_(device) {
        REQUIRE(api_.context_retain(&context_, device) == 0);
        in_context([&] { REQUIRE(api_.stream_create(&stream_, 1, 0) == 0); });
    }
    ~UserStream() {
        in_context([&] { CHECK(api_.stream_destroy(stream_) == 0); });
        CHECK(Vendor::kReleaseContext(device_) == 0);
    }
    UserStream(const UserStream&) = delete;
    UserStream& operator=(const UserStream&) = delete;

    [[nodiscard]] uint64_t number() const { return reinterpret_cast<uint64_t>(stream_); }
    void copy(uint64_t dst, uint64_t src, size_t nbytes) {
        in_context([&] { REQUIRE(api_.copy(dst, src, nbytes, stream_) == 0); });
    }
    void begin_capture() { REQUIRE(Vendor::kBeginCapture(stream_, 0) == 0); }
    void end_capture() {
        void* graph = nullptr;
        REQUIRE(Vendor::kEndCapture(stream_, &graph) == 0);
    }

private:
    template <class F> void in_context(F&& f) {
        REQUIRE(api_.context_push(context_) == 0);
        f();
        REQUIRE(api_.context_pop(&context_) == 0);
    }

    const shim::GpuApi& api_ = Vendor::api();
    const int device_;
    void* context_ = nullptr;
    void* stream_ = nullptr;
};

} // namespace zerohop::test
