#include "fabric/direct_queue.hpp"

#include "base/status.hpp"
#include "device/assist.hpp"
#include "zerohop/device/work_queue.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>

namespace zerohop::fabric {

namespace {

namespace mlx5 = device::mlx5;

constexpr uint32_t kMostSlots = 1 << 15; // a 16-bit index tells requests apart only as long as half of them are used

[[noreturn]] void refuse(const std::string& why) {
    throw NativeError(Status::unsupported, Reason::none, why);
}

ibv_wc_status status_of(uint8_t syndrome) {
    switch (syndrome) {
    case 0x01:
        return IBV_WC_LOC_LEN_ERR;
    case mlx5::kBadRequest:
        return IBV_WC_LOC_QP_OP_ERR;
    case mlx5::kLocalProtection:
        return IBV_WC_LOC_PROT_ERR;
    case mlx5::kFlushed:
        return IBV_WC_WR_FLUSH_ERR;
    case 0x10:
        return IBV_WC_BAD_RESP_ERR;
    case 0x11:
        return IBV_WC_LOC_ACCESS_ERR;
    case 0x12:
        return IBV_WC_REM_INV_REQ_ERR;
    case mlx5::kRemoteAccess:
        return IBV_WC_REM_ACCESS_ERR;
    case 0x14:
        return IBV_WC_REM_OP_ERR;
    case 0x15:
        return IBV_WC_RETRY_EXC_ERR;
    case 0x16:
        return IBV_WC_RNR_RETRY_EXC_ERR;
    case 0x22:
        return IBV_WC_REM_ABORT_ERR;
    default:
        return IBV_WC_GENERAL_ERR;
    }
}

} // namespace

DirectQueue find_direct_queue(const shim::Mlx5& api, ibv_qp& pair, ibv_cq& completions) {
    if (!api.is_supported(pair.context->device)) {
        refuse(std::string(pair.context->device->name) + " is no mlx5 device");
    }
    mlx5dv_qp sends{};
    mlx5dv_cq ends{};
    mlx5dv_obj found{};
    found.qp.in = &pair;
    found.qp.out = &sends;
    found.cq.in = &completions;
    found.cq.out = &ends;
    if (const int error = api.init_obj(&found, MLX5DV_OBJ_QP | MLX5DV_OBJ_CQ); error != 0) {
        refuse("libmlx5 does not tell where the queues lie: error " + std::to_string(error));
    }
    if (sends.sq.stride != sizeof(mlx5::Block) || !std::has_single_bit(sends.sq.wqe_cnt) ||
        sends.sq.wqe_cnt > kMostSlots) {
        refuse("the send queue has " + std::to_string(sends.sq.wqe_cnt) + " blocks of " +
               std::to_string(sends.sq.stride) +
               " bytes, and kernels write blocks of 64 bytes, a power of two of at most " + std::to_string(kMostSlots));
    }
    if (ends.cqe_size != sizeof(mlx5::Completed) || !std::has_single_bit(ends.cqe_cnt) || ends.cqe_cnt < 2) {
        refuse("the completion queue has " + std::to_string(ends.cqe_cnt) + " entries of " +
               std::to_string(ends.cqe_size) + " bytes, and kernels read entries of 64 bytes, a power of two");
    }
    if (sends.bf.reg == nullptr) {
        refuse("the queue pair has no doorbell in this process");
    }
    return {.number = pair.qp_num,
            .blocks = reinterpret_cast<uint64_t>(sends.sq.buf),
            .slots = sends.sq.wqe_cnt,
            .most = std::min(sends.sq.wqe_cnt, ends.cqe_cnt / 2),
            .record = reinterpret_cast<uint64_t>(sends.dbrec),
            .doorbell = reinterpret_cast<uint64_t>(sends.bf.reg),
            .completions = reinterpret_cast<uint64_t>(ends.buf),
            .completion_slots = ends.cqe_cnt,
            .completion_record = reinterpret_cast<uint64_t>(ends.dbrec)};
}

std::optional<Completion> find_failure(const DirectQueue& queue) {
    std::optional<Completion> found;
    for (uint32_t i = 0; i < queue.completion_slots; ++i) {
        const uint64_t at = queue.completions + i * sizeof(mlx5::Completed);
        const device::Word last = device::platform::load_acquire(at + sizeof(mlx5::Completed) - sizeof(device::Word));
        if (last >> 60 != mlx5::kRequestFailed) {
            continue;
        }
        mlx5::Completed entry;
        // NOLINTNEXTLINE(performance-no-int-to-ptr): the NIC's library has told it as an address
        std::memcpy(&entry, reinterpret_cast<const void*>(at), sizeof entry);
        const ibv_wc_status status = status_of(entry.bytes[mlx5::kSyndromeAt]);
        if (!found || found->status == IBV_WC_WR_FLUSH_ERR) {
            found = {.id =
                         static_cast<uint64_t>(entry.bytes[mlx5::kCounterAt]) << 8 | entry.bytes[mlx5::kCounterAt + 1],
                     .opcode = IBV_WC_RDMA_WRITE,
                     .status = status,
                     .vendor_error = entry.bytes[mlx5::kSyndromeAt - 1]};
        }
    }
    return found;
}

} // namespace zerohop::fabric
