// Tests the numbers under which io_uring knows the descriptors of open files.
#include "file_fixture.hpp"

#include <cerrno>
#include <sys/resource.h>
#include <vector>

namespace test_fixed_files {

using namespace zerohop;
using namespace zerohop::test;

namespace {

// True if nothing but the test's own descriptor has the file open: the system grants such a lease only then.
bool is_alone(int fd) {
    if (::fcntl(fd, F_SETLEASE, F_WRLCK) != 0) {
        return false;
    }
    REQUIRE(::fcntl(fd, F_SETLEASE, F_UNLCK) == 0);
    return true;
}

} // namespace

TEST_CASE("fixed files: the system lets go of a file that is closed") {
    for (auto& io : backends()) {
        const std::string backend = io->name();
        CAPTURE(backend);
        const Files files(std::move(io));
        const auto memory = files.side.alloc(kPieceBytes);
        for (const Direct direct : {Direct::never, Direct::always}) {
            const Bytes there = pattern(kPieceBytes, 3);
            TestFile file(there, O_RDWR, direct);
            CHECK(files.run(file, memory, false, {.nbytes = there.size()})->status() == Status::ok);
            CHECK(same_bytes(files.side.get(*memory), there));
            CHECK(!is_alone(file.kept));
            file.file.reset();
            CHECK(eventually([&] {
                let_poll(files);
                return is_alone(file.kept);
            }));
        }
    }
}

TEST_CASE("fixed files: a file outlives the ring that knows it, and is used by another") {
    const Bytes there = pattern(kPieceBytes, 4);
    const TestFile file(there, O_RDWR, Direct::always);
    for (int round = 0; round < 2; ++round) {
        for (auto& io : backends()) {
            const Files files(std::move(io));
            const auto memory = files.side.alloc(kPieceBytes);
            CHECK(files.run(file, memory, false, {.nbytes = there.size()})->status() == Status::ok);
            CHECK(same_bytes(files.side.get(*memory), there));
        }
    }
}

TEST_CASE("fixed files: more of them than the table has room for") {
    constexpr size_t kMany = 1100; // of which 1024 have numbers
    rlimit before{};
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
    const rlimit enough{std::min<rlim_t>(4096, before.rlim_max), before.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &enough) == 0);
    {
        std::vector<std::unique_ptr<FileIo>> all = backends();
        const Files files(std::move(all.front()));
        const auto memory = files.side.alloc(4096);
        const Bytes there = pattern(4096, 5);
        const TestFile first(there);
        std::vector<std::shared_ptr<OpenFile>> many;
        for (size_t i = 0; i < kMany; ++i) {
            const int fd = ::fcntl(first.file->fd(), F_DUPFD_CLOEXEC, 0);
            REQUIRE(fd >= 0);
            many.push_back(std::make_shared<OpenFile>(fd, -1, storage::Alignment{}, Direct::never));
        }
        for (const auto& each : many) {
            files.side.put(*memory, Bytes(4096));
            OpRef op = files.side.engine->operations().create(0);
            const Range range{.nbytes = 4096};
            auto sink = std::make_shared<storage::OperationSink>(*files.side.engine, op, 1, 0, files.moved);
            REQUIRE(files.queue->post({each, place_of(memory), false}, {&range, 1}, std::move(sink)).ok());
            CHECK(files.side.wait(op).ok());
            REQUIRE(same_bytes(files.side.get(*memory), there));
        }
    }
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
}

} // namespace test_fixed_files
