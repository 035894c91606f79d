// Tests the work requests that kernels build for mlx5 NICs against rdma-core's own helpers, byte by byte.
#ifdef ZEROHOP_VERBS

#include "zerohop/device/mlx5.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <cstring>
#include <endian.h>
#include <infiniband/mlx5dv.h>
#include <random>
#include <vector>

namespace test_device_mlx5 {

namespace mlx5 = zerohop::device::mlx5;
using mlx5::Opcode;
using zerohop::device::Word;

namespace {

// The same request, made of rdma-core's structures.
struct Oracle {
    alignas(64) uint8_t bytes[64];
    explicit Oracle(const mlx5::Block& unused) { std::memcpy(bytes, unused.words, sizeof bytes); }

    void control(Opcode opcode, Word index, uint32_t queue_pair, uint8_t segments, uint8_t flags, uint32_t immediate) {
        auto* segment = reinterpret_cast<mlx5_wqe_ctrl_seg*>(bytes);
        mlx5dv_set_ctrl_seg(segment, static_cast<uint16_t>(index), static_cast<uint8_t>(opcode), 0, queue_pair, flags,
                            segments, 0, htobe32(immediate));
        segment->dci_stream_channel_id = 0;
    }
    void remote(uint64_t address, uint32_t key) {
        auto* segment = reinterpret_cast<mlx5_wqe_raddr_seg*>(bytes + 16);
        segment->raddr = htobe64(address);
        segment->rkey = htobe32(key);
        segment->reserved = 0;
    }
    void data(size_t at, uint32_t nbytes, uint32_t key, uint64_t address) {
        mlx5dv_set_data_seg(reinterpret_cast<mlx5_wqe_data_seg*>(bytes + at), nbytes, key,
                            static_cast<uintptr_t>(address));
    }
    bool operator==(const mlx5::Block& block) const { return std::memcmp(bytes, block.words, sizeof bytes) == 0; }
};

struct Random {
    std::mt19937_64 engine{std::random_device{}()};
    uint64_t word() { return engine(); }
    uint32_t half() { return static_cast<uint32_t>(engine()); }
    uint32_t queue_pair() { return half() & 0xffffff; }
    mlx5::Block block() {
        mlx5::Block made{};
        for (unsigned& each : made.words) {
            each = half();
        }
        return made;
    }
    bool coin() { return (engine() & 1) != 0; }
};

constexpr int kRounds = 20000;

} // namespace

TEST_CASE("device mlx5: transfers, as rdma-core would build them") {
    Random random;
    for (int round = 0; round < kRounds; ++round) {
        mlx5::Block block = random.block();
        Oracle oracle(block);
        const Opcode opcode = round % 3 == 0 ? Opcode::write : round % 3 == 1 ? Opcode::read : Opcode::write_immediate;
        const Word index = random.word() >> (round % 64); // also far past 65,536
        const uint32_t queue_pair = random.queue_pair();
        const mlx5::Place remote{random.word(), random.half()};
        const mlx5::Place local{random.word(), random.half()};
        const uint32_t nbytes = random.half() & 0x7fffffff;
        const uint32_t immediate = random.half();
        const bool signalled = random.coin();
        mlx5::build_transfer(block, opcode, index, queue_pair, remote, local, nbytes,
                             signalled ? mlx5::Completion::always : mlx5::Completion::on_error, immediate);
        oracle.control(opcode, index, queue_pair, 3, signalled ? MLX5_WQE_CTRL_CQ_UPDATE : 0, immediate);
        oracle.remote(remote.address, remote.key);
        oracle.data(32, nbytes, local.key, local.address);
        REQUIRE(oracle == block);
    }
}

TEST_CASE("device mlx5: atomics, as rdma-core would build them") {
    Random random;
    for (int round = 0; round < kRounds; ++round) {
        mlx5::Block block = random.block();
        Oracle oracle(block);
        const Opcode opcode = random.coin() ? Opcode::fetch_add : Opcode::compare_swap;
        const Word index = random.word();
        const uint32_t queue_pair = random.queue_pair();
        const mlx5::Place remote{random.word(), random.half()};
        const mlx5::Place local{random.word(), random.half()};
        const uint64_t operand = random.word();
        const uint64_t compare = random.word();
        mlx5::build_atomic(block, opcode, index, queue_pair, remote, local, operand, compare, mlx5::Completion::always);
        oracle.control(opcode, index, queue_pair, 4, MLX5_WQE_CTRL_CQ_UPDATE, 0);
        oracle.remote(remote.address, remote.key);
        auto* segment = reinterpret_cast<mlx5_wqe_atomic_seg*>(oracle.bytes + 32);
        segment->swap_add = htobe64(operand);
        segment->compare = htobe64(compare);
        oracle.data(48, 8, local.key, local.address);
        REQUIRE(oracle == block);
    }
}

TEST_CASE("device mlx5: sends and writes of bytes in the request, as rdma-core would build them") {
    Random random;
    for (int round = 0; round < kRounds; ++round) {
        const Word index = random.word();
        const uint32_t queue_pair = random.queue_pair();
        const mlx5::Place place{random.word(), random.half()};
        mlx5::Block block = random.block();
        Oracle sent(block);
        mlx5::build_send(block, Opcode::send_immediate, index, queue_pair, place, 77, mlx5::Completion::on_error, 99);
        sent.control(Opcode::send_immediate, index, queue_pair, 2, 0, 99);
        sent.data(16, 77, place.key, place.address);
        REQUIRE(sent == block);

        const auto nbytes = static_cast<unsigned>(random.word() % (mlx5::kInlineBytes + 1));
        std::vector<uint8_t> bytes(mlx5::kInlineBytes);
        for (uint8_t& each : bytes) {
            each = static_cast<uint8_t>(random.half());
        }
        block = random.block();
        Oracle written(block);
        mlx5::build_inline_write(block, index, queue_pair, place, bytes.data(), nbytes, mlx5::Completion::always);
        written.control(Opcode::write, index, queue_pair, static_cast<uint8_t>(2 + (4 + nbytes + 15) / 16),
                        MLX5_WQE_CTRL_CQ_UPDATE, 0);
        written.remote(place.address, place.key);
        auto* length = reinterpret_cast<mlx5_wqe_inl_data_seg*>(written.bytes + 32);
        length->byte_count = htobe32(nbytes | MLX5_INLINE_SEG);
        std::memset(written.bytes + 36, 0, (nbytes + 3) / 4 * 4);
        std::memcpy(written.bytes + 36, bytes.data(), nbytes);
        REQUIRE(written == block);
    }
}

TEST_CASE("device mlx5: a request whose every byte is written here by hand") {
    mlx5::Block block{};
    mlx5::build_transfer(block, Opcode::write, 0x12345, 0x00abcdef, {0x1122334455667788, 0x99aabbcc},
                         {0x0102030405060708, 0x0a0b0c0d}, 0x400, mlx5::Completion::always);
    const std::vector<uint8_t> wanted{
        0x00, 0x23, 0x45, 0x08, 0xab, 0xcd, 0xef, 0x03, 0x00, 0x00, 0x00, 0x08, 0x00, 0x00, 0x00, 0x00, // control
        0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0x00, 0x00, 0x00, 0x00, // remote
        0x00, 0x00, 0x04, 0x00, 0x0a, 0x0b, 0x0c, 0x0d, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x07, 0x08, // data
    };
    CHECK(std::memcmp(block.words, wanted.data(), wanted.size()) == 0);
    const Word doorbell = mlx5::doorbell_of(block);
    CHECK(std::memcmp(&doorbell, wanted.data(), sizeof doorbell) == 0);
    const unsigned record = mlx5::record_of(0x12346);
    const std::vector<uint8_t> of_record{0x00, 0x00, 0x23, 0x46};
    CHECK(std::memcmp(&record, of_record.data(), sizeof record) == 0);
    static_assert(MLX5_SEND_WQE_BB == sizeof(mlx5::Block));
}

} // namespace test_device_mlx5

#endif
