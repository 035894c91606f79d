// Tests that threads begin transfers with files while others look at the same queue, or close it.
#include "file_fixture.hpp"

#include <array>
#include <atomic>
#include <thread>
#include <vector>

namespace test_file_posting {

using namespace zerohop;
using namespace zerohop::test;

TEST_CASE("files: a caller does not wait for the thread that looks at other files") {
    auto made = std::make_unique<PlayedIo>();
    PlayedIo& io = *made;
    std::atomic<bool> looks{false};
    std::atomic<bool> go_on{true};
    io.before_reap = [&] {
        looks.store(true);
        looks.notify_all();
        go_on.wait(false);
    };
    const Files files(std::move(made));
    const TestFile file(Bytes(8192, 1));
    const auto memory = files.side.alloc(8192);
    const OpRef first = files.start(file, memory, false, {{.nbytes = 100}});
    go_on.store(false);
    looks.store(false);
    std::thread other([&] { let_poll(files); });
    looks.wait(false);
    const OpRef second =
        files.start(file, memory, false, {{.nbytes = 200}}); // returns although the other holds the queue
    CHECK(io.added().size() == 1);
    SUBCASE("it goes on") {
        go_on.store(true);
        go_on.notify_all();
        other.join();
        CHECK(eventually([&] { return io.added().size() == 2; }));
        for (const Job& job : io.added()) {
            io.end(job, static_cast<int32_t>(job.nbytes));
        }
        CHECK(files.side.wait(second).ok());
        CHECK(second->bytes_done() == 200);
    }
    SUBCASE("the queue is closed meanwhile") {
        go_on.store(true);
        go_on.notify_all();
        other.join();
        files.side.engine->close_work(files.queue, {Status::closed, Reason::owner_closed});
        for (const Job& job : io.added()) {
            io.end(job, static_cast<int32_t>(job.nbytes));
        }
        const Outcome outcome = files.side.wait(second);
        CHECK((outcome.ok() || outcome == Outcome{Status::closed, Reason::owner_closed}));
    }
    CHECK(files.side.wait(first).ok());
}

TEST_CASE("files: what waits for all that is under way ends with that, whatever ends first and begins later") {
    auto made = std::make_unique<PlayedIo>();
    PlayedIo& io = *made;
    const Files files(std::move(made));
    const TestFile file(Bytes(8192, 1));
    const auto memory = files.side.alloc(8192);
    CHECK_FALSE(files.queue->under_way_at(-1));
    const OpRef late = files.start(file, memory, false, {{.nbytes = 100}});
    late->finish({Status::deadline, Reason::none}); // its bytes still move
    const OpRef first = files.start(file, memory, false, {{.nbytes = 200}});
    const OpRef both = files.queue->under_way_at(-1);
    CHECK_FALSE(files.queue->under_way_at(0)); // no peer's
    const OpRef second = files.start(file, memory, false, {{.nbytes = 300}});
    const OpRef all = files.queue->under_way_at(-1);
    const std::vector<Job> jobs = io.added();
    REQUIRE(jobs.size() == 3);
    const auto end = [&](size_t which) { io.end(jobs[which], static_cast<int32_t>(jobs[which].nbytes)); };
    end(1);
    CHECK(files.side.wait(first).ok());
    CHECK_FALSE(both->done());
    end(2);
    CHECK(files.side.wait(second).ok());
    CHECK_FALSE(both->done());
    CHECK_FALSE(all->done());
    end(0);
    CHECK(files.side.wait(both).ok());
    CHECK(files.side.wait(all).ok());
    CHECK_FALSE(files.queue->under_way_at(-1));
}

TEST_CASE("files: many threads post at once, and the queue is closed under them") {
    for (auto& io : backends()) {
        const Files files(std::move(io));
        const Bytes there = pattern(8192, 3);
        const TestFile file(there);
        const auto memory = files.side.alloc(8192 * 4);
        std::array<std::vector<OpRef>, 4> begun;
        std::vector<std::thread> threads;
        for (size_t which = 0; which < begun.size(); ++which) {
            threads.emplace_back([&, which] {
                for (int i = 0; i < 200; ++i) {
                    begun[which].push_back(
                        files.start(file, memory, false, {{.memory_offset = 8192 * which, .nbytes = 8192}}));
                }
            });
        }
        for (std::thread& each : threads) {
            each.join();
        }
        files.side.engine->close_work(files.queue, {Status::closed, Reason::owner_closed});
        for (const auto& of_one : begun) {
            for (const OpRef& op : of_one) {
                const Outcome outcome = files.side.wait(op);
                CHECK((outcome.ok() || outcome == Outcome{Status::closed, Reason::owner_closed}));
                CHECK((!outcome.ok() || op->bytes_done() == 8192));
            }
        }
    }
}

} // namespace test_file_posting
