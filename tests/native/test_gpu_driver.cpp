// Tests the driver of GPUs, over GPUs in software (fake_cuda, fake_hip): memory, streams and page lists.
#include "gpu_fixture.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <sys/mman.h>
#include <thread>
#include <vector>

namespace test_gpu_driver {

using namespace zerohop;
using namespace zerohop::accel;
using namespace zerohop::test;

namespace {

template <class Vendor> const shim::GpuApi& without_batches() {
    static const shim::GpuApi made = [] {
        shim::GpuApi api = Vendor::api();
        api.copy_batch = nullptr;
        return api;
    }();
    return made;
}

} // namespace

TEST_CASE_TEMPLATE("gpu: devices are named, and known by what every process calls them", Vendor, Cuda, Hip) {
    const Gpu gpu(Vendor::api());
    REQUIRE(gpu.devices.size() == 2);
    const DeviceFacts first = gpu.devices[0]->facts();
    const DeviceFacts second = gpu.devices[1]->facts();
    const std::string kind = Vendor::kHip ? "hip" : "cuda";
    CHECK(first.name == kind + ":0");
    CHECK(second.name == kind + ":1");
    CHECK(first.kind == kind);
    if (Vendor::kHip) { // the bytes are characters
        CHECK(first.identity == "GPU-66613030-3030-3030-3030-303030303030");
        CHECK(second.identity == "GPU-66613030-3030-3030-3030-303030303031");
    } else {
        CHECK(first.identity == "GPU-fafafafa-fafa-fafa-fafa-fafafafafa00");
        CHECK(second.identity == "GPU-fafafafa-fafa-fafa-fafa-fafafafafa01");
    }
    CHECK(first.pci_address == "0000:f0:00.0");
    CHECK(gpu.driver->why_none().empty());
    CHECK(gpu.driver->capability(0) == 90);
}

TEST_CASE("gpu: AMD's devices without a UUID are told apart by their places") {
    REQUIRE(setenv("FAKE_HIP_NO_UUID", "1", 1) == 0);
    const Gpu gpu(Hip::api());
    unsetenv("FAKE_HIP_NO_UUID");
    CHECK(gpu.devices[0]->facts().identity == "GPU-0000:f0:00.0");
    CHECK(gpu.devices[1]->facts().identity == "GPU-0000:f1:00.0");
}

TEST_CASE_TEMPLATE("gpu: memory is described by its allocation, whose id is never used twice", Vendor, Cuda, Hip) {
    Gpu gpu(Vendor::api());
    const uint64_t address = gpu.alloc(kBytes, 1);
    const Description whole = gpu.driver->describe(address);
    CHECK(whole.kind == MemoryKind::device);
    CHECK(whole.allocated_by == AllocatedBy::plain);
    CHECK(whole.device == 1);
    CHECK(whole.base == address);
    CHECK(whole.size == kBytes);
    CHECK(gpu.driver->describe(address + kBytes - 1).allocation_id == whole.allocation_id);
    CHECK(gpu.driver->allocation_id(address + kBytes - 1) == whole.allocation_id);
    CHECK(gpu.driver->allocation_id(address + kBytes) == 0);
    CHECK(gpu.driver->describe(address + kBytes).kind == MemoryKind::unknown);
    const int on_stack = 0;
    CHECK(gpu.driver->describe(at(&on_stack)).kind == MemoryKind::unknown);
    REQUIRE(gpu.devices[1]->free(address).ok());
    gpu.allocated.clear();
    settle();
    CHECK(gpu.driver->describe(address).kind == MemoryKind::unknown);
    CHECK(gpu.driver->describe(gpu.alloc(kBytes, 1)).allocation_id != whole.allocation_id);
}

TEST_CASE_TEMPLATE("gpu: a command ends for whoever looks, however many came before and after it", Vendor, Cuda, Hip) {
    Gpu gpu(Vendor::api());
    const uint64_t memory = gpu.alloc(kBytes);
    const std::vector<uint8_t> data = random_bytes(kBytes);
    std::vector<std::shared_ptr<Event>> events;
    constexpr size_t kPiece = 1024;
    for (size_t offset = 0; offset < kBytes; offset += kPiece) {
        const CopySegment segment{memory + offset, at(data.data()) + offset, kPiece};
        events.push_back(gpu.stream->copy({&segment, 1}));
    }
    CHECK(ends(*events[5]));
    CHECK(ends(*events.back()));
    CHECK(std::all_of(events.begin(), events.end(), [](const auto& e) { return e->query() == EventState::done; }));
    CHECK(gpu.read(memory, kBytes) == data);
}

TEST_CASE_TEMPLATE("gpu: words are written after the copy", Vendor, Cuda, Hip) {
    Gpu gpu(Vendor::api());
    const uint64_t memory = gpu.alloc(kBytes);
    const std::vector<uint8_t> data = random_bytes(kBytes);
    alignas(64) uint32_t words[2] = {};
    const CopySegment segment{memory, at(data.data()), kBytes};
    const Word then[] = {{at(&words[0]), 5}, {at(&words[1]), 6}};
    CHECK(ends(*gpu.stream->copy({&segment, 1}, then)));
    CHECK(words[0] == 5);
    CHECK(words[1] == 6);
}

TEST_CASE_TEMPLATE("gpu: page lists, by kernels of each width, in batches and one copy after the other", Vendor, Cuda,
                   Hip) {
    const shim::GpuApi* api = &Vendor::api();
    REQUIRE((api->copy_batch == nullptr) == Vendor::kHip); // HIP has none
    bool kernels = false;
    SUBCASE("by kernels") {
        kernels = true;
    }
    SUBCASE("in batches") {}
    SUBCASE("one after the other") {
        api = &without_batches<Vendor>();
    }
    Gpu gpu(*api);
    if (kernels) {
        gpu.driver->load_kernels(0, "an image");
    }
    struct Shape {
        size_t page;
        size_t offset;
        size_t count;
    };
    for (const auto& [page, offset, count] :
         {Shape{4096, 0, 200}, {1000, 8, 200}, {1000, 4, 200}, {514, 2, 200}, {333, 1, 200}, {8, 0, 10'000}}) {
        const std::vector<uint8_t> data = random_bytes(count * page);
        const uint64_t from = gpu.alloc(count * page + 16) + offset;
        const uint64_t to = gpu.alloc(count * page + 16) + offset;
        gpu.copy(from, at(data.data()), data.size());
        std::vector<uint64_t> src(count);
        std::iota(src.begin(), src.end(), 0);
        std::vector<uint64_t> dst = src;
        std::shuffle(src.begin(), src.end(), std::mt19937_64{1});
        std::shuffle(dst.begin(), dst.end(), std::mt19937_64{2});
        CHECK(ends(*gpu.stream->copy_pages({to, from, dst, src, page}, {})));
        std::vector<uint8_t> expected(data.size());
        for (size_t i = 0; i < count; ++i) {
            std::memcpy(expected.data() + dst[i] * page, data.data() + src[i] * page, page);
        }
        CHECK(gpu.read(to, data.size()) == expected);
    }
}

TEST_CASE_TEMPLATE("gpu: many segments in one command, of every size and alignment", Vendor, Cuda, Hip) {
    const shim::GpuApi* api = &Vendor::api();
    bool kernels = false;
    SUBCASE("by kernels") {
        kernels = true;
    }
    SUBCASE("in batches") {}
    SUBCASE("one after the other") {
        api = &without_batches<Vendor>();
    }
    Gpu gpu(*api);
    if (kernels) {
        gpu.driver->load_kernels(0, "an image");
    }
    CHECK(gpu.stream->gathers() == (kernels || api->copy_batch != nullptr));
    constexpr size_t kCount = 300; // more than one launch takes
    const std::vector<uint8_t> data = random_bytes(kBytes);
    const uint64_t from = gpu.alloc(kBytes);
    const uint64_t to = gpu.alloc(kBytes);
    gpu.copy(from, at(data.data()), kBytes);
    std::vector<uint8_t> expected = gpu.read(to, kBytes);
    std::vector<CopySegment> segments;
    std::mt19937_64 random{3};
    size_t end = 0;
    for (size_t i = 0; i < kCount; ++i) {
        const size_t start = end + random() % 100;
        const size_t nbytes = i % 50 == 0 ? 20'000 : 1 + random() % 3000;
        const size_t source = random() % (kBytes - nbytes);
        end = start + nbytes;
        REQUIRE(end <= kBytes);
        segments.push_back({to + start, from + source, nbytes});
        std::memcpy(expected.data() + start, data.data() + source, nbytes);
    }
    CHECK(ends(*gpu.stream->copy_many(segments, {})));
    CHECK(gpu.read(to, kBytes) == expected);
}

TEST_CASE_TEMPLATE("gpu: lists of ranges, short and long, with long ranges among them", Vendor, Cuda, Hip) {
    bool kernels = true;
    SUBCASE("by kernels") {}
    SUBCASE("without") {
        kernels = false;
    }
    Gpu gpu(Vendor::api());
    if (kernels) {
        gpu.driver->load_kernels(0, "an image");
    }
    for (const size_t count : {size_t{5}, size_t{129}, size_t{20'000}}) {
        CAPTURE(count);
        std::mt19937_64 random{count};
        std::vector<uint64_t> lengths(count);
        for (size_t i = 0; i < count; ++i) {
            // Some are cut into entries, and some go to the copy engine.
            lengths[i] = i % 4000 == 3 ? 300'000 : i % 500 == 2 ? 40'000 : 1 + random() % 60;
        }
        std::vector<uint64_t> src(count);
        std::exclusive_scan(lengths.begin(), lengths.end(), src.begin(), uint64_t{0});
        const uint64_t total = src.back() + lengths.back();
        std::vector<uint64_t> dst(count); // the same ranges in the opposite order, with a gap of a byte between them
        for (size_t i = 0; i < count; ++i) {
            dst[i] = total - src[i] - lengths[i] + count - i;
        }
        const std::vector<uint8_t> data = random_bytes(total);
        const uint64_t from = gpu.alloc(total);
        const uint64_t to = gpu.alloc(total + count + 1);
        gpu.copy(from, at(data.data()), total);
        std::vector<uint8_t> expected = gpu.read(to, total + count + 1);
        for (size_t i = 0; i < count; ++i) {
            std::memcpy(expected.data() + dst[i], data.data() + src[i], lengths[i]);
        }
        uint32_t word = 0;
        const Word then[] = {{at(&word), 7}};
        CHECK(ends(*gpu.stream->copy_ranges(
            {.dst_base = to, .src_base = from, .dst = dst, .src = src, .lengths = lengths, .nbytes = total}, then)));
        CHECK(word == 7);
        CHECK(gpu.read(to, expected.size()) == expected);
    }
}

TEST_CASE_TEMPLATE("gpu: host memory is registered once for all who ask, and given back by the last", Vendor, Cuda,
                   Hip) {
    Gpu gpu(Vendor::api());
    const Gpu other(Vendor::api()); // another Context of the process
    constexpr size_t kPage = 4096;
    auto* const base =
        static_cast<std::byte*>(mmap(nullptr, 8 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    REQUIRE(base != MAP_FAILED);
    const auto known = [&](size_t offset) { return gpu.driver->describe(at(base) + offset).kind == MemoryKind::host; };
    REQUIRE(gpu.driver->register_host(base + 100, 3 * kPage, accel::HostPages::writable).ok());
    CHECK(known(100));
    CHECK(known(100 + 3 * kPage - 1));
    CHECK_FALSE(known(99)); // memory beside it on its pages is not registered
    CHECK_FALSE(known(100 + 3 * kPage));
    REQUIRE(other.driver->register_host(base + kPage, kPage, accel::HostPages::writable)
                .ok()); // lies within the first range
    // overlaps in part: no driver takes that
    CHECK_FALSE(gpu.driver->register_host(base + 2 * kPage, 4 * kPage, accel::HostPages::writable).ok());
    CHECK(gpu.driver->unregister_host(base + 100).ok());
    CHECK(known(100));
    CHECK(other.driver->unregister_host(base + kPage).ok());
    settle();
    CHECK_FALSE(known(100));
    CHECK_FALSE(gpu.driver->unregister_host(base).ok());
    munmap(base, 8 * kPage);
}

TEST_CASE_TEMPLATE("gpu: what this process has exported it reaches under its own address, from each device", Vendor,
                   Cuda, Hip) {
    Gpu gpu(Vendor::api());
    const uint64_t address = gpu.alloc(kBytes, 1);
    const Exported exported = gpu.driver->export_memory(address + 100, 1000);
    CHECK(exported.form == Vendor::api().kind + std::string("-ipc"));
    CHECK(exported.device == gpu.devices[1]->facts().identity);
    CHECK(exported.offset == 100);
    const auto imported = gpu.driver->import_memory(exported);
    for (const int device : {0, 1}) {
        uint64_t reached = 0;
        REQUIRE(imported->open(device, reached).ok());
        CHECK(reached == address + 100);
    }
}

TEST_CASE_TEMPLATE("gpu: memory of a pool is shared where the pool was made for it", Vendor, Cuda, Hip) {
    Gpu gpu(Vendor::api());
    const shim::GpuApi& api = Vendor::api();
    void* context = nullptr;
    REQUIRE(api.context_retain(&context, 0) == 0);
    for (const int handle_types : {0, 1}) {
        void* pool = nullptr;
        const std::array<int, 22> properties{1, handle_types, 1, 0};
        REQUIRE(Vendor::kPoolCreate(&pool, properties.data()) == 0);
        REQUIRE(api.context_push(context) == 0);
        uint64_t address = 0;
        REQUIRE(Vendor::kAllocFromPool(&address, kBytes, pool, nullptr) == 0);
        REQUIRE(api.context_pop(&context) == 0);
        CHECK(gpu.driver->describe(address + 5).allocated_by == AllocatedBy::pool);
        if (handle_types == 0) {
            CHECK_THROWS_WITH_AS((void)gpu.driver->export_memory(address, kBytes),
                                 doctest::Contains("not made to be shared"), NativeError);
        } else {
            const Exported exported = gpu.driver->export_memory(address + 100, 1000);
            CHECK(exported.form == Vendor::api().kind + std::string("-pool"));
            CHECK(exported.offset == 100);
            REQUIRE(exported.pieces.size() == 2);
            CHECK(exported.pieces[0].nbytes == kBytes);
            const Descriptor descriptor(exported.pieces[1].fd);
            // The process imports its own memory, for each device.
            const auto own = gpu.driver->import_memory(exported);
            // The import is made as in another process.
            Exported theirs = exported;
            theirs.process += 1;
            const auto imported = gpu.driver->import_memory(theirs);
            const auto bytes = random_bytes(kBytes);
            gpu.copy(address, at(bytes.data()), kBytes);
            for (const int device : {0, 1}) {
                uint64_t reached = 0;
                REQUIRE(own->open(device, reached).ok());
                CHECK(reached == address + 100);
                REQUIRE(imported->open(device, reached).ok());
                CHECK(reached != address + 100);
                std::vector<uint8_t> seen(1000);
                gpu.copy(at(seen.data()), reached, seen.size());
                CHECK(std::equal(seen.begin(), seen.end(), bytes.begin() + 100));
            }
            for (const auto change :
                 {+[](Exported& e) { e.pieces[1].fd = -1; }, +[](Exported& e) { e.pieces[1].nbytes = 1; },
                  +[](Exported& e) { e.pieces[0].handle.pop_back(); }, +[](Exported& e) { e.pieces.pop_back(); }}) {
                Exported wrong = theirs;
                change(wrong);
                CHECK_THROWS_AS((void)gpu.driver->import_memory(wrong), NativeError);
            }
        }
        REQUIRE(api.context_push(context) == 0);
        CHECK(api.memory_free(address) == 0);
        REQUIRE(api.context_pop(&context) == 0);
        CHECK(Vendor::kPoolDestroy(pool) == 0);
    }
    CHECK(Vendor::kReleaseContext(0) == 0);
}

TEST_CASE_TEMPLATE("gpu: memory that a peer describes wrongly is refused", Vendor, Cuda, Hip) {
    Gpu gpu(Vendor::api());
    const Exported good = gpu.driver->export_memory(gpu.alloc(kBytes), kBytes);
    const auto refused = [&](auto change) {
        Exported wrong = good;
        change(wrong);
        try {
            (void)gpu.driver->import_memory(wrong);
        } catch (const NativeError& error) {
            return error.outcome().status;
        }
        return Status::ok;
    };
    CHECK(refused([](Exported& e) { e.form = "cuda-other"; }) == Status::protocol);
    CHECK(refused([](Exported& e) { e.pieces.clear(); }) == Status::protocol);
    CHECK(refused([](Exported& e) { e.pieces[0].handle.pop_back(); }) == Status::protocol);
    CHECK(refused([](Exported& e) { e.pieces[0].nbytes = 0; }) == Status::protocol);
    CHECK(refused([](Exported& e) { e.offset = kBytes + 1; }) == Status::protocol);
    CHECK(refused([](Exported& e) { e.nbytes = kBytes + 1; }) == Status::protocol);
    CHECK(refused([](Exported& e) { e.form = "cuda-fd"; }) == Status::protocol);
}

TEST_CASE_TEMPLATE("gpu: a device's mark fires when all of its streams have come that far", Vendor, Cuda, Hip) {
    shim::GpuApi older = Vendor::api();
    older.context_record = nullptr; // the driver waits instead
    for (const shim::GpuApi* const api : std::array<const shim::GpuApi*, 2>{&Vendor::api(), &older}) {
        Gpu gpu(*api);
        CAPTURE(api->context_record != nullptr);
        CHECK(ends(*gpu.devices[0]->mark()));
        const auto second = gpu.devices[0]->stream();
        std::atomic<uint32_t> word{0};
        std::shared_ptr<Event> mark;
        const auto wait = second->wait32(at(&word), 1);
        std::thread opens;
        if (api->context_record != nullptr) {
            mark = gpu.devices[0]->mark();
            CHECK(mark->query() == EventState::pending);
            CHECK(ends(*gpu.devices[1]->mark())); // another device's mark is not affected
            word = 1;
        } else {
            opens = std::thread([&] {
                nap_shortly();
                word = 1;
            });
            mark = gpu.devices[0]->mark();
            CHECK(word == 1);
            opens.join();
        }
        CHECK(ends(*mark));
        CHECK(mark->query() == EventState::done);
        CHECK(mark->outcome().ok());
        CHECK(ends(*wait));
    }
}

TEST_CASE_TEMPLATE("gpu: a stream follows another, and waits at a gate", Vendor, Cuda, Hip) {
    Gpu gpu(Vendor::api());
    const uint64_t memory = gpu.alloc(kBytes);
    // This is a user's stream: made by the library's own functions.
    void* user = nullptr;
    void* context = nullptr;
    REQUIRE(Vendor::api().context_retain(&context, 0) == 0);
    REQUIRE(Vendor::api().context_push(context) == 0);
    REQUIRE(Vendor::api().stream_create(&user, 1, 0) == 0);
    const auto number = reinterpret_cast<uint64_t>(user);
    const std::shared_ptr<Gate> gate = gpu.driver->gate(0, number);
    const std::shared_ptr<Event> mark = gpu.driver->mark(0, number);
    CHECK(mark->query() == EventState::pending);
    REQUIRE(gpu.stream->follow(number).ok());
    const std::vector<uint8_t> data = random_bytes(kBytes);
    const CopySegment segment{memory, at(data.data()), kBytes};
    const auto copied = gpu.stream->copy({&segment, 1});
    CHECK_FALSE(ends(*copied, 20 * kMillisecond));
    gate->open();
    CHECK(ends(*mark));
    CHECK(ends(*copied));
    // The user's stream waits for one of ours.
    REQUIRE(held_by(*copied, number).why.ok());
    const auto after = gpu.driver->mark(0, number);
    CHECK(ends(*after));
    CHECK(Vendor::api().stream_destroy(user) == 0);
    REQUIRE(Vendor::api().context_pop(&context) == 0);
}

TEST_CASE_TEMPLATE("gpu: more than there is cannot be had", Vendor, Cuda, Hip) {
    const Gpu gpu(Vendor::api());
    uint64_t address = 1;
    const Outcome outcome = gpu.devices[0]->alloc(size_t{1} << 50, address);
    CHECK(outcome.status == Status::no_memory);
    CHECK(address == 1);
}

} // namespace test_gpu_driver
