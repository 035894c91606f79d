// libmlx5 in software: it says that each device is an mlx5 NIC, whose queues lie in its own memory, and a thread
// carries out what is written there, on the queue pair that libibverbs has. It reads requests by rdma-core's
// structures.
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <endian.h>
#include <infiniband/mlx5dv.h>
#include <thread>

namespace {

constexpr uint32_t kSlots = 64; // blocks, and completions
constexpr uint32_t kDepth = 16; // requests in flight at most: the tests' endpoints have max_messages=16

struct Nic {
    alignas(4096) uint8_t blocks[kSlots][64];
    alignas(4096) mlx5_cqe64 completions[kSlots];
    alignas(64) uint32_t record[2];
    alignas(64) uint32_t completion_record[2];
    alignas(64) uint64_t doorbell;
    ibv_qp* pair;
    ibv_cq* completed;
    uint64_t begun = 0;
    uint64_t ended = 0;

    void begin() {
        const uint64_t bell = __atomic_load_n(&doorbell, __ATOMIC_ACQUIRE);
        if (bell == 0) {
            return;
        }
        // The doorbell is the beginning of the last request; the record has the number of requests.
        mlx5_wqe_ctrl_seg last;
        std::memcpy(&last, &bell, sizeof bell);
        if (be32toh(last.qpn_ds) >> 8 != pair->qp_num) {
            return;
        }
        const uint32_t posted = be32toh(__atomic_load_n(&record[1], __ATOMIC_ACQUIRE));
        const auto rung = static_cast<uint16_t>((be32toh(last.opmod_idx_opcode) >> 8) + 1);
        if (static_cast<uint16_t>(posted - rung) > kSlots) {
            return; // the record must not be behind the doorbell: wait
        }
        while (static_cast<uint16_t>(begun) != rung && begun - ended < kDepth) {
            const uint8_t* at = blocks[begun % kSlots];
            const auto* control = reinterpret_cast<const mlx5_wqe_ctrl_seg*>(at);
            const auto* remote = reinterpret_cast<const mlx5_wqe_raddr_seg*>(at + 16);
            const auto* data = reinterpret_cast<const mlx5_wqe_data_seg*>(at + 32);
            const auto* atomic = reinterpret_cast<const mlx5_wqe_atomic_seg*>(at + 32);
            const auto* bytes = reinterpret_cast<const mlx5_wqe_inl_data_seg*>(at + 32);
            const uint32_t opcode = be32toh(control->opmod_idx_opcode) & 0xff;
            const bool is_atomic = opcode == MLX5_OPCODE_ATOMIC_FA || opcode == MLX5_OPCODE_ATOMIC_CS;
            const bool is_inline = opcode == MLX5_OPCODE_RDMA_WRITE && (be32toh(bytes->byte_count) >> 31) != 0;
            if (is_atomic) {
                data = reinterpret_cast<const mlx5_wqe_data_seg*>(at + 48);
            }
            if (be32toh(control->opmod_idx_opcode) != ((begun & 0xffff) << 8 | opcode) ||
                be32toh(control->qpn_ds) != (pair->qp_num << 8 | (is_atomic ? 4U : 3U)) ||
                (control->fm_ce_se & ~MLX5_WQE_CTRL_FENCE) != MLX5_WQE_CTRL_CQ_UPDATE) {
                return; // malformed: ignored, and the kernel's wait times out
            }
            ibv_sge piece{be64toh(data->addr), be32toh(data->byte_count), be32toh(data->lkey)};
            ibv_send_wr request{};
            ibv_send_wr* bad = nullptr;
            request.wr_id = begun;
            request.sg_list = &piece;
            request.num_sge = 1;
            request.send_flags = IBV_SEND_SIGNALED;
            if ((control->fm_ce_se & MLX5_WQE_CTRL_FENCE) != 0) {
                request.send_flags |= IBV_SEND_FENCE;
            }
            if (is_atomic) {
                const bool adds = opcode == MLX5_OPCODE_ATOMIC_FA;
                request.opcode = adds ? IBV_WR_ATOMIC_FETCH_AND_ADD : IBV_WR_ATOMIC_CMP_AND_SWP;
                request.wr.atomic.remote_addr = be64toh(remote->raddr);
                request.wr.atomic.rkey = be32toh(remote->rkey);
                request.wr.atomic.compare_add = be64toh(adds ? atomic->swap_add : atomic->compare);
                request.wr.atomic.swap = adds ? 0 : be64toh(atomic->swap_add);
            } else {
                request.opcode = opcode == MLX5_OPCODE_RDMA_READ ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE;
                request.wr.rdma.remote_addr = be64toh(remote->raddr);
                request.wr.rdma.rkey = be32toh(remote->rkey);
                if (is_inline) {
                    piece = {reinterpret_cast<uint64_t>(bytes + 1), be32toh(bytes->byte_count) & 0x7fffffff, 0};
                    request.send_flags |= IBV_SEND_INLINE;
                }
            }
            if (ibv_post_send(pair, &request, &bad) != 0) {
                return;
            }
            ++begun;
        }
    }
    void end() {
        ibv_wc entry{};
        while (ibv_poll_cq(completed, 1, &entry) == 1) {
            const uint32_t taken = be32toh(__atomic_load_n(&completion_record[0], __ATOMIC_ACQUIRE));
            if (((static_cast<uint32_t>(ended) - taken) & 0xffffff) >= kSlots) {
                std::fputs("the completion queue is overrun\n", stderr);
                std::_Exit(1);
            }
            mlx5_cqe64& slot = completions[ended % kSlots];
            mlx5_cqe64 made{};
            made.wqe_counter = htobe16(static_cast<uint16_t>(entry.wr_id));
            const bool failed = entry.status != IBV_WC_SUCCESS;
            made.op_own =
                static_cast<uint8_t>((failed ? MLX5_CQE_REQ_ERR : MLX5_CQE_REQ) << 4 | ((ended / kSlots) & 1));
            if (failed) {
                reinterpret_cast<mlx5_err_cqe*>(&made)->syndrome = entry.status == IBV_WC_REM_ACCESS_ERR
                                                                       ? MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR
                                                                       : MLX5_CQE_SYNDROME_WR_FLUSH_ERR;
            }
            std::memcpy(&slot, &made, sizeof made - 8);
            uint64_t tail = 0;
            std::memcpy(&tail, reinterpret_cast<const uint8_t*>(&made) + sizeof made - 8, 8);
            __atomic_store_n(reinterpret_cast<uint64_t*>(reinterpret_cast<uint8_t*>(&slot) + sizeof made - 8), tail,
                             __ATOMIC_RELEASE);
            ++ended;
        }
    }
};

} // namespace

#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED bool mlx5dv_is_supported(ibv_device* /*device*/) {
    return true;
}

EXPORTED int mlx5dv_init_obj(mlx5dv_obj* object, uint64_t kinds) {
    if (kinds != (MLX5DV_OBJ_QP | MLX5DV_OBJ_CQ)) {
        return EINVAL;
    }
    auto* nic = new Nic{}; // never freed: the thread below uses it until the process ends
    std::memset(nic->completions, 0xff, sizeof nic->completions);
    nic->pair = object->qp.in;
    nic->completed = object->cq.in;
    object->qp.out->dbrec = nic->record;
    object->qp.out->sq = {nic->blocks, kSlots, 64};
    object->qp.out->bf = {&nic->doorbell, 256};
    object->cq.out->buf = nic->completions;
    object->cq.out->dbrec = nic->completion_record;
    object->cq.out->cqe_cnt = kSlots;
    object->cq.out->cqe_size = 64;
    std::thread([nic] {
        for (;;) {
            nic->begin();
            nic->end();
            std::this_thread::yield();
        }
    }).detach();
    return 0;
}
