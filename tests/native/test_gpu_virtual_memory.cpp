// Tests virtual memory of GPUs (fake_cuda, fake_hip): a range of several allocations, as in PyTorch's expandable
// segments, is described, exported and imported as a whole.
#include "base/descriptor.hpp"
#include "bytes.hpp"
#include "gpu_fixture.hpp"
#include "gpu_segments.hpp"
#include "memory/accelerators.hpp"

#include <doctest/doctest.h>

#include <numeric>
#include <string>
#include <sys/mman.h>
#include <vector>

namespace test_gpu_virtual_memory {

using namespace zerohop;
using namespace zerohop::accel;
using namespace zerohop::test;
using zerohop::accel::test::open_descriptors;

namespace {

// Closes the descriptors of an export.
struct Exports {
    explicit Exports(Exported made) : exported(std::move(made)) {
        for (const Exported::Piece& piece : exported.pieces) {
            descriptors.emplace_back(piece.fd);
        }
    }
    Exported exported;
    std::vector<Descriptor> descriptors;
};

Outcome refusal(GpuDriver& driver, const Exported& exported) {
    try {
        (void)driver.import_memory(exported);
    } catch (const NativeError& error) {
        return error.outcome();
    }
    return {};
}

} // namespace

TEST_CASE_TEMPLATE("gpu: of virtual memory the driver describes one allocation at a time, Accelerators the whole range",
                   Vendor, Cuda, Hip) {
    const auto driver = make_gpu_driver(Vendor::api());
    Accelerators accelerators({driver});
    REQUIRE(accelerators.devices().size() == 2);
    Segments<Vendor> segments(3, 1);
    const Description first = driver->describe(segments.address() + 5);
    CHECK(first.kind == MemoryKind::device);
    CHECK(first.allocated_by == AllocatedBy::vmm);
    CHECK(first.device == 1);
    CHECK(first.base == segments.address());
    CHECK(first.size == kSegment);
    const Description second = driver->describe(segments.address(1));
    CHECK(second.base == segments.address(1));
    CHECK(second.allocation_id != first.allocation_id);
    CHECK(driver->describe(segments.address(3)).kind == MemoryKind::unknown); // only reserved

    // The range reaches from the middle of the first segment to the middle of the last.
    const uint64_t address = segments.address() + 1000;
    const Description whole = accelerators.describe(address, 2 * kSegment);
    CHECK(whole.kind == MemoryKind::device);
    CHECK(whole.device == 1);
    CHECK(whole.base == segments.address());
    CHECK(whole.size == 3 * kSegment);
    CHECK(accelerators.describe(address, 2 * kSegment).allocation_id == whole.allocation_id);
    // allocation_id() gives the id of the one allocation that the address lies in.
    CHECK(accelerators.describe(address, kSegment - 1000).allocation_id == accelerators.allocation_id(address));
    CHECK(accelerators.allocation_id(address) != 0);
    CHECK(accelerators.allocation_id(address) != whole.allocation_id);
    CHECK(driver->allocation_id(address) == first.allocation_id);
    CHECK(accelerators.allocation_id(segments.address(3)) == 0);
    // Every allocation of the range counts in its id, also one in the middle that was replaced.
    segments.unmap(1);
    CHECK(accelerators.describe(address, 2 * kSegment).kind == MemoryKind::unknown);
    segments.map(1);
    const Description remapped = accelerators.describe(address, 2 * kSegment);
    CHECK(remapped.size == whole.size);
    CHECK(remapped.allocation_id != whole.allocation_id);
    CHECK(accelerators.describe(address, 3 * kSegment).kind == MemoryKind::unknown); // past the last segment
    // The range must be on one device, or nobody could tell which device is to copy it.
    segments.unmap(2);
    segments.map(2, 0);
    CHECK(accelerators.describe(address, 2 * kSegment).kind == MemoryKind::unknown);
}

TEST_CASE_TEMPLATE("gpu: a range over several allocations goes to another process as one", Vendor, Cuda, Hip) {
    Gpu gpu(Vendor::api());
    const size_t nbytes = 2 * kSegment;
    const uint64_t local = gpu.alloc(nbytes);
    const int before = open_descriptors();
    {
        const Segments<Vendor> segments(3, 0);
        const uint64_t address = segments.address() + 1000;
        const std::vector<uint8_t> data = random_bytes(nbytes);
        gpu.copy(address, at(data.data()), nbytes);

        const Exports made(gpu.driver->export_memory(address, nbytes));
        const Exported& exported = made.exported;
        CHECK(exported.form == Vendor::api().kind + std::string("-fd"));
        CHECK(exported.device == gpu.devices[0]->facts().identity);
        CHECK(exported.offset == 1000);
        CHECK(exported.nbytes == nbytes);
        REQUIRE(exported.pieces.size() == 3);
        for (const Exported::Piece& piece : exported.pieces) {
            CHECK(piece.nbytes == kSegment);
            CHECK(piece.handle.empty());
        }
        // An export contains only the allocations under the range.
        const Exports one(gpu.driver->export_memory(segments.address(1), kSegment));
        REQUIRE(one.exported.pieces.size() == 1);
        CHECK(one.exported.offset == 0);

        const auto imported = gpu.driver->import_memory(exported);
        for (const int device : {0, 1}) {
            uint64_t reached = 0;
            REQUIRE(imported->open(device, reached).ok());
            CHECK((reached < segments.address() || reached >= segments.address(8)));
            const auto stream = gpu.devices[static_cast<size_t>(device)]->stream();
            CHECK(same_bytes(accel::test::fetch(*stream, reached, nbytes), data));
            const std::vector<uint8_t> written = random_bytes(nbytes);
            accel::test::put(*stream, reached, written);
            CHECK(same_bytes(gpu.read(address, nbytes), written));
            accel::test::put(*stream, reached, data);
        }
        // A page list covers all segments, by a kernel and without one.
        constexpr size_t kPage = 4096 + 512;
        std::vector<uint64_t> pages(nbytes / kPage);
        std::iota(pages.begin(), pages.end(), 0);
        uint64_t reached = 0;
        REQUIRE(imported->open(0, reached).ok());
        for (const bool kernel : {false, true}) {
            CAPTURE(kernel);
            if (kernel) {
                gpu.driver->load_kernels(0, "an image");
            }
            gpu.copy(local, at(std::vector<uint8_t>(nbytes).data()), nbytes);
            CHECK(accel::test::wait(gpu.stream->copy_pages({local, reached, pages, pages, kPage}, {})).ok());
            std::vector<uint8_t> seen = gpu.read(local, pages.size() * kPage);
            CHECK(std::equal(seen.begin(), seen.end(), data.begin()));
        }
    }
    CHECK(open_descriptors() <= before); // the mappings keep none; work of earlier tests may have closed one meanwhile
}

TEST_CASE_TEMPLATE("gpu: the memory of an import is there for as long as the import, whatever its owner does", Vendor,
                   Cuda, Hip) {
    Gpu gpu(Vendor::api());
    const std::vector<uint8_t> data = random_bytes(2 * kSegment);
    std::shared_ptr<Imported> imported;
    {
        const Segments<Vendor> segments(2, 0);
        gpu.copy(segments.address(), at(data.data()), data.size());
        imported =
            gpu.driver->import_memory(Exports(gpu.driver->export_memory(segments.address(), data.size())).exported);
    }
    uint64_t reached = 0;
    REQUIRE(imported->open(0, reached).ok());
    CHECK(same_bytes(gpu.read(reached, data.size()), data));
    CHECK(gpu.driver->describe(reached).allocated_by == AllocatedBy::vmm);
    imported.reset();
    CHECK(gpu.driver->describe(reached).kind == MemoryKind::unknown);
}

TEST_CASE_TEMPLATE("gpu: virtual memory that cannot be shared says why, and nothing stays open", Vendor, Cuda, Hip) {
    Gpu gpu(Vendor::api());
    Segments<Vendor> segments(3, 0);
    const int before = open_descriptors();
    CHECK_THROWS_WITH_AS((void)gpu.driver->export_memory(segments.address(), 3 * kSegment + 1),
                         doctest::Contains("not all mapped on one device"), NativeError);
    segments.unmap(1);
    CHECK_THROWS_WITH_AS((void)gpu.driver->export_memory(segments.address(), 3 * kSegment),
                         doctest::Contains("not all mapped on one device"), NativeError);
    segments.map(1, 1);
    CHECK_THROWS_WITH_AS((void)gpu.driver->export_memory(segments.address(), 3 * kSegment),
                         doctest::Contains("not all mapped on one device"), NativeError);
    segments.unmap(1);
    segments.map(1);
    CHECK(open_descriptors() <= before);
    const Segments<Vendor> private_ones(2, 0, false);
    const int after = open_descriptors();
    CHECK_THROWS_WITH_AS((void)gpu.driver->export_memory(private_ones.address(), 2 * kSegment),
                         doctest::Contains("not allocated to be shared"), NativeError);
    CHECK(open_descriptors() == after);
}

TEST_CASE_TEMPLATE("gpu: virtual memory that a peer describes wrongly is refused, and nothing of it stays", Vendor,
                   Cuda, Hip) {
    Gpu gpu(Vendor::api());
    const Segments<Vendor> segments(3, 0);
    const Exports made(gpu.driver->export_memory(segments.address(), 3 * kSegment));
    const Descriptor other(memfd_create("no memory of a device", MFD_CLOEXEC));
    const int before = open_descriptors();
    const auto refused = [&](auto change) {
        Exported wrong = made.exported;
        change(wrong);
        return refusal(*gpu.driver, wrong).status;
    };
    CHECK(refused([](Exported& e) { e.pieces[1].fd = -1; }) == Status::protocol);
    CHECK(refused([](Exported& e) { e.pieces[1].nbytes = 0; }) == Status::protocol);
    CHECK(refused([](Exported& e) { e.pieces[1].nbytes = SIZE_MAX; }) == Status::protocol);
    CHECK(refused([](Exported& e) { e.pieces.pop_back(); }) == Status::protocol); // smaller than it claims
    CHECK(refused([](Exported& e) { e.offset = 1; }) == Status::protocol);
    // Only the vendor's driver can find these errors: the first piece is mapped by then, and must be unmapped.
    CHECK(refused([&](Exported& e) { e.pieces[1].fd = other.get(); }) != Status::ok);
    CHECK(refused([](Exported& e) { e.pieces[1].nbytes *= 2; }) != Status::ok);
    CHECK(refused([](Exported& e) { e.pieces[2].nbytes -= 4096; }) != Status::ok);
    CHECK(open_descriptors() <= before);
    CHECK(refusal(*gpu.driver, made.exported).ok());
}

} // namespace test_gpu_virtual_memory
