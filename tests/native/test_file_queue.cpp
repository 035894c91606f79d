// Tests transfers between files and memory: by io_uring where the machine has it, by threads, and by a system that the
// test itself plays.
#include "engine_fixture.hpp"
#include "storage/file_queue.hpp"
#include "storage/sinks.hpp"

#include <array>
#include <atomic>
#include <cstring>
#include <deque>
#include <fcntl.h>
#include <numeric>
#include <sys/stat.h>
#include <thread>

using namespace zerohop;
using namespace zerohop::test;
using storage::Completion;
using storage::Direct;
using storage::FileIo;
using storage::FileQueue;
using storage::Job;
using storage::kPieceBytes;
using storage::OpenFile;
using storage::Priority;
using storage::Range;
using storage::Result;
using storage::Ring;

namespace {

constexpr uint64_t kStaging = 4 * kPieceBytes;
constexpr size_t kBytes = 3 * kPieceBytes + 12'345; // no multiple of anything

// A file without a name, which has `bytes`.
struct TestFile {
    explicit TestFile(const Bytes& bytes, int flags = O_RDWR, Direct direct = Direct::never) {
        std::string name = "/tmp/zerohop-test-XXXXXX";
        const int made = ::mkstemp(name.data());
        REQUIRE(made >= 0);
        REQUIRE(::write(made, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
        kept = ::open(name.c_str(), O_RDWR | O_CLOEXEC);
        const int past = direct == Direct::never ? -1 : ::open(name.c_str(), flags | O_CLOEXEC | O_DIRECT);
        file = std::make_shared<OpenFile>(::open(name.c_str(), flags | O_CLOEXEC), past, 4096, direct);
        ::unlink(name.c_str());
        ::close(made);
    }
    TestFile(const TestFile&) = delete;
    TestFile& operator=(const TestFile&) = delete;
    ~TestFile() { ::close(kept); }

    [[nodiscard]] Bytes bytes() const {
        struct stat facts{};
        REQUIRE(::fstat(kept, &facts) == 0);
        Bytes found(static_cast<size_t>(facts.st_size));
        REQUIRE(::pread(kept, found.data(), found.size(), 0) == facts.st_size);
        return found;
    }

    int kept = -1;
    std::shared_ptr<OpenFile> file;
};

// Each job waits until the test says how it ends.
class PlayedIo final : public FileIo {
public:
    const char* name() const override { return "played"; }
    size_t depth() const override { return 4; }
    void add(const Job& job) override {
        const std::lock_guard lock(mutex_);
        added_.push_back(job);
    }
    bool submit() override { return true; }
    size_t reap(std::span<Result> results) override {
        const std::lock_guard lock(mutex_);
        const size_t found = std::min(results.size(), ended_.size());
        std::copy_n(ended_.begin(), found, results.begin());
        ended_.erase(ended_.begin(), ended_.begin() + static_cast<ptrdiff_t>(found));
        return found;
    }
    int fix(std::byte* /*data*/, size_t /*nbytes*/, std::string& why) override {
        why = "played";
        return -1;
    }
    void unfix(int /*buffer*/) override {}
    int fd() const override { return event_.get(); }
    bool ready() const override {
        const std::lock_guard lock(mutex_);
        return !ended_.empty();
    }
    void abandon() override {}

    // For the test.
    std::vector<Job> added() const {
        const std::lock_guard lock(mutex_);
        return added_;
    }
    void end(const Job& job, int32_t value) {
        {
            const std::lock_guard lock(mutex_);
            ended_.push_back({job.number, value});
        }
        event_.ring();
    }

private:
    mutable std::mutex mutex_;
    std::vector<Job> added_;
    std::deque<Result> ended_;
    Descriptor event_ = Descriptor::event();
};

Place place_of(const std::shared_ptr<Region>& memory) {
    Place place;
    REQUIRE(pin_place(memory, place).ok());
    return place;
}

struct Files {
    explicit Files(std::unique_ptr<FileIo> io)
        : queue(std::make_shared<FileQueue>(*side.engine, std::move(io), kStaging)) {
        side.engine->add_work(queue);
    }
    ~Files() { side.close(); }
    Files(const Files&) = delete;
    Files& operator=(const Files&) = delete;

    OpRef start(const TestFile& file, const std::shared_ptr<Region>& memory, bool write, std::vector<Range> ranges,
                uint64_t least = 0, uint64_t deadline_ns = 0) const {
        OpRef op = side.engine->operations().create(deadline_ns);
        auto sink = std::make_shared<storage::OperationSink>(*side.engine, op, ranges.size(), least);
        REQUIRE(queue->post({file.file, place_of(memory), write}, ranges, std::move(sink)).ok());
        return op;
    }
    OpRef run(const TestFile& file, const std::shared_ptr<Region>& memory, bool write, const Range& range,
              uint64_t least = 0) const {
        OpRef op = start(file, memory, write, {range}, least);
        (void)side.wait(op);
        return op;
    }

    Side side;
    std::shared_ptr<FileQueue> queue;
};

std::vector<std::unique_ptr<FileIo>> backends() {
    std::vector<std::unique_ptr<FileIo>> all;
    std::string why;
    if (auto uring = storage::open_uring(64, why)) {
        all.push_back(std::move(uring));
    } else {
        MESSAGE("io_uring is not tested here: " << why);
    }
    all.push_back(storage::open_threads(3));
    return all;
}

// Lets the poller see what the test has played.
void let_poll(const Files& files) {
    files.side.engine->wait([] { return false; }, now_ns() + kMillisecond, kMillisecond, false);
}

} // namespace

TEST_CASE("files: any offset and size, both ways, host and device") {
    for (auto& io : backends()) {
        CAPTURE(io->name());
        const Files files(std::move(io));
        for (const int device : {kHostDevice, kSimDevice}) {
            CAPTURE(device);
            const auto memory = files.side.alloc(kBytes, device);
            for (const size_t nbytes : {size_t{1}, size_t{4095}, size_t{4096}, size_t{kPieceBytes - 1},
                                        size_t{kPieceBytes}, size_t{kPieceBytes + 1}, kBytes - 99}) {
                CAPTURE(nbytes);
                const Bytes there = pattern(kBytes, static_cast<unsigned>(nbytes));
                const TestFile file(there);
                files.side.put(*memory, Bytes(kBytes, 0xee));
                OpRef op = files.run(file, memory, false, {.file_offset = 41, .memory_offset = 13, .nbytes = nbytes});
                CHECK(op->status() == Status::ok);
                CHECK(op->bytes_done() == nbytes);
                Bytes expected(kBytes, 0xee);
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

TEST_CASE("files: past the page cache, where that can be") {
    for (auto& io : backends()) {
        const Files files(std::move(io));
        const auto memory = files.side.alloc(4 * kPieceBytes);
        const Bytes there = pattern(kBytes, 5);
        const TestFile file(there, O_RDWR, Direct::always);
        files.side.put(*memory, Bytes(memory->nbytes(), 0xee));
        const OpRef op = files.run(file, memory, false, {.nbytes = 4 * kPieceBytes}); // ends beyond the file
        CHECK(op->bytes_done() == kBytes);
        Bytes expected(memory->nbytes(), 0xee);
        overlay(expected, 0, there, 0, kBytes);
        CHECK(same_bytes(files.side.get(*memory), expected));
        const auto [past, through] = file.file->moved();
        CHECK(past + through == kBytes);
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

TEST_CASE("files: a ring keeps each result until it is taken, and no more than it has entries") {
    for (auto& io : backends()) {
        const Files files(std::move(io));
        const Bytes there = pattern(1 << 20, 3);
        const TestFile file(there);
        const auto memory = files.side.alloc(1 << 20);
        const auto ring = std::make_shared<Ring>(*files.side.engine, 256);
        CHECK(!ring->reserve(257));
        REQUIRE(ring->reserve(256));
        CHECK(!ring->reserve(1));
        std::vector<Range> ranges;
        for (uint64_t i = 0; i < 256; ++i) {
            ranges.push_back(
                {.file_offset = (255 - i) * 4096, .memory_offset = i * 4096, .nbytes = 4096, .userdata = i});
        }
        REQUIRE(files.queue->post({file.file, place_of(memory)}, ranges, ring).ok());
        std::vector<uint64_t> seen;
        while (ring->taken_up() != 0) {
            REQUIRE(files.side.engine->wait([&] { return ring->ready() != 0; }, soon(), 0));
            std::array<Completion, 100> taken;
            const size_t count = ring->take(taken);
            for (size_t i = 0; i < count; ++i) {
                CHECK(taken[i].result == 4096);
                seen.push_back(taken[i].userdata);
            }
        }
        std::sort(seen.begin(), seen.end());
        std::vector<uint64_t> all(256);
        std::iota(all.begin(), all.end(), uint64_t{0});
        CHECK(seen == all);
        Bytes expected(1 << 20);
        for (size_t i = 0; i < 256; ++i) {
            overlay(expected, i * 4096, there, (255 - i) * 4096, 4096);
        }
        CHECK(same_bytes(files.side.get(*memory), expected));
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
    const Bytes there = pattern(kBytes, 9);
    const TestFile file(there);
    auto memory = files.side.alloc(kBytes);
    if (!files.queue->fix(place_of(memory), memory, why)) {
        MESSAGE("fixed buffers are not tested here: " << why);
        return;
    }
    CHECK(files.queue->fix(place_of(memory), memory, why));
    CHECK(files.run(file, memory, false, {.nbytes = kBytes})->bytes_done() == kBytes);
    CHECK(same_bytes(files.side.get(*memory), there));
    const auto where = reinterpret_cast<uint64_t>(memory->host());
    memory.reset(); // without unfix()
    for (int i = 0; i < 8; ++i) {
        const auto other = files.side.alloc(kBytes);
        CAPTURE(reinterpret_cast<uint64_t>(other->host()) == where);
        CHECK(files.run(file, other, false, {.nbytes = kBytes})->bytes_done() == kBytes);
        CHECK(same_bytes(files.side.get(*other), there));
    }
    const auto last = files.side.alloc(kBytes);
    CHECK(files.queue->fix(place_of(last), last, why));
    files.queue->unfix(last.get());
    CHECK(files.run(file, last, true, {.nbytes = kBytes})->bytes_done() == kBytes);
    const auto device = files.side.alloc(100, kSimDevice);
    CHECK(!files.queue->fix(place_of(device), device, why));
    CHECK(why == "the memory is a device's");
}

TEST_CASE("files: several wait for the results of a ring, each for as many as it wants") {
    auto made = std::make_unique<PlayedIo>();
    PlayedIo& io = *made;
    const Files files(std::move(made));
    const TestFile file(Bytes(8192, 1));
    const auto memory = files.side.alloc(8192);
    const auto ring = std::make_shared<Ring>(*files.side.engine, 4);
    const auto waits_for = [&](size_t results) {
        OpRef op = files.side.engine->operations().create(0);
        ring->end_when(results, op);
        return op;
    };
    CHECK(waits_for(3)->done()); // nothing can come
    REQUIRE(ring->reserve(3));
    const std::vector<Range> ranges{{.nbytes = 10}, {.nbytes = 20}, {.nbytes = 30}};
    REQUIRE(files.queue->post({file.file, place_of(memory)}, ranges, ring).ok());
    const OpRef one = waits_for(1);
    const OpRef other = waits_for(1);
    const OpRef two = waits_for(2);
    const OpRef all = waits_for(9);
    CHECK(!one->done());
    io.end(io.added()[0], 10);
    CHECK(files.side.wait(one) == kOk);
    CHECK(files.side.wait(other) == kOk);
    CHECK(!two->done());
    io.end(io.added()[1], 20);
    CHECK(files.side.wait(two) == kOk);
    CHECK(!all->done());
    std::array<Completion, 4> taken;
    CHECK(ring->take(taken) == 2);
    CHECK(!all->done());
    io.end(io.added()[2], 30);
    CHECK(files.side.wait(all) == kOk);
    CHECK(ring->ready() == 1);
}

TEST_CASE("files: cancelled transfers end when the system is done with their memory, and others go on") {
    auto made = std::make_unique<PlayedIo>();
    PlayedIo& io = *made;
    const Files files(std::move(made));
    const TestFile file(Bytes(8192, 1));
    const auto memory = files.side.alloc(8192);
    const auto ring = std::make_shared<Ring>(*files.side.engine, 8);
    const auto other = std::make_shared<Ring>(*files.side.engine, 1);
    REQUIRE(ring->reserve(6));
    REQUIRE(other->reserve(1));
    std::vector<Range> ranges;
    for (uint64_t i = 0; i < 6; ++i) { // four are under way, and two wait
        ranges.push_back({.file_offset = i * 100, .memory_offset = i * 100, .nbytes = 100, .userdata = i});
    }
    ranges[5].userdata = 1;
    REQUIRE(files.queue->post({file.file, place_of(memory)}, ranges, ring).ok());
    const std::vector<Range> foreign{{.nbytes = 10, .userdata = 1}};
    REQUIRE(files.queue->post({file.file, place_of(memory)}, foreign, other).ok());
    const auto ended = [&](size_t count) {
        CHECK(eventually([&] {
            let_poll(files);
            return ring->ready() >= count;
        }));
        std::vector<Completion> taken(8);
        taken.resize(ring->take(taken));
        CHECK(taken.size() == count);
        return taken;
    };

    CHECK(files.queue->cancel(*ring, 99, kCancelled) == 0);
    CHECK(files.queue->cancel(*ring, 4, kCancelled) == 1);
    const std::vector<Completion> waited = ended(1); // it had not begun
    CHECK(waited[0].userdata == 4);
    CHECK(waited[0].outcome == kCancelled);

    CHECK(files.queue->cancel(*ring, 1, kCancelled) == 2);
    CHECK(files.queue->cancel(*ring, 1, kCancelled) == 0);
    const std::vector<Completion> second = ended(1);
    CHECK(second[0].userdata == 1);
    let_poll(files);
    CHECK(ring->ready() == 0); // the first of them is under way
    CHECK(!memory->close());
    const std::vector<Job> jobs = io.added();
    REQUIRE(jobs.size() == 4);
    io.end(jobs[1], 100);
    const std::vector<Completion> first = ended(1);
    CHECK(first[0].userdata == 1);
    CHECK(first[0].outcome == kCancelled);
    io.end(jobs[0], 100); // nobody has cancelled it
    const std::vector<Completion> good = ended(1);
    CHECK(good[0].userdata == 0);
    CHECK(good[0].result == 100);
    CHECK(good[0].outcome == kOk);

    CHECK(files.queue->cancel(*ring, std::nullopt, kCancelled) == 2);
    REQUIRE(io.added().size() == 5);
    io.end(io.added()[4], 10);
    CHECK(eventually([&] {
        let_poll(files);
        return other->ready() == 1;
    }));
    std::array<Completion, 1> untouched;
    CHECK(other->take(untouched) == 1);
    CHECK(untouched[0].outcome == kOk);
    io.end(jobs[2], 100);
    io.end(jobs[3], -EIO);
    for (const Completion& each : ended(2)) {
        CHECK(each.outcome == kCancelled); // the first failure counts
    }
    CHECK(ring->taken_up() == 0);
    CHECK(memory->pins() == 0);
}

TEST_CASE("files: a cancelled transfer of many pieces begins no more of them, and has one result") {
    auto made = std::make_unique<PlayedIo>();
    PlayedIo& io = *made;
    const Files files(std::move(made));
    const TestFile file(Bytes(100, 1));
    const auto memory = files.side.alloc(100 * kPieceBytes);
    const auto ring = std::make_shared<Ring>(*files.side.engine, 1);
    REQUIRE(ring->reserve(1));
    const std::vector<Range> large{{.nbytes = 100 * kPieceBytes, .userdata = 7}};
    REQUIRE(files.queue->post({file.file, place_of(memory)}, large, ring).ok());
    CHECK(io.added().size() == io.depth());
    CHECK(files.queue->cancel(*ring, 7, kCancelled) == 1);
    for (const Job& job : io.added()) {
        CHECK(ring->ready() == 0);
        io.end(job, static_cast<int32_t>(job.nbytes));
        let_poll(files);
    }
    CHECK(eventually([&] {
        let_poll(files);
        return ring->ready() == 1;
    }));
    CHECK(io.added().size() == io.depth());
    std::array<Completion, 1> taken;
    CHECK(ring->take(taken) == 1);
    CHECK(taken[0].outcome == kCancelled);
    CHECK(memory->pins() == 0);
}

TEST_CASE("files: a higher priority goes first where not all can be under way") {
    auto made = std::make_unique<PlayedIo>();
    PlayedIo& io = *made;
    const Files files(std::move(made));
    const TestFile file(Bytes(8192, 1));
    const auto memory = files.side.alloc(8192);
    const auto ring = std::make_shared<Ring>(*files.side.engine, 16);
    REQUIRE(ring->reserve(10));
    const auto post = [&](Priority priority, const std::vector<Range>& ranges) {
        REQUIRE(files.queue->post({file.file, place_of(memory), false, priority}, ranges, ring).ok());
    };
    post(Priority::low, {{.nbytes = 1}, {.nbytes = 2}, {.nbytes = 3}, {.nbytes = 4}}); // all that can be under way
    post(Priority::low, {{.nbytes = 31}, {.nbytes = 32}});
    post(Priority::normal, {{.nbytes = 21}, {.nbytes = 22}});
    post(Priority::high, {{.nbytes = 11}, {.nbytes = 12}});
    REQUIRE(io.added().size() == 4);
    for (size_t i = 0; i < 10; ++i) { // each that ends makes room for one
        const Job job = io.added()[i];
        io.end(job, static_cast<int32_t>(job.nbytes));
        CHECK(eventually([&] {
            let_poll(files);
            return ring->ready() == i + 1 && io.added().size() == std::min<size_t>(10, i + 5);
        }));
    }
    std::vector<uint32_t> order;
    std::vector<Priority> told;
    for (const Job& job : io.added()) {
        order.push_back(job.nbytes);
        told.push_back(job.priority);
    }
    CHECK(order == std::vector<uint32_t>{1, 2, 3, 4, 11, 12, 21, 22, 31, 32});
    CHECK(told[4] == Priority::high);
    CHECK(told[6] == Priority::normal);
    CHECK(told[8] == Priority::low);
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
