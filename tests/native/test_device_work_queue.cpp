// Tests send queues that kernels write, with threads of the host as kernels, and a NIC in software that moves the bytes
// between registered ranges: late, out of time, or not at all.
#include "device/assist.hpp"
#include "engine_fixture.hpp"
#include "zerohop/device/work_queue.hpp"

#ifdef ZEROHOP_VERBS
#include "fabric/direct_queue.hpp"
#endif

#include <atomic>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace test_device_work_queue {

using namespace zerohop;
using namespace zerohop::test;
namespace mlx5 = zerohop::device::mlx5;
namespace zd = zerohop::device;
using zd::Word;

namespace {

constexpr uint32_t kNumber = 0x00abcdef; // of the queue pair
constexpr uint32_t kLocalKey = 0x1234;
constexpr uint32_t kRemoteKey = 0xfedcba98;

// Executes requests by copies between two ranges. What it does wrong is said by its settings.
class SoftwareNic final : public mlx5::Executor {
public:
    SoftwareNic(std::vector<uint8_t>& local, std::vector<uint8_t>& remote) : local_(local), remote_(remote) {}

    bool begin(const mlx5::Request& request) override {
        if (held_.size() >= depth) {
            return false;
        }
        held_.push_back(request);
        return true;
    }
    void collect(std::vector<Ended>& ended) override {
        if (holds) {
            return;
        }
        // Some of them at a time, so that completions come late and together.
        for (size_t some = late ? random_() % 3 : held_.size(); some != 0 && !held_.empty(); --some) {
            const mlx5::Request request = held_.front();
            if (request.index == drops_from) {
                return;
            }
            held_.pop_front();
            ended.push_back({request.index, failed_ ? mlx5::kFlushed : carry_out(request)});
            failed_ = failed_ || ended.back().syndrome != 0;
        }
    }

    size_t depth = 64;
    bool late = false;
    bool holds = false;                 // what was begun stays under way
    uint64_t drops_from = ~uint64_t{0}; // requests from this one on are never carried out

private:
    [[nodiscard]] static bool within(const mlx5::Place& place, uint32_t key, uint64_t nbytes,
                                     const std::vector<uint8_t>& range) {
        const auto begin = reinterpret_cast<uint64_t>(range.data());
        return place.key == key && place.address >= begin && nbytes <= range.size() &&
               place.address - begin <= range.size() - nbytes;
    }
    [[nodiscard]] uint8_t carry_out(const mlx5::Request& request) const {
        if (!within(request.local, kLocalKey, request.nbytes, local_)) {
            return mlx5::kLocalProtection;
        }
        if (!within(request.remote, kRemoteKey, request.nbytes, remote_)) {
            return mlx5::kRemoteAccess;
        }
        auto* here = reinterpret_cast<void*>(request.local.address);
        auto* there = reinterpret_cast<void*>(request.remote.address);
        const bool writes = request.opcode == mlx5::Opcode::write;
        std::memcpy(writes ? there : here, writes ? here : there, request.nbytes);
        return 0;
    }
    std::vector<uint8_t>& local_;
    std::vector<uint8_t>& remote_;
    std::deque<mlx5::Request> held_;
    bool failed_ = false;
    std::mt19937 random_{7}; // NOLINT(cert-msc51-cpp): a failure can be repeated
};

struct Rig {
    explicit Rig(uint64_t slots, bool collapsed, size_t nbytes = 1 << 16)
        : local(nbytes), remote(nbytes, 0xA5), nic(local, remote), completion_slots(collapsed ? 1 : slots),
          layout(slots, completion_slots), memory(Region::allocate_host(layout.nbytes)),
          assist(memory->host(), slots, completion_slots, kNumber, nic) {
        std::mt19937_64 random{std::random_device{}()};
        for (uint8_t& each : local) {
            each = static_cast<uint8_t>(random());
        }
        const auto at = [&](uint64_t offset) { return reinterpret_cast<Word>(memory->host()) + offset; };
        queue = {mlx5::kQueueLayout,
                 kNumber,
                 slots,
                 at(mlx5::QueueLayout::kBlocks),
                 at(mlx5::QueueLayout::kRecord),
                 at(mlx5::QueueLayout::kDoorbell),
                 at(layout.completions),
                 completion_slots,
                 at(mlx5::QueueLayout::kCompletionRecord),
                 reinterpret_cast<Word>(&counters[0]),
                 reinterpret_cast<Word>(&counters[1]),
                 reinterpret_cast<Word>(&counters[2]),
                 at(mlx5::QueueLayout::kState),
                 patience_ns(20 * kSecond),
                 slots};
    }
    ~Rig() { stop(); }
    Rig(const Rig&) = delete;
    Rig& operator=(const Rig&) = delete;

    void start() {
        serving = std::thread([this] {
            while (!stopping.load(std::memory_order_relaxed)) {
                if (!assist.poll()) {
                    std::this_thread::yield();
                }
            }
        });
    }
    void stop() {
        stopping = true;
        if (serving.joinable()) {
            serving.join();
        }
    }
    [[nodiscard]] mlx5::Posted post(size_t from, size_t to, size_t nbytes) const {
        return mlx5::PostWrite(&queue, reinterpret_cast<Word>(local.data()) + from, kLocalKey,
                               reinterpret_cast<Word>(remote.data()) + to, kRemoteKey, nbytes);
    }
    [[nodiscard]] Word send(size_t from, size_t to, size_t nbytes) const {
        mlx5::Posted posted = post(from, to, nbytes);
        Word status = mlx5::UpdateSendDbrRecord(&queue, posted);
        status = status == zd::kOk ? mlx5::RingDoorbell(&queue, posted) : status;
        status = status == zd::kOk ? mlx5::PollCq(&queue, posted) : status;
        mlx5::UpdateCqDbrRecord(&queue);
        return status;
    }
    [[nodiscard]] Word ring(mlx5::Posted& posted) const {
        const Word status = mlx5::UpdateSendDbrRecord(&queue, posted);
        return status == zd::kOk ? mlx5::RingDoorbell(&queue, posted) : status;
    }

    std::vector<uint8_t> local;
    std::vector<uint8_t> remote;
    SoftwareNic nic;
    uint64_t completion_slots;
    mlx5::QueueLayout layout;
    std::shared_ptr<Region> memory;
    mlx5::Assist assist;
    Word counters[3]{};
    mlx5::WorkQueue queue{};
    std::atomic<bool> stopping{false};
    std::thread serving;
};

} // namespace

TEST_CASE("device work queue: the five steps move the bytes, and only them") {
    for (const bool collapsed : {false, true}) {
        Rig rig(16, collapsed);
        rig.start();
        for (const size_t nbytes : {1, 7, 8, 1000, 4096, 20011}) {
            REQUIRE(rig.send(33, 1027, nbytes) == zd::kOk);
            CHECK(std::memcmp(rig.local.data() + 33, rig.remote.data() + 1027, nbytes) == 0);
        }
        CHECK(rig.post(0, 0, 0).status == zd::kFailed); // a NIC takes 0 for 2 GiB
        CHECK(rig.send(0, 0, 1) == zd::kOk);
        CHECK(rig.remote[1026] == 0xA5);
        CHECK(rig.remote[1027 + 20011] == 0xA5);
    }
}

TEST_CASE("device work queue: many threads, a short queue, late completions, and more requests than 16 bits count") {
    for (const bool collapsed : {false, true}) {
        constexpr size_t kThreads = 8;
        constexpr size_t kEach = 9000; // of all threads more than 65,536
        constexpr size_t kPart = 8;
        Rig rig(32, collapsed, kThreads * kEach * kPart);
        rig.nic.late = true;
        rig.start();
        std::atomic<size_t> wrong{0};
        std::vector<std::thread> threads;
        for (size_t number = 0; number < kThreads; ++number) {
            threads.emplace_back([&, number] {
                mlx5::Posted last{};
                for (size_t i = 0; i < kEach; ++i) {
                    const size_t at = (number * kEach + i) * kPart;
                    last = rig.post(at, at, kPart);
                    wrong += last.status != zd::kOk || rig.ring(last) != zd::kOk ? 1 : 0;
                }
                wrong += mlx5::PollCq(&rig.queue, last) != zd::kOk ? 1 : 0;
            });
        }
        for (std::thread& each : threads) {
            each.join();
        }
        CHECK(wrong == 0);
        CHECK(rig.local == rig.remote);
        CHECK(rig.counters[0] == kThreads * kEach);
        CHECK(rig.counters[2] == kThreads * kEach);
    }
}

TEST_CASE("device work queue: one thread rings for those that have become ready meanwhile") {
    Rig rig(16, false);
    mlx5::Posted first = rig.post(0, 0, 8);
    mlx5::Posted second = rig.post(8, 8, 8);
    mlx5::Posted third = rig.post(16, 16, 8);
    REQUIRE(mlx5::UpdateSendDbrRecord(&rig.queue, first) == zd::kOk);
    REQUIRE(rig.ring(second) == zd::kOk);
    REQUIRE(rig.ring(third) == zd::kOk);
    CHECK_FALSE(rig.assist.poll()); // nobody has rung
    REQUIRE(mlx5::RingDoorbell(&rig.queue, first) == zd::kOk);
    CHECK(rig.assist.poll());
    CHECK(mlx5::PollCq(&rig.queue, third) == zd::kOk);
    CHECK(rig.counters[2] == 3);
    CHECK(rig.remote[16] == rig.local[16]);
    mlx5::Posted next = rig.post(24, 24, 8);
    REQUIRE(rig.ring(next) == zd::kOk);
    CHECK(rig.assist.poll());
    CHECK(rig.remote[24] == rig.local[24]);
}

TEST_CASE("device work queue: a wrong key or range is a status, and what is behind it is not carried out") {
    for (const bool collapsed : {false, true}) {
        for (const bool remote : {false, true}) {
            Rig rig(16, collapsed);
            rig.start();
            const size_t outside = rig.local.size() - 7;
            REQUIRE(rig.send(0, 0, 64) == zd::kOk);
            CHECK(rig.send(remote ? 0 : outside, remote ? outside : 0, 8) == zd::kFailed);
            CHECK(rig.send(64, 64, 64) == zd::kFailed);
            CHECK(rig.remote[64] == 0xA5);
        }
    }
}

TEST_CASE("device work queue: waits end in time, and with the host") {
    for (const bool collapsed : {false, true}) {
        SUBCASE("nobody serves it") {
            Rig rig(4, collapsed);
            rig.queue.timeout_ns = kSecond / 20;
            for (int i = 0; i < 4; ++i) {
                mlx5::Posted posted = rig.post(0, 0, 8);
                REQUIRE(rig.ring(posted) == zd::kOk);
            }
            CHECK(rig.post(0, 0, 8).status == zd::kTimedOut); // the queue is full
            CHECK(rig.send(0, 0, 8) == zd::kTimedOut);        // and it is over
        }
        SUBCASE("a completion never comes") {
            Rig rig(4, collapsed);
            rig.nic.drops_from = 1;
            rig.start();
            CHECK(rig.send(0, 0, 8) == zd::kOk);
            rig.queue.timeout_ns = kSecond / 20;
            CHECK(rig.send(0, 8, 8) == zd::kTimedOut);
            CHECK(rig.remote[8] == 0xA5);
        }
        SUBCASE("the host closes it") {
            Rig rig(4, collapsed);
            mlx5::Posted posted = rig.post(0, 0, 8);
            REQUIRE(rig.ring(posted) == zd::kOk);
            rig.assist.close(zd::kClosed);
            CHECK(mlx5::PollCq(&rig.queue, posted) == zd::kClosed);
        }
    }
}

TEST_CASE("device work queue: an old counter is not taken for 65,536 completions") {
    Rig rig(16, true);
    rig.start();
    for (int i = 0; i < 40; ++i) {
        REQUIRE(rig.send(0, 0, 8) == zd::kOk);
    }
    rig.stop();
    auto* entry = reinterpret_cast<uint8_t*>(rig.memory->host()) + rig.layout.completions;
    const Word done = rig.counters[2];
    for (const unsigned stale : {0U, 20U, 38U, 39U}) {
        entry[mlx5::kCounterAt] = 0;
        entry[mlx5::kCounterAt + 1] = static_cast<uint8_t>(stale);
        CHECK(mlx5::detail::take_completions(&rig.queue) == zd::kOk);
        CHECK(rig.counters[2] == done);
    }
}

TEST_CASE("device work queue: whatever a NIC would refuse is refused") {
    mlx5::Block block{};
    const uint64_t index = 0x12345;
    mlx5::build_transfer(block, mlx5::Opcode::write, index, kNumber, {1, 2}, {3, 4}, 5, mlx5::Completion::always);
    REQUIRE(mlx5::take_apart(block, index, kNumber).has_value());
    const mlx5::Request request = mlx5::take_apart(block, index, kNumber).value();
    CHECK(request.remote.address == 1);
    CHECK(request.remote.key == 2);
    CHECK(request.local.address == 3);
    CHECK(request.local.key == 4);
    CHECK(request.nbytes == 5);
    CHECK_FALSE(mlx5::take_apart(block, index + 1, kNumber).has_value());
    CHECK_FALSE(mlx5::take_apart(block, index, kNumber + 1).has_value());
    for (unsigned bit = 0; bit < 8 * 16; ++bit) { // of the control segment, but for the immediate
        mlx5::Block flipped = block;
        flipped.words[bit / 32] ^= 1U << bit % 32;
        const bool reads = flipped.words[0] == (block.words[0] ^ (0x18U << 24)); // the code of a read
        CHECK((bit >= 96 || reads || !mlx5::take_apart(flipped, index, kNumber).has_value()));
    }
    mlx5::Block tall = block;
    tall.words[mlx5::detail::kData] = mlx5::big((1U << 30) + 1);
    CHECK_FALSE(mlx5::take_apart(tall, index, kNumber).has_value());
    tall.words[mlx5::detail::kData] = 0;
    CHECK_FALSE(mlx5::take_apart(tall, index, kNumber).has_value());
    CHECK(mlx5::tail_of(mlx5::doorbell_of(block), index, 16, kNumber) == index + 1);
    CHECK_FALSE(mlx5::tail_of(mlx5::doorbell_of(block), index + 2, 16, kNumber).has_value());
    CHECK_FALSE(mlx5::tail_of(mlx5::doorbell_of(block), index - 16, 16, kNumber).has_value());
    CHECK_FALSE(mlx5::tail_of(mlx5::doorbell_of(block), index, 16, kNumber + 1).has_value());
}

TEST_CASE("device work queue: a refused request fails after those before it have ended") {
    for (const bool collapsed : {false, true}) {
        Rig rig(16, collapsed);
        rig.nic.holds = true;
        mlx5::Posted good = rig.post(0, 0, 64);
        REQUIRE(rig.ring(good) == zd::kOk);
        mlx5::Posted bad = rig.post(64, 64, 64);
        auto* block = reinterpret_cast<mlx5::Block*>(rig.memory->host() + mlx5::QueueLayout::kBlocks) + bad.index;
        block->words[3 + mlx5::detail::kRemote] = 1; // has to be zero
        REQUIRE(rig.ring(bad) == zd::kOk);
        CHECK(rig.assist.poll());
        CHECK(rig.assist.refused());
        CHECK(rig.assist.left() == 1); // the good one is under way
        CHECK(mlx5::detail::take_completions(&rig.queue) == zd::kOk);
        rig.nic.holds = false;
        CHECK(rig.assist.poll());
        CHECK(rig.assist.left() == 0);
        if (!collapsed) {
            CHECK(mlx5::PollCq(&rig.queue, good) == zd::kOk);
        }
        CHECK(mlx5::PollCq(&rig.queue, bad) == zd::kFailed);
        CHECK(rig.remote[0] == rig.local[0]);
        CHECK(rig.remote[64] == 0xA5);
    }
}

TEST_CASE("device work queue: a doorbell without its record, or with bits of the receive queue's, ends the queue") {
    for (const Word record : {Word(0), Word(1), Word(0xffff0000) << 32}) {
        Rig rig(16, false);
        const mlx5::Posted posted = rig.post(0, 0, 8);
        __atomic_store_n(reinterpret_cast<Word*>(rig.queue.record), record, __ATOMIC_RELEASE);
        __atomic_store_n(reinterpret_cast<Word*>(rig.queue.doorbell), mlx5::doorbell_of(posted.index, kNumber),
                         __ATOMIC_RELEASE);
        CHECK(rig.assist.poll());
        CHECK(mlx5::PollCq(&rig.queue, posted) == zd::kFailed);
        CHECK(rig.remote[0] == 0xA5);
    }
}

#ifdef ZEROHOP_VERBS

namespace {

// The queues of a pair as the vendor's library tells of them; what it was asked is kept.
struct Told {
    mlx5dv_qp sends{};
    mlx5dv_cq ends{};
    bool supported = true;
    int error = 0;
    const ibv_qp* asked_pair = nullptr;
    const ibv_cq* asked_completions = nullptr;
    uint64_t asked_kinds = 0;
};
Told* told = nullptr;

const shim::Mlx5 kTable{.is_supported = [](ibv_device*) { return told->supported; },
                        .init_obj =
                            [](mlx5dv_obj* object, uint64_t kinds) {
                                told->asked_pair = object->qp.in;
                                told->asked_completions = object->cq.in;
                                told->asked_kinds = kinds;
                                *object->qp.out = told->sends;
                                *object->cq.out = told->ends;
                                return told->error;
                            }};

// A pair whose queues lie where the software NIC of a Rig reads and writes them.
struct DirectRig : Rig {
    explicit DirectRig(uint64_t slots) : Rig(slots, false) {
        told = &library;
        device.name[0] = 'x';
        context.device = &device;
        pair.context = completions.context = &context;
        pair.qp_num = kNumber;
        auto* const base = memory->host();
        library.sends.dbrec = reinterpret_cast<__be32*>(base + mlx5::QueueLayout::kRecord);
        library.sends.sq = {base + mlx5::QueueLayout::kBlocks, static_cast<uint32_t>(slots), 64};
        library.sends.bf = {base + mlx5::QueueLayout::kDoorbell, 256};
        library.ends.buf = base + layout.completions;
        library.ends.dbrec = reinterpret_cast<__be32*>(base + mlx5::QueueLayout::kCompletionRecord);
        library.ends.cqe_cnt = static_cast<uint32_t>(slots);
        library.ends.cqe_size = 64;
    }
    [[nodiscard]] fabric::DirectQueue find() { return fabric::find_direct_queue(kTable, pair, completions); }

    Told library;
    ibv_device device{};
    ibv_context context{};
    ibv_qp pair{};
    ibv_cq completions{};
};

} // namespace

TEST_CASE("device work queue: the queues of a pair are found, and kernels write to them") {
    DirectRig rig(16);
    const fabric::DirectQueue found = rig.find();
    CHECK(rig.library.asked_pair == &rig.pair);
    CHECK(rig.library.asked_completions == &rig.completions);
    CHECK(found.most == 8); // half of the completions
    CHECK(rig.library.asked_kinds == (MLX5DV_OBJ_QP | MLX5DV_OBJ_CQ));
    const mlx5::WorkQueue queue = rig.queue;
    rig.queue = {mlx5::kQueueLayout,
                 found.number,
                 found.slots,
                 found.blocks,
                 found.record,
                 found.doorbell,
                 found.completions,
                 found.completion_slots,
                 found.completion_record,
                 queue.head,
                 queue.turn,
                 queue.done,
                 queue.state,
                 queue.timeout_ns,
                 found.most};
    rig.start();
    for (size_t i = 0; i < 100; ++i) {
        REQUIRE(rig.send(8 * i, 8 * i, 8) == zd::kOk);
    }
    CHECK(std::memcmp(rig.local.data(), rig.remote.data(), 800) == 0);
    CHECK_FALSE(fabric::find_failure(found).has_value());
    CHECK(rig.send(0, rig.remote.size(), 8) == zd::kFailed);
    rig.stop();
    REQUIRE(fabric::find_failure(found).has_value());
    CHECK(fabric::find_failure(found)->status == IBV_WC_REM_ACCESS_ERR);
    CHECK(fabric::find_failure(found)->id == 100);
}

TEST_CASE("device work queue: the receive queue's record, and what arms completions, stay as they are") {
    DirectRig rig(16);
    auto* const record = reinterpret_cast<uint32_t*>(rig.queue.record);
    auto* const completion_record = reinterpret_cast<uint32_t*>(rig.queue.completion_record);
    record[0] = completion_record[1] = 0x12345678;
    mlx5::Posted posted = rig.post(0, 0, 8);
    REQUIRE(rig.ring(posted) == zd::kOk);
    mlx5::UpdateCqDbrRecord(&rig.queue);
    CHECK(record[0] == 0x12345678);
    CHECK(record[1] == mlx5::big(1));
    CHECK(completion_record[1] == 0x12345678);
}

TEST_CASE("device work queue: queues that kernels cannot write are refused") {
    DirectRig rig(16);
    const auto refused = [&](const char* why) {
        std::string found;
        try {
            (void)rig.find();
        } catch (const NativeError& error) {
            found = error.what();
        }
        CHECK_MESSAGE(found.find(why) != std::string::npos, found);
        rig.library = DirectRig(16).library;
        told = &rig.library;
    };
    rig.library.supported = false;
    refused("x is no mlx5 device");
    rig.library.error = 95;
    refused("error 95");
    rig.library.sends.sq.stride = 128;
    refused("16 blocks of 128 bytes");
    rig.library.sends.sq.wqe_cnt = 24;
    refused("24 blocks");
    rig.library.sends.sq.wqe_cnt = 1 << 16;
    refused("65536 blocks");
    rig.library.ends.cqe_size = 128;
    refused("entries of 128 bytes");
    rig.library.ends.cqe_cnt = 24;
    refused("24 entries");
    rig.library.sends.bf.reg = nullptr;
    refused("no doorbell");
    CHECK_NOTHROW((void)rig.find());
}
#endif

} // namespace test_device_work_queue
