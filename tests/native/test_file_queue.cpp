// Tests transfers between files and memory: by io_uring where the machine has it, by threads, and by a system that the
// test itself plays.
#include "file_fixture.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

namespace test_file_queue {

using namespace zerohop;
using namespace zerohop::test;

namespace {

// Counts the threads of this process whose name begins so.
size_t tasks_named(const std::string& name) {
    size_t found = 0;
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
        std::string its;
        std::getline(std::ifstream(task.path() / "comm"), its);
        found += static_cast<size_t>(its.starts_with(name));
    }
    return found;
}

} // namespace

TEST_CASE("files: any offset and size, both ways, host and device") {
    for (auto& io : backends()) {
        const std::string backend = io->name();
        CAPTURE(backend);
        const Files files(std::move(io));
        for (const int device : {kHostDevice, kSimDevice}) {
            CAPTURE(device);
            const auto memory = files.side.alloc(kFileBytes, device);
            for (const size_t nbytes : {size_t{1}, size_t{4095}, size_t{4096}, size_t{kPieceBytes - 1},
                                        size_t{kPieceBytes}, size_t{kPieceBytes + 1}, kFileBytes - 99}) {
                CAPTURE(nbytes);
                const Bytes there = pattern(kFileBytes, static_cast<unsigned>(nbytes));
                const TestFile file(there);
                files.side.put(*memory, Bytes(kFileBytes, 0xee));
                OpRef op = files.run(file, memory, false, {.file_offset = 41, .memory_offset = 13, .nbytes = nbytes});
                CHECK(op->status() == Status::ok);
                CHECK(op->bytes_done() == nbytes);
                Bytes expected(kFileBytes, 0xee);
                overlay(expected, 13, there, 41, nbytes);
                CHECK(same_bytes(files.side.get(*memory), expected));

                op = files.run(file, memory, true, {.file_offset = 7, .memory_offset = 13, .nbytes = nbytes});
                CHECK(op->bytes_done() == nbytes);
                expected = there;
                overlay(expected, 7, there, 41, nbytes);
                CHECK(same_bytes(file.bytes(), expected));
            }
        }
    }
}

TEST_CASE("files: long copies of the page cache run side by side") {
    std::string why;
    for (const bool uring : {true, false}) {
        const size_t before = tasks_named("zerohop-file");
        const Files files(uring ? storage::open_io(64, 3, why) : storage::open_threads(3));
        const auto memory = files.side.alloc(kFileBytes);
        const TestFile file(pattern(kFileBytes, 6));
        const size_t most = uring && why.empty() ? std::min(3U, std::thread::hardware_concurrency()) : 3;
        CHECK(tasks_named("zerohop-file") == before + 1); // the first is there from the start
        CHECK(files.run(file, memory, false, {.nbytes = kFileBytes})->bytes_done() == kFileBytes);
        CHECK(tasks_named("zerohop-file") == before + most);
    }
}

TEST_CASE("files: bytes that the page cache has, lacks, and has in part") {
    for (auto& io : backends()) {
        const Files files(std::move(io));
        const auto memory = files.side.alloc(kFileBytes);
        const Bytes there = pattern(kFileBytes, 7);
        const TestFile file(there);
        for (const bool in_part : {false, true}) {
            CHECK(::fsync(file.kept) == 0);
            CHECK(::posix_fadvise(file.kept, 0, 0, POSIX_FADV_DONTNEED) == 0);
            std::array<std::byte, 4096> some;
            CHECK((!in_part || ::pread(file.kept, some.data(), some.size(), kPieceBytes) > 0));
            files.side.put(*memory, Bytes(kFileBytes, 0xee));
            CHECK(files.run(file, memory, false, {.nbytes = kFileBytes})->bytes_done() == kFileBytes);
            CHECK(same_bytes(files.side.get(*memory), there));
        }
    }
}

TEST_CASE("files: past the page cache, where that can be") {
    for (auto& io : backends()) {
        const Files files(std::move(io));
        const auto memory = files.side.alloc(4 * kPieceBytes);
        const Bytes there = pattern(kFileBytes, 5);
        const TestFile file(there, O_RDWR, Direct::always);
        files.side.put(*memory, Bytes(memory->nbytes(), 0xee));
        const OpRef op = files.run(file, memory, false, {.nbytes = 4 * kPieceBytes}); // ends beyond the file
        CHECK(op->bytes_done() == kFileBytes);
        Bytes expected(memory->nbytes(), 0xee);
        overlay(expected, 0, there, 0, kFileBytes);
        CHECK(same_bytes(files.side.get(*memory), expected));
        const auto [past, through] = file.file->moved();
        CHECK(past + through == kFileBytes);
        CHECK(files.moved->past_and_through() == std::pair(past, through));
    }
}

TEST_CASE("files: what must go past the page cache and cannot moves no byte") {
    for (auto& io : backends()) {
        const std::string backend = io->name();
        CAPTURE(backend);
        const Files files(std::move(io));
        const auto memory = files.side.alloc(4 * kPieceBytes);
        const Bytes there = pattern(3 * kPieceBytes + 4096, 5);
        const TestFile file(there, O_RDWR, Direct::required);
        constexpr Range kOdd{.file_offset = 1, .nbytes = kPieceBytes};
        constexpr Range kLong{.file_offset = 2 * kPieceBytes, .nbytes = 2 * kPieceBytes};
        files.side.put(*memory, Bytes(memory->nbytes(), 0xee));
        OpRef op = files.run(file, memory, false, kOdd);
        CHECK(op->status() == Status::unsupported);
        CHECK(op->reason() == Reason::not_direct);
        op = files.run(file, memory, true, {.file_offset = 4096, .nbytes = 100});
        CHECK(op->status() == Status::unsupported);
        CHECK(op->reason() == Reason::not_direct);
        CHECK(files.moved->past_and_through() == std::pair<uint64_t, uint64_t>(0, 0));
        CHECK(same_bytes(files.side.get(*memory), Bytes(memory->nbytes(), 0xee)));
        CHECK(same_bytes(file.bytes(), there));

        OpenFile::Length length;
        const std::byte* const data = memory->host();
        CHECK(file.file->obstacle(false, kOdd.file_offset, 4096, data, length) == Obstacle::offset);
        CHECK(file.file->obstacle(false, 0, 4097, data, length) == Obstacle::length);
        CHECK(file.file->obstacle(false, 0, 4096, data + 512, length) == Obstacle::memory);
        CHECK(file.file->obstacle(false, kLong.file_offset, kLong.nbytes, data, length) == Obstacle::end);
        CHECK(file.file->obstacle(true, kLong.file_offset, kLong.nbytes, data, length) == Obstacle::none);
        op = files.run(file, memory, false, {.nbytes = there.size()});
        CHECK(op->status() == Status::ok);
        CHECK(files.moved->past_and_through() == std::pair<uint64_t, uint64_t>(there.size(), 0));
        file.file->refuse_direct();
        CHECK(file.file->obstacle(true, 0, 4096, data, length) == Obstacle::file);
        op = files.run(file, memory, false, {.nbytes = 4096});
        CHECK(op->status() == Status::unsupported);
        CHECK(op->reason() == Reason::not_direct);
    }
}

TEST_CASE("files: the end of a file, a hole and a failure are three things") {
    for (auto& io : backends()) {
        const Files files(std::move(io));
        const auto memory = files.side.alloc(2 * kPieceBytes);
        const TestFile short_one(pattern(kPieceBytes + 10, 1));
        OpRef op = files.run(short_one, memory, false, {.nbytes = 2 * kPieceBytes});
        CHECK(op->status() == Status::ok);
        CHECK(op->bytes_done() == kPieceBytes + 10);
        op = files.run(short_one, memory, false, {.nbytes = 2 * kPieceBytes}, 2 * kPieceBytes);
        CHECK(op->status() == Status::file_error);
        CHECK(op->value() == 0);
        CHECK(op->bytes_done() == kPieceBytes + 10);
        op = files.run(short_one, memory, false, {.file_offset = 5 * kPieceBytes, .nbytes = 10});
        CHECK(op->bytes_done() == 0);

        const TestFile sparse(Bytes{});
        REQUIRE(::ftruncate(sparse.kept, 2 * kPieceBytes) == 0);
        files.side.put(*memory, Bytes(memory->nbytes(), 0xee));
        op = files.run(sparse, memory, false, {.nbytes = 2 * kPieceBytes});
        CHECK(op->bytes_done() == 2 * kPieceBytes);
        CHECK(same_bytes(files.side.get(*memory), Bytes(memory->nbytes(), 0)));

        const TestFile readonly(pattern(100, 1), O_RDONLY);
        op = files.run(readonly, memory, true, {.nbytes = 100});
        CHECK(op->status() == Status::file_error);
        CHECK(op->value() == EBADF);
    }
}

TEST_CASE("files: the system stops short, is interrupted, or refuses the way past the cache") {
    auto made = std::make_unique<PlayedIo>();
    PlayedIo& io = *made;
    const Files files(std::move(made));
    const TestFile file(Bytes(8192, 1), O_RDWR, Direct::always);
    const auto memory = files.side.alloc(8192);
    const OpRef op = files.start(file, memory, false, {{.nbytes = 8192}});
    const auto play = [&](int32_t value) {
        const std::vector<Job> before = io.added();
        io.end(before.back(), value);
        CHECK(eventually([&] {
            let_poll(files);
            return op->done() || io.added().size() > before.size();
        }));
    };
    const int past_cache = io.added().back().fd;
    play(-EINTR);
    CHECK(io.added().size() == 2);
    CHECK(io.added().back().fd == past_cache);
    play(-EINVAL);
    CHECK(io.added().back().fd == file.file->fd());
    play(100);
    CHECK(io.added().back().offset == 100);
    CHECK(io.added().back().nbytes == 8092);
    CHECK(!op->done());
    play(8092);
    CHECK(files.side.wait(op) == kOk);
    CHECK(op->bytes_done() == 8192);
}

TEST_CASE("files: bytes that have not reached a device do not count") {
    auto made = std::make_unique<PlayedIo>();
    PlayedIo& io = *made;
    const Files files(std::move(made));
    const TestFile file(Bytes(8192, 1));
    const auto memory = files.side.alloc(8192, kSimDevice);
    size_t seen = 0;
    const auto next_job = [&] {
        CHECK(eventually([&] {
            let_poll(files);
            return io.added().size() > seen;
        }));
        seen = io.added().size();
        return io.added().back();
    };
    SUBCASE("as the system fails after a part") {
        const OpRef op = files.start(file, memory, false, {{.nbytes = 8192}});
        io.end(next_job(), 100);
        io.end(next_job(), -EIO);
        CHECK(files.side.wait(op) == Outcome{Status::file_error, Reason::none});
        CHECK(op->bytes_done() == 0);
    }
    SUBCASE("as the copy fails") {
        const OpRef op = files.start(file, memory, false, {{.nbytes = 8192}});
        files.side.sim->inject(kSimDevice, accel::SimFault::copy, 1);
        io.end(next_job(), 8192);
        CHECK(files.side.wait(op).status == Status::device_error);
        CHECK(op->bytes_done() == 0);
    }
    SUBCASE("but those of a file do") {
        const OpRef op = files.start(file, memory, true, {{.nbytes = 8192}});
        io.end(next_job(), 100);
        io.end(next_job(), -EIO);
        CHECK(files.side.wait(op) == Outcome{Status::file_error, Reason::none});
        CHECK(op->bytes_done() == 100);
    }
}

TEST_CASE("files: threads post at once, and the queue is closed meanwhile") {
    constexpr size_t kThreads = 4;
    constexpr size_t kEach = 300;
    constexpr uint64_t kPage = 4096;
    for (const bool closes : {false, true}) {
        for (auto& io : backends()) {
            const std::string backend = io->name();
            CAPTURE(backend);
            const Files files(std::move(io));
            const Bytes there = pattern(kThreads * kEach * kPage, 11);
            const TestFile file(there);
            const auto memory = files.side.alloc(there.size());
            files.side.put(*memory, Bytes(there.size(), 0xee));
            const Place place = place_of(memory);
            std::vector<OpRef> ops(kThreads * kEach);
            std::vector<Outcome> posted(ops.size());
            std::atomic<size_t> started{0};
            const auto work = [&](size_t first) {
                for (size_t i = first; i < first + kEach; ++i) {
                    ops[i] = files.side.engine->operations().create(0);
                    auto sink = std::make_shared<storage::OperationSink>(*files.side.engine, ops[i], 1, 0, files.moved);
                    const std::vector<Range> range{{i * kPage, i * kPage, kPage, 0}};
                    posted[i] = files.queue->post({file.file, place, false}, range, std::move(sink));
                    started.fetch_add(1);
                }
            };
            std::vector<std::thread> threads;
            for (size_t i = 0; i < kThreads; ++i) {
                threads.emplace_back(work, i * kEach);
            }
            if (closes) {
                CHECK(eventually([&] { return started.load() > kEach; }));
                files.side.engine->close_work(files.queue, {Status::closed, Reason::owner_closed});
            }
            for (std::thread& thread : threads) {
                thread.join();
            }
            Bytes expected(there.size(), 0xee);
            for (size_t i = 0; i < ops.size(); ++i) {
                const Outcome outcome = posted[i].ok() ? files.side.wait(ops[i]) : posted[i];
                if (outcome.ok()) {
                    overlay(expected, i * kPage, there, i * kPage, kPage);
                } else {
                    CHECK(closes);
                    CHECK(outcome == Outcome{Status::closed, Reason::owner_closed});
                }
            }
            CHECK(same_bytes(files.side.get(*memory), expected));
        }
    }
}

TEST_CASE("files: memory stays pinned after a deadline, until the system is done with it") {
    auto made = std::make_unique<PlayedIo>();
    PlayedIo& io = *made;
    const Files files(std::move(made));
    const TestFile file(Bytes(8192, 1));
    const auto memory = files.side.alloc(8192);
    const OpRef op = files.start(file, memory, false, {{.nbytes = 8192}}, 0, now_ns() + kMillisecond);
    CHECK(files.side.wait(op) == kDeadline);
    CHECK(op->holders() > 1);
    CHECK(!memory->close());
    io.end(io.added().back(), 8192);
    CHECK(eventually([&] {
        let_poll(files);
        return memory->pins() == 0;
    }));
    CHECK(op->holders() == 1);
    CHECK(op->status() == Status::deadline);
}

TEST_CASE("files: what nobody waits for any more does not begin, nor does anything after close()") {
    auto made = std::make_unique<PlayedIo>();
    PlayedIo& io = *made;
    const Files files(std::move(made));
    const TestFile file(Bytes(100, 1));
    const auto memory = files.side.alloc(100 * kPieceBytes);
    const OpRef large = files.start(file, memory, false, {{.nbytes = 100 * kPieceBytes}});
    const OpRef next = files.start(file, memory, false, {{.nbytes = 10}});
    CHECK(io.added().size() == io.depth());
    large->finish(kCancelled);
    files.side.engine->close_work(files.queue, {Status::closed, Reason::owner_closed});
    CHECK(files.side.wait(next) == Outcome{Status::closed, Reason::owner_closed});
    CHECK(!files.queue->idle());
    for (const Job& job : io.added()) {
        io.end(job, static_cast<int32_t>(job.nbytes));
    }
    CHECK(eventually([&] {
        let_poll(files);
        return files.queue->idle();
    }));
    CHECK(io.added().size() == io.depth());
    CHECK(memory->close());
}

TEST_CASE("files: memory that the system keeps at hand, and another that lies where it was") {
    std::string why;
    auto io = storage::open_uring(64, why);
    if (!io) {
        MESSAGE("io_uring is not tested here: " << why);
        return;
    }
    const Files files(std::move(io));
    const Bytes there = pattern(kFileBytes, 9);
    const TestFile file(there);
    auto memory = files.side.alloc(kFileBytes);
    if (!files.queue->fix(place_of(memory), memory, why)) {
        MESSAGE("fixed buffers are not tested here: " << why);
        return;
    }
    CHECK(files.queue->fix(place_of(memory), memory, why));
    CHECK(files.run(file, memory, false, {.nbytes = kFileBytes})->bytes_done() == kFileBytes);
    CHECK(same_bytes(files.side.get(*memory), there));
    const auto where = reinterpret_cast<uint64_t>(memory->host());
    memory.reset(); // without unfix()
    for (int i = 0; i < 8; ++i) {
        const auto other = files.side.alloc(kFileBytes);
        CAPTURE(reinterpret_cast<uint64_t>(other->host()) == where);
        CHECK(files.run(file, other, false, {.nbytes = kFileBytes})->bytes_done() == kFileBytes);
        CHECK(same_bytes(files.side.get(*other), there));
    }
    const auto last = files.side.alloc(kFileBytes);
    CHECK(files.queue->fix(place_of(last), last, why));
    files.queue->unfix(last.get());
    CHECK(files.run(file, last, true, {.nbytes = kFileBytes})->bytes_done() == kFileBytes);
    const auto device = files.side.alloc(100, kSimDevice);
    CHECK(!files.queue->fix(place_of(device), device, why));
    CHECK(why == "the memory is a device's");
}

TEST_CASE("files: the system keeps memory at hand until transfers have ended that began before") {
    auto made = std::make_unique<PlayedIo>();
    PlayedIo& io = *made;
    const Files files(std::move(made));
    const TestFile file(Bytes(8192, 1));
    const auto memory = files.side.alloc(8192);
    std::string why;
    io.fixes = 5;
    REQUIRE(files.queue->fix(place_of(memory), memory, why));
    const OpRef op = files.start(file, memory, false, {{.nbytes = 8192}});
    files.queue->unfix(memory.get());
    CHECK(io.unfixed().empty());
    io.end(io.added().back(), 100); // the rest goes by the same buffer
    CHECK(eventually([&] {
        let_poll(files);
        return io.added().size() == 2;
    }));
    CHECK(io.added().back().buffer == 5);
    CHECK(io.unfixed().empty());
    io.end(io.added().back(), 8092);
    CHECK(files.side.wait(op) == kOk);
    CHECK(eventually([&] { return io.unfixed() == std::vector<int>{5}; })); // the poller drops them after the end
    (void)files.start(file, memory, false, {{.nbytes = 10}});
    CHECK(io.added().back().buffer == -1);
    io.end(io.added().back(), 10);
}

TEST_CASE("files: memory keeps its bytes, and those that are written meanwhile, as its pages are gathered") {
    constexpr size_t kHuge = 2ULL << 20;
    auto made = std::make_unique<PlayedIo>(); // which fixes nothing: the pages are gathered before
    const Files files(std::move(made));
    const auto memory = files.side.alloc(4 * kHuge + 4096);
    CHECK(memory->address() % kHuge == 0);
    const Bytes before = pattern(memory->nbytes(), 3);
    files.side.put(*memory, before);
    auto* const counter = reinterpret_cast<std::atomic<uint64_t>*>(memory->host() + kHuge);
    counter->store(0);
    std::atomic<bool> stop{false};
    uint64_t counted = 0;
    std::thread counts([&] {
        while (!stop.load() || counted == 0) {
            counter->fetch_add(1);
            ++counted;
        }
    });
    std::string why;
    CHECK(!files.queue->fix(place_of(memory), memory, why));
    CHECK(why == "played");
    stop.store(true);
    counts.join();
    CHECK(counter->load() == counted);
    Bytes expected = before;
    std::memcpy(expected.data() + kHuge, &counted, sizeof counted);
    CHECK(same_bytes(files.side.get(*memory), expected));
    CHECK(memory->pins() == 0);
}

} // namespace test_file_queue
