// Tests files straight into memory of GPUs and back: by cuFile in software (fake_cufile) over GPUs in software.
#include "accel/gpu/gpu_driver.hpp"
#include "fake_cufile/control.hpp"
#include "file_fixture.hpp"
#include "shim/cufile.hpp"

#include <algorithm>
#include <cerrno>
#include <string>
#include <thread>

namespace test_gpudirect {

using namespace zerohop;
using namespace zerohop::test;
using storage::CuFile;

namespace {

constexpr size_t kPage = 4096;
constexpr int kGpu = 0;

struct GpuFiles {
    explicit GpuFiles(std::unique_ptr<FileIo> io)
        : side({accel::make_gpu_driver(*shim::cuda())}),
          queue(std::make_shared<FileQueue>(*side.engine, std::move(io), kStaging)) {
        fake_cufile_reset();
        side.engine->add_work(queue);
    }
    ~GpuFiles() {
        fake_cufile_reset();
        side.close();
    }
    GpuFiles(const GpuFiles&) = delete;
    GpuFiles& operator=(const GpuFiles&) = delete;

    std::string ask(const TestFile& file, const std::shared_ptr<Region>& memory) {
        return queue->why_staged(*file.file, place_of(memory), library);
    }
    OpRef start(const TestFile& file, const std::shared_ptr<Region>& memory, bool write, const Range& range,
                uint64_t least = 0, uint64_t deadline_ns = 0) const {
        OpRef op = side.engine->operations().create(deadline_ns);
        auto sink = std::make_shared<storage::OperationSink>(*side.engine, op, 1, least, moved);
        REQUIRE(queue->post({file.file, place_of(memory), write}, {&range, 1}, std::move(sink)).ok());
        if (deadline_ns != 0) {
            side.engine->note_pending(deadline_ns, now_ns());
        }
        return op;
    }
    OpRef run(const TestFile& file, const std::shared_ptr<Region>& memory, bool write, const Range& range,
              uint64_t least = 0) const {
        OpRef op = start(file, memory, write, range, least);
        (void)side.wait(op);
        return op;
    }
    // The bytes that went by cuFile, and the others.
    std::pair<uint64_t, uint64_t> taken() {
        const auto [past, through] = moved->past_and_through();
        const std::pair found(moved->by_gpudirect(), past + through);
        moved = std::make_shared<storage::Moved>();
        return found;
    }

    Side side;
    std::shared_ptr<FileQueue> queue;
    CuFile library{shim::cufile()};
    std::shared_ptr<storage::Moved> moved = std::make_shared<storage::Moved>();
};

} // namespace

TEST_CASE("gpudirect: any offset and size, both ways; what is not aligned passes through host buffers") {
    for (auto& io : backends()) {
        const std::string backend = io->name();
        CAPTURE(backend);
        GpuFiles files(std::move(io));
        const auto memory = files.side.alloc(4 * kPieceBytes, kGpu);
        for (const auto& [offset, at, nbytes] : {std::tuple<size_t, size_t, size_t>{0, 0, 4 * kPieceBytes},
                                                 {kPage, 3 * kPage, 2 * kPieceBytes + kPage},
                                                 {0, 0, kPieceBytes + 100},
                                                 {1, 0, kPieceBytes},
                                                 {0, 512, kPieceBytes},
                                                 {kPage, kPage, 1}}) {
            CAPTURE(offset);
            CAPTURE(at);
            CAPTURE(nbytes);
            const Bytes there = pattern(5 * kPieceBytes, static_cast<unsigned>(nbytes));
            const TestFile file(there, O_RDWR, Direct::always);
            REQUIRE(files.ask(file, memory).empty());
            files.side.put(*memory, Bytes(memory->nbytes(), 0xee));
            const uint64_t aligned = (offset | at) % kPage != 0 ? 0
                                                                : nbytes / kPieceBytes * kPieceBytes +
                                                                      (nbytes % kPage == 0 ? nbytes % kPieceBytes : 0);
            OpRef op = files.run(file, memory, false, {.file_offset = offset, .memory_offset = at, .nbytes = nbytes});
            CHECK(op->status() == Status::ok);
            CHECK(op->bytes_done() == nbytes);
            Bytes expected(memory->nbytes(), 0xee);
            overlay(expected, at, there, offset, nbytes);
            CHECK(same_bytes(files.side.get(*memory), expected));
            CHECK(files.taken() == std::pair<uint64_t, uint64_t>(aligned, nbytes - aligned));

            const size_t to = offset + (offset % kPage == 0 ? kPage : 0);
            op = files.run(file, memory, true, {.file_offset = to, .memory_offset = at, .nbytes = nbytes});
            CHECK(op->bytes_done() == nbytes);
            Bytes written = there;
            overlay(written, to, there, offset, nbytes);
            CHECK(same_bytes(file.bytes(), written));
            CHECK(files.taken() == std::pair<uint64_t, uint64_t>(aligned, nbytes - aligned));
        }
    }
    CHECK(fake_cufile_files() == 0);
}

TEST_CASE("gpudirect: the end of a file, a hole, and calls that stop short") {
    for (auto& io : backends()) {
        const std::string backend = io->name();
        CAPTURE(backend);
        GpuFiles files(std::move(io));
        const auto memory = files.side.alloc(2 * kPieceBytes, kGpu);
        const Bytes there = pattern(kPieceBytes + 10, 1);
        const TestFile file(there, O_RDWR, Direct::always);
        REQUIRE(files.ask(file, memory).empty());
        OpRef op = files.run(file, memory, false, {.nbytes = 2 * kPieceBytes});
        CHECK(op->bytes_done() == kPieceBytes + 10);
        CHECK(same_bytes(files.side.get(*memory, 0, kPieceBytes + 10), there));
        CHECK(files.taken() == std::pair<uint64_t, uint64_t>(kPieceBytes, 10));
        op = files.run(file, memory, false, {.nbytes = 2 * kPieceBytes}, 2 * kPieceBytes);
        CHECK(op->status() == Status::file_error);
        CHECK(op->value() == 0);
        CHECK(op->bytes_done() == kPieceBytes + 10);
        (void)files.taken();

        const TestFile sparse(Bytes{}, O_RDWR, Direct::always);
        REQUIRE(::ftruncate(sparse.kept, 2 * kPieceBytes) == 0);
        REQUIRE(files.ask(sparse, memory).empty());
        op = files.run(sparse, memory, false, {.nbytes = 2 * kPieceBytes});
        CHECK(op->bytes_done() == 2 * kPieceBytes);
        CHECK(same_bytes(files.side.get(*memory), Bytes(memory->nbytes(), 0)));
        CHECK(files.taken().first == 2 * kPieceBytes);

        // Short by pages, and by less.
        const Bytes whole = pattern(2 * kPieceBytes, 2);
        for (const size_t most : {16 * kPage, 100 * kPage + 512}) {
            CAPTURE(most);
            const TestFile long_one(whole, O_RDWR, Direct::always);
            REQUIRE(files.ask(long_one, memory).empty());
            fake_cufile_stop_short(most);
            op = files.run(long_one, memory, false, {.nbytes = whole.size()});
            CHECK(op->bytes_done() == whole.size());
            CHECK(same_bytes(files.side.get(*memory), whole));
            const auto [direct, staged] = files.taken();
            CHECK(direct + staged == whole.size());
            CHECK((staged == 0) == (most % kPage == 0));
            files.side.put(*memory, pattern(whole.size(), 3));
            op = files.run(long_one, memory, true, {.nbytes = whole.size()});
            CHECK(op->bytes_done() == whole.size());
            CHECK(same_bytes(long_one.bytes(), pattern(whole.size(), 3)));
            (void)files.taken();
            fake_cufile_stop_short(0);
        }
    }
}

TEST_CASE("gpudirect: what cuFile refuses passes through host buffers, and what the disk refuses fails") {
    for (auto& io : backends()) {
        const std::string backend = io->name();
        CAPTURE(backend);
        GpuFiles files(std::move(io));
        const auto memory = files.side.alloc(kPieceBytes * 8, kGpu);
        const Bytes there = pattern(memory->nbytes(), 5);
        for (const auto& [result, error, why] :
             {std::tuple<long, int, std::string>{-5009, 0, "CU_FILE_DEVICE_NOT_SUPPORTED"},
              {-5036, 0, "CU_FILE_GPU_MEMORY_PINNING_FAILED"},
              {-5099, 0, "error 5099"},
              {-1, EINVAL, "Invalid argument"}}) {
            CAPTURE(why);
            for (const bool write : {false, true}) {
                const TestFile file(write ? Bytes(there.size()) : there, O_RDWR, Direct::always);
                REQUIRE(files.ask(file, memory).empty());
                files.side.put(*memory, write ? there : Bytes(there.size()));
                fake_cufile_fail(2, result, error); // of the pieces that are under way others succeed
                OpRef op = files.run(file, memory, write, {.nbytes = there.size()});
                CHECK(op->status() == Status::ok);
                CHECK(op->bytes_done() == there.size());
                CHECK(same_bytes(write ? file.bytes() : files.side.get(*memory), there));
                CHECK(files.taken().second >= 2 * kPieceBytes);
                CHECK(file.file->known_no_gpudirect() == (write ? "cuFileWrite: " : "cuFileRead: ") + why);
                CHECK(files.ask(file, memory) == file.file->known_no_gpudirect());
                const int calls = fake_cufile_calls();
                op = files.run(file, memory, write, {.nbytes = there.size()});
                CHECK(op->status() == Status::ok);
                CHECK(fake_cufile_calls() == calls);
                (void)files.taken();
            }
        }
        for (const int error : {EIO, ENOSPC}) {
            const TestFile file(there, O_RDWR, Direct::always);
            REQUIRE(files.ask(file, memory).empty());
            fake_cufile_fail(100, -1, error);
            const OpRef op = files.run(file, memory, true, {.nbytes = there.size()});
            CHECK(op->status() == Status::file_error);
            CHECK(op->value() == static_cast<uint64_t>(error));
            CHECK(op->bytes_done() == 0);
            CHECK(same_bytes(file.bytes(), there));
            fake_cufile_fail(1, -1, EINTR);
            CHECK(files.run(file, memory, true, {.nbytes = kPieceBytes})->status() == Status::ok);
        }
    }
}

TEST_CASE("gpudirect: where all must go straight nothing passes through host buffers") {
    for (auto& io : backends()) {
        const std::string backend = io->name();
        CAPTURE(backend);
        GpuFiles files(std::move(io));
        const auto memory = files.side.alloc(kPieceBytes * 2, kGpu);
        const Bytes there = pattern(memory->nbytes(), 6);
        const TestFile file(there, O_RDWR, Direct::required);
        files.side.put(*memory, Bytes(there.size()));
        OpenFile::Length length;
        CHECK(file.file->gpu_obstacle(false, 0, kPage, memory->address(), length) == Obstacle::device);
        OpRef op = files.run(file, memory, false, {.nbytes = there.size()}); // cuFile was not asked
        CHECK(op->status() == Status::unsupported);
        CHECK(op->reason() == Reason::not_direct);
        REQUIRE(files.ask(file, memory).empty());
        CHECK(file.file->gpu_obstacle(false, 512, kPage, memory->address(), length) == Obstacle::offset);
        CHECK(file.file->gpu_obstacle(false, 0, 512, memory->address(), length) == Obstacle::length);
        CHECK(file.file->gpu_obstacle(false, 0, kPage, memory->address() + 512, length) == Obstacle::memory);
        CHECK(file.file->gpu_obstacle(false, there.size(), kPage, memory->address(), length) == Obstacle::end);
        CHECK(file.file->gpu_obstacle(true, there.size(), kPage, memory->address(), length) == Obstacle::none);
        op = files.run(file, memory, false, {.nbytes = there.size()});
        CHECK(op->status() == Status::ok);
        CHECK(same_bytes(files.side.get(*memory), there));
        CHECK(files.taken() == std::pair<uint64_t, uint64_t>(there.size(), 0));
        fake_cufile_fail(100, -5009, 0);
        op = files.run(file, memory, false, {.nbytes = there.size()});
        CHECK(op->reason() == Reason::not_direct);
        CHECK(op->bytes_done() == 0);
        CHECK(files.taken() == std::pair<uint64_t, uint64_t>(0, 0));
    }
}

TEST_CASE("gpudirect: a library, a driver or a file system that refuses is told") {
    GpuFiles files(storage::open_threads(1));
    const auto memory = files.side.alloc(kPieceBytes, kGpu);
    const Bytes there = pattern(kPieceBytes, 7);
    const TestFile file(there, O_RDWR, Direct::always);
    const auto ask = [&](CuFile& library, const std::shared_ptr<Region>& of) {
        const TestFile fresh(there, O_RDWR, Direct::always);
        return files.queue->why_staged(*fresh.file, place_of(of), library);
    };
    fake_cufile_refuse_driver(5001);
    CuFile refused(shim::cufile());
    CHECK(ask(refused, memory) == "cuFileDriverOpen: CU_FILE_DRIVER_NOT_INITIALIZED");
    fake_cufile_reset();
    CHECK(ask(refused, memory) == "cuFileDriverOpen: CU_FILE_DRIVER_NOT_INITIALIZED"); // it is asked once

    fake_cufile_open_by_other();
    CuFile shared(shim::cufile());
    CHECK(ask(shared, memory).find("compatibility mode") != std::string::npos);
    fake_cufile_reset();

    const shim::Loaded<shim::CuFileApi> none({"libnot-there.so.0"}, [](shim::Library&, shim::CuFileApi&) {});
    CuFile missing(none);
    CHECK(ask(missing, memory).find("libnot-there.so.0") != std::string::npos);

    fake_cufile_refuse_files(5008);
    CuFile usable(shim::cufile());
    CHECK(ask(usable, memory) == "cuFileHandleRegister: CU_FILE_IO_NOT_SUPPORTED");
    fake_cufile_refuse_files(0);
    CHECK(ask(usable, memory).empty());
    CHECK(ask(usable, files.side.alloc(kPage)) == "the memory is the host's");
    const TestFile cached(there);
    CHECK(files.queue->why_staged(*cached.file, place_of(memory), usable) ==
          "the file is not open for transfers past the page cache");
    const Files simulated(storage::open_threads(1));
    CHECK(simulated.queue->why_staged(*file.file, place_of(simulated.side.alloc(kPage, kSimDevice)), usable) ==
          "the memory is not that of an NVIDIA GPU");
}

TEST_CASE("gpudirect: a deadline that passes leaves the memory pinned until cuFile is done") {
    for (auto& io : backends()) {
        const std::string backend = io->name();
        CAPTURE(backend);
        GpuFiles files(std::move(io));
        auto memory = files.side.alloc(kPieceBytes, kGpu);
        const Bytes there = pattern(kPieceBytes, 8);
        const TestFile file(there, O_RDWR, Direct::always);
        REQUIRE(files.ask(file, memory).empty());
        fake_cufile_hold(true);
        const OpRef op = files.start(file, memory, false, {.nbytes = kPieceBytes}, 0, now_ns() + kMillisecond);
        CHECK(files.side.wait(op) == kDeadline);
        CHECK(eventually([] { return fake_cufile_held() == 1; }));
        CHECK(!memory->close());
        fake_cufile_hold(false);
        CHECK(eventually([&] {
            files.side.engine->wait([] { return false; }, now_ns() + kMillisecond, kMillisecond, false);
            return memory->pins() == 0;
        }));
    }
}

TEST_CASE("gpudirect: a queue and a file that are closed meanwhile") {
    for (auto& io : backends()) {
        const std::string backend = io->name();
        CAPTURE(backend);
        GpuFiles files(std::move(io));
        const auto memory = files.side.alloc(8 * kPieceBytes, kGpu);
        const Bytes there = pattern(memory->nbytes(), 9);
        auto file = std::make_unique<TestFile>(there, O_RDWR, Direct::always);
        REQUIRE(files.ask(*file, memory).empty());
        fake_cufile_hold(true);
        const OpRef op = files.start(*file, memory, false, {.nbytes = there.size()});
        file->file.reset();
        const int most = backend == "threads" ? 3 : static_cast<int>(std::min(3U, std::thread::hardware_concurrency()));
        CHECK(eventually([&] { return fake_cufile_held() == most; }));
        CHECK(fake_cufile_files() == 1);
        files.side.engine->close_work(files.queue, {Status::closed, Reason::owner_closed});
        CHECK(!files.queue->idle());
        fake_cufile_hold(false);
        CHECK(files.side.wait(op).ok()); // all pieces had begun
        CHECK(same_bytes(files.side.get(*memory), there));
        CHECK(files.queue->idle());
        CHECK(eventually([] { return fake_cufile_files() == 0; }));
    }
}

} // namespace test_gpudirect
