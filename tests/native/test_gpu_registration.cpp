// Tests how the driver of GPUs (fake_cuda, fake_hip) makes memory usable: the ways in which a NIC may register device
// memory, the state of memory that a NIC may touch, and host memory that the user has pinned.
#include "bytes.hpp"
#include "gpu_fixture.hpp"
#include "gpu_segments.hpp"
#include "memory/accelerators.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <sys/mman.h>
#include <vector>

namespace test_gpu_registration {

using namespace zerohop;
using namespace zerohop::accel;
using namespace zerohop::test;
using zerohop::accel::test::open_descriptors;
using Ways = std::vector<Registrable>;

namespace {

constexpr size_t kPage = 4096;

// While it lives, the driver exports dma-buf.
struct DmaBuf {
    DmaBuf() { REQUIRE(setenv("FAKE_CUDA_DMA_BUF", "1", 1) == 0); }
    ~DmaBuf() { unsetenv("FAKE_CUDA_DMA_BUF"); }
    DmaBuf(const DmaBuf&) = delete;
    DmaBuf& operator=(const DmaBuf&) = delete;
};

// Makes the context of the first device current on this thread.
template <class Vendor> struct InContext {
    InContext() {
        REQUIRE(api.context_retain(&context, 0) == 0);
        REQUIRE(api.context_push(context) == 0);
    }
    ~InContext() {
        CHECK(api.context_pop(&context) == 0);
        CHECK(Vendor::kReleaseContext(0) == 0);
    }
    InContext(const InContext&) = delete;
    InContext& operator=(const InContext&) = delete;

    const shim::GpuApi& api = Vendor::api();
    void* context = nullptr;
};

template <class Vendor> bool synchronises(uint64_t address) {
    const int which = static_cast<int>(shim::GpuPointer::sync_memops);
    unsigned on = 2;
    void* value = &on;
    REQUIRE(Vendor::api().pointer_attributes(1, &which, &value, address) == 0);
    REQUIRE(on < 2);
    return on == 1;
}

bool has_dma_buf(const DeviceFacts& facts) {
    return std::find(facts.capabilities.begin(), facts.capabilities.end(), "dma-buf") != facts.capabilities.end();
}

// Checks both ways of registering; the first need not be available.
void check_both(const Ways& ways, uint64_t address) {
    REQUIRE(ways.size() == 2);
    CHECK(ways[0].kind == Registrable::Kind::dma_buf);
    CHECK((ways[0].buffer != nullptr) == ways[0].why_not.empty());
    CHECK(ways[1].kind == Registrable::Kind::plain);
    CHECK(ways[1].address == address);
    CHECK(ways[1].why_not.empty());
}

} // namespace

TEST_CASE_TEMPLATE("gpu: where the driver has no dma-buf, memory is offered by its address, and why is said", Vendor,
                   Cuda, Hip) {
    shim::GpuApi older = Vendor::api();
    older.dma_buf = nullptr;
    Gpu gpu(Vendor::api());
    CHECK_FALSE(has_dma_buf(gpu.devices[0]->facts()));
    const uint64_t address = gpu.alloc(kBytes);
    const Ways refused = gpu.driver->registrable(address + 16, 1000);
    check_both(refused, address + 16);
    CHECK(refused[0].why_not == (Vendor::kHip ? "the driver exports no dma-buf: hipErrorNotSupported"
                                              : "the driver exports no dma-buf: CUDA_ERROR_NOT_SUPPORTED"));
    const auto without = make_gpu_driver(older);
    REQUIRE(without->devices().size() == 2);
    const Ways none = without->registrable(address, kBytes);
    check_both(none, address);
    CHECK(none[0].why_not == "the driver has no dma-buf");
}

TEST_CASE_TEMPLATE("gpu: a NIC gets a dma-buf of whole pages, and where in it the memory begins", Vendor, Cuda, Hip) {
    const DmaBuf exported;
    Gpu gpu(Vendor::api());
    CHECK(has_dma_buf(gpu.devices[1]->facts()) == !Vendor::kHip); // HIP has no attribute that says so
    constexpr size_t kOdd = kBytes - 100;                         // the allocation does not fill its last page
    const uint64_t address = gpu.alloc(kOdd);
    const std::vector<uint8_t> data = random_bytes(kOdd);
    gpu.copy(address, at(data.data()), kOdd);
    const int before = open_descriptors();
    {
        const Ways whole = gpu.driver->registrable(address, kOdd);
        check_both(whole, address);
        REQUIRE(whole[0].buffer);
        CHECK(whole[0].offset == 0);
        const Ways part = gpu.driver->registrable(address + 100, kPage);
        check_both(part, address + 100);
        REQUIRE(part[0].buffer);
        CHECK(part[0].offset == 100);
        // A NIC's writes there must be the device's bytes.
        void* const mapped = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, part[0].buffer->get(), 0);
        REQUIRE(mapped != MAP_FAILED);
        auto* const bytes = static_cast<uint8_t*>(mapped);
        CHECK(std::equal(data.begin(), data.end(), bytes));
        bytes[part[0].offset] ^= 0xff;
        munmap(mapped, kBytes);
        CHECK(gpu.read(address + 100, 1)[0] == (data[100] ^ 0xff));
        CHECK(open_descriptors() == before + 2);
    }
    CHECK(open_descriptors() == before);
}

TEST_CASE_TEMPLATE("gpu: calls of the driver on memory that a NIC may touch end when their copies have", Vendor, Cuda,
                   Hip) {
    Gpu gpu(Vendor::api());
    const InContext<Vendor> current;
    for (const bool dma_buf : {false, true}) {
        CAPTURE(dma_buf);
        const uint64_t address = gpu.alloc(kBytes, 1);
        const uint64_t other = gpu.alloc(kBytes, 1);
        (void)gpu.driver->describe(address);
        (void)gpu.driver->export_memory(address, kBytes); // p2p does not need it
        CHECK_FALSE(synchronises<Vendor>(address));
        if (dma_buf) {
            const DmaBuf exported;
            CHECK(gpu.driver->registrable(address + kPage, kPage).size() == 2);
        } else {
            CHECK(gpu.driver->registrable(address + kPage, kPage).size() == 2);
        }
        CHECK(synchronises<Vendor>(address)); // it covers the whole allocation
        CHECK_FALSE(synchronises<Vendor>(other));
    }
}

TEST_CASE_TEMPLATE("gpu: a NIC may have virtual memory too, which has no such attribute", Vendor, Cuda, Hip) {
    const Gpu gpu(Vendor::api());
    const Segments<Vendor> segments(2, 0);
    const InContext<Vendor> current;
    const unsigned on = 1;
    REQUIRE(current.api.pointer_set(&on, static_cast<int>(shim::GpuPointer::sync_memops), segments.address()) != 0);
    check_both(gpu.driver->registrable(segments.address(1), kSegment), segments.address(1));
    const DmaBuf exported;
    const Ways ways = gpu.driver->registrable(segments.address(1) + 10, 1000);
    check_both(ways, segments.address(1) + 10);
    CHECK(ways[0].buffer);
    CHECK(ways[0].offset == 10);
}

TEST_CASE_TEMPLATE("gpu: managed memory is nobody's: its pages move", Vendor, Cuda, Hip) {
    Gpu gpu(Vendor::api());
    Accelerators accelerators({gpu.driver});
    const InContext<Vendor> current;
    uint64_t address = 0;
    REQUIRE(Vendor::kAllocManaged(&address, kBytes, 1) == 0);
    CHECK(gpu.driver->describe(address + 5).kind == MemoryKind::unknown);
    CHECK(accelerators.describe(address, kBytes).kind == MemoryKind::unknown);
    CHECK(gpu.driver->registrable(address, kBytes).empty());
    CHECK(accelerators.registrable(address, kBytes).empty());
    CHECK_THROWS_WITH_AS((void)gpu.driver->export_memory(address, kBytes), doctest::Contains("no memory of a device"),
                         NativeError);
    CHECK(gpu.devices[0]->free(address).ok());
}

TEST_CASE_TEMPLATE("gpu: host memory that the user has pinned needs nothing, and stays pinned", Vendor, Cuda, Hip) {
    Gpu gpu(Vendor::api());
    const InContext<Vendor> current;
    const shim::GpuApi& api = current.api;
    void* made = nullptr;
    REQUIRE(api.host_alloc(&made, 8 * kPage, 1) == 0);
    auto* const base = static_cast<std::byte*>(made);
    const auto pinned = [&] { return gpu.driver->describe(at(base)).kind == MemoryKind::host; };
    REQUIRE(pinned());
    // Registers all of it, a part of it, and all again: the vendor's driver itself would refuse each.
    CHECK(api.host_register(base, 8 * kPage, 3) != 0);
    CHECK(gpu.driver->register_host(base, 8 * kPage, accel::HostPages::writable).ok());
    CHECK(gpu.driver->register_host(base + 100, 1000, accel::HostPages::writable).ok());
    CHECK(gpu.driver->register_host(base, 8 * kPage, accel::HostPages::writable).ok());
    CHECK_FALSE(gpu.driver->register_host(base + 4 * kPage, 8 * kPage, accel::HostPages::writable)
                    .ok()); // not all of it is pinned
    // Copies may use it.
    const uint64_t memory = gpu.alloc(8 * kPage);
    const std::vector<uint8_t> data = random_bytes(8 * kPage);
    std::memcpy(base, data.data(), data.size());
    gpu.copy(memory, at(base), data.size());
    CHECK(same_bytes(gpu.read(memory, data.size()), data));
    for (std::byte* const each : {base, base + 100, base}) {
        CHECK(gpu.driver->unregister_host(each).ok());
        CHECK(pinned());
    }
    CHECK_FALSE(gpu.driver->unregister_host(base).ok()); // unregistered as often as it was registered
    CHECK(Vendor::kFreeHost(base) == 0);
    CHECK_FALSE(pinned());
}

TEST_CASE_TEMPLATE("gpu: pages that the process may only read are copied from, too", Vendor, Cuda, Hip) {
    Gpu gpu(Vendor::api());
    void* const pages = mmap(nullptr, 4 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(pages != MAP_FAILED);
    const std::vector<uint8_t> data = random_bytes(4 * kPage);
    std::memcpy(pages, data.data(), data.size());
    REQUIRE(mprotect(pages, 4 * kPage, PROT_READ) == 0);
    CHECK_FALSE(gpu.driver->register_host(pages, 4 * kPage, accel::HostPages::writable)
                    .ok()); // nobody has declared it read-only
    REQUIRE(gpu.driver->register_host(pages, 4 * kPage, accel::HostPages::read_only).ok());
    const uint64_t memory = gpu.alloc(4 * kPage);
    gpu.copy(memory, at(pages), data.size());
    CHECK(same_bytes(gpu.read(memory, data.size()), data));
    CHECK(gpu.driver->unregister_host(pages).ok());
    settle();
    CHECK(munmap(pages, 4 * kPage) == 0);
}

TEST_CASE_TEMPLATE("gpu: memory of which somebody else has registered a part is not taken for a lost device", Vendor,
                   Cuda, Hip) {
    Gpu gpu(Vendor::api());
    const InContext<Vendor> current;
    std::vector<std::byte> memory(8 * kPage);
    REQUIRE(current.api.host_register(memory.data(), 4 * kPage, 3) == 0);
    CHECK(gpu.driver->register_host(memory.data() + 2 * kPage, 4 * kPage, accel::HostPages::writable) ==
          Outcome{Status::unsupported, Reason::host_registered});
    CHECK(current.api.host_unregister(memory.data()) == 0);
}

extern "C" int fake_cuda_flushes(int more); // returns how often the driver was asked to flush

TEST_CASE("gpu: what NICs write is flushed where a device does not order it, and nowhere else") {
    for (const char* const ordering : {"100", "0"}) {
        CAPTURE(std::string(ordering));
        REQUIRE(setenv("FAKE_CUDA_ORDERING", ordering, 1) == 0);
        const bool needed = std::string(ordering) == "0";
        Accelerators accelerators({make_gpu_driver(Cuda::api())});
        CHECK(accelerators.devices().at(1)->needs_flush() == needed);
        const int before = fake_cuda_flushes(0);
        accelerators.flush_inbound(); // no NIC knows any memory of the device
        CHECK(fake_cuda_flushes(0) == before);
        accelerators.expect_inbound(1);
        accelerators.expect_inbound(1);
        accelerators.flush_inbound();
        accelerators.flush_inbound();
        CHECK(fake_cuda_flushes(0) == before + (needed ? 2 : 0));
    }
    unsetenv("FAKE_CUDA_ORDERING");
}

TEST_CASE("gpu: AMD's devices are flushed by nobody, for HIP has no such function") {
    CHECK((Hip::api().flush_direct == nullptr));
    CHECK_FALSE(Gpu(Hip::api()).devices.at(0)->needs_flush());
}

} // namespace test_gpu_registration
