// Carries out transfers of files for tests: on files without names, and by a system that the test itself plays.
#pragma once

#include "engine_fixture.hpp"
#include "storage/file_queue.hpp"
#include "storage/sinks.hpp"

#include <deque>
#include <fcntl.h>
#include <functional>
#include <sys/stat.h>

namespace zerohop::test {

using storage::Direct;
using storage::FileIo;
using storage::FileQueue;
using storage::Job;
using storage::kPieceBytes;
using storage::Obstacle;
using storage::OpenFile;
using storage::Range;
using storage::Result;

inline constexpr uint64_t kStaging = 4 * kPieceBytes;
inline constexpr size_t kFileBytes = 3 * kPieceBytes + 12'345; // no multiple of anything

// A file without a name, which has `bytes`.
struct TestFile {
    explicit TestFile(const Bytes& bytes, int flags = O_RDWR, Direct direct = Direct::never) {
        std::string name = "/tmp/zerohop-test-XXXXXX";
        const int made = ::mkstemp(name.data());
        REQUIRE(made >= 0);
        REQUIRE(::write(made, bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
        kept = ::open(name.c_str(), O_RDWR | O_CLOEXEC);
        const int past = direct == Direct::never ? -1 : ::open(name.c_str(), flags | O_CLOEXEC | O_DIRECT);
        file = std::make_shared<OpenFile>(::open(name.c_str(), flags | O_CLOEXEC), past, storage::Alignment{}, direct);
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
        if (before_reap) {
            before_reap();
        }
        const std::lock_guard lock(mutex_);
        const size_t found = std::min(results.size(), ended_.size());
        std::copy_n(ended_.begin(), found, results.begin());
        ended_.erase(ended_.begin(), ended_.begin() + static_cast<ptrdiff_t>(found));
        return found;
    }
    int fix(std::byte* /*data*/, size_t /*nbytes*/, std::string& why) override {
        why = "played";
        return fixes;
    }
    void unfix(int buffer) override {
        const std::lock_guard lock(mutex_);
        unfixed_.push_back(buffer);
    }
    int fd() const override { return event_.get(); }
    bool ready() const override {
        const std::lock_guard lock(mutex_);
        return !ended_.empty();
    }
    void abandon() override {}

    // For the test.
    int fixes = -1;                    // the number of the next buffer
    std::function<void()> before_reap; // set before anything is under way
    std::vector<int> unfixed() const {
        const std::lock_guard lock(mutex_);
        return unfixed_;
    }
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
    std::vector<int> unfixed_;
    std::deque<Result> ended_;
    Descriptor event_ = Descriptor::event();
};

inline Place place_of(const std::shared_ptr<Region>& memory) {
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
        auto sink = std::make_shared<storage::OperationSink>(*side.engine, op, ranges.size(), least, moved);
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
    std::shared_ptr<storage::Moved> moved = std::make_shared<storage::Moved>(); // of all transfers of start()
};

inline std::vector<std::unique_ptr<FileIo>> backends() {
    std::vector<std::unique_ptr<FileIo>> all;
    std::string why;
    all.push_back(storage::open_io(64, 3, why));
    if (why.empty()) {
        all.push_back(storage::open_threads(3));
    } else {
        MESSAGE("io_uring is not tested here: " << why);
    }
    return all;
}

// Lets the poller see what the test has played.
inline void let_poll(const Files& files) {
    files.side.engine->wait([] { return false; }, now_ns() + kMillisecond, kMillisecond, false);
}

} // namespace zerohop::test
