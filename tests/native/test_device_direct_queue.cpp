// Tests how the queues of a pair are found that a NIC reads by itself, by a table of the vendor's library.
#ifdef ZEROHOP_VERBS

#include "fabric/direct_queue.hpp"
#include "work_queue_fixture.hpp"

#include <string>

namespace test_device_direct_queue {

using namespace zerohop;
using namespace zerohop::test;
using namespace zerohop::test::work_queue;

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
        told = &vendor;
        device.name[0] = 'x';
        context.device = &device;
        pair.context = completions.context = &context;
        pair.qp_num = kNumber;
        auto* const base = memory->host();
        vendor.sends.dbrec = reinterpret_cast<__be32*>(base + mlx5::QueueLayout::kRecord);
        vendor.sends.sq = {base + mlx5::QueueLayout::kBlocks, static_cast<uint32_t>(slots), 64};
        vendor.sends.bf = {base + mlx5::QueueLayout::kDoorbell, 256};
        vendor.ends.buf = base + layout.completions;
        vendor.ends.dbrec = reinterpret_cast<__be32*>(base + mlx5::QueueLayout::kCompletionRecord);
        vendor.ends.cqe_cnt = static_cast<uint32_t>(slots);
        vendor.ends.cqe_size = 64;
    }
    [[nodiscard]] fabric::DirectQueue find() { return fabric::find_direct_queue(kTable, pair, completions); }

    Told vendor;
    ibv_device device{};
    ibv_context context{};
    ibv_qp pair{};
    ibv_cq completions{};
};

} // namespace

TEST_CASE("device direct queue: the queues of a pair are found, and kernels write to them") {
    DirectRig rig(16);
    const fabric::DirectQueue found = rig.find();
    CHECK(rig.vendor.asked_pair == &rig.pair);
    CHECK(rig.vendor.asked_completions == &rig.completions);
    CHECK(found.most == 8); // half of the completions
    CHECK(rig.vendor.asked_kinds == (MLX5DV_OBJ_QP | MLX5DV_OBJ_CQ));
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

TEST_CASE("device direct queue: the receive queue's record, and what arms completions, stay as they are") {
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

TEST_CASE("device direct queue: queues that kernels cannot write are refused") {
    DirectRig rig(16);
    const auto refused = [&](const char* why) {
        std::string found;
        try {
            (void)rig.find();
        } catch (const NativeError& error) {
            found = error.what();
        }
        CHECK_MESSAGE(found.find(why) != std::string::npos, found);
        rig.vendor = DirectRig(16).vendor;
        told = &rig.vendor;
    };
    rig.vendor.supported = false;
    refused("x is no mlx5 device");
    rig.vendor.error = 95;
    refused("error 95");
    rig.vendor.sends.sq.stride = 128;
    refused("16 blocks of 128 bytes");
    rig.vendor.sends.sq.wqe_cnt = 24;
    refused("24 blocks");
    rig.vendor.sends.sq.wqe_cnt = 1 << 16;
    refused("65536 blocks");
    rig.vendor.ends.cqe_size = 128;
    refused("entries of 128 bytes");
    rig.vendor.ends.cqe_cnt = 24;
    refused("24 entries");
    rig.vendor.sends.bf.reg = nullptr;
    refused("no doorbell");
    CHECK_NOTHROW((void)rig.find());
}

} // namespace test_device_direct_queue
#endif
