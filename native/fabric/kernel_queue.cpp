#include "fabric/kernel_queue.hpp"

#include <thread>
#include <utility>

namespace zerohop::fabric {

namespace {

constexpr size_t kPolledAtOnce = 64;
// Looks that find nothing until the thread lets others go first.
constexpr uint64_t kLooksPerTurn = 64;
constexpr uint8_t kOtherSyndrome = 0x10; // "bad response"

uint8_t syndrome_of(ibv_wc_status status) {
    switch (status) {
    case IBV_WC_SUCCESS:
        return 0;
    case IBV_WC_LOC_QP_OP_ERR:
        return device::mlx5::kBadRequest;
    case IBV_WC_LOC_PROT_ERR:
        return device::mlx5::kLocalProtection;
    case IBV_WC_WR_FLUSH_ERR:
        return device::mlx5::kFlushed;
    case IBV_WC_REM_ACCESS_ERR:
        return device::mlx5::kRemoteAccess;
    default:
        return kOtherSyndrome;
    }
}

ibv_wr_opcode opcode_of(device::mlx5::Opcode opcode) {
    switch (opcode) {
    case device::mlx5::Opcode::read:
        return IBV_WR_RDMA_READ;
    case device::mlx5::Opcode::fetch_add:
        return IBV_WR_ATOMIC_FETCH_AND_ADD;
    case device::mlx5::Opcode::compare_swap:
        return IBV_WR_ATOMIC_CMP_AND_SWP;
    default:
        return IBV_WR_RDMA_WRITE;
    }
}

} // namespace

bool EndpointExecutor::begin(const device::mlx5::Request& request) {
    const bool is_inline = !request.payload.empty();
    posted_ = {.id = request.index,
               .opcode = opcode_of(request.opcode),
               .flags = IBV_SEND_SIGNALED | (request.fenced ? unsigned{IBV_SEND_FENCE} : 0U) |
                        (is_inline ? unsigned{IBV_SEND_INLINE} : 0U),
               .remote_address = request.remote.address,
               .remote_key = request.remote.key,
               .operand = request.operand,
               .compare = request.compare,
               .pieces = {},
               .payload = request.payload,
               .nbytes = request.nbytes};
    if (!is_inline) {
        posted_.pieces = {{request.local.address, static_cast<uint32_t>(request.nbytes), request.local.key}};
    }
    const Request* chain = &posted_;
    try {
        endpoint_->post(std::span<const Request* const>(&chain, 1));
    } catch (const NativeError& error) {
        if (error.outcome().status == Status::would_block) {
            return false;
        }
        throw;
    }
    return true;
}

void EndpointExecutor::collect(std::vector<Ended>& ended) {
    for (const Completion& each : endpoint_->poll(kPolledAtOnce)) {
        ended.push_back({each.id, syndrome_of(each.status)});
        if (each.status != IBV_WC_SUCCESS) {
            const std::lock_guard lock(mutex_);
            failed_ = failed_ ? failed_ : each;
        }
    }
}

KernelQueue::KernelQueue(const std::shared_ptr<Endpoint>& endpoint, std::shared_ptr<Region> control, uint64_t slots,
                         uint64_t completion_slots)
    : control_(std::move(control)), executor_(endpoint),
      assist_(control_->host(), slots, completion_slots, endpoint->address().number, executor_) {}

bool KernelQueue::poll() {
    if (closed_ || broken_ || (!looking_.wanted() && left_ == 0)) {
        return false;
    }
    const uint64_t ends = looking_.ends();
    bool moved = false;
    try {
        moved = assist_.poll();
    } catch (const std::exception& error) { // of the device
        {
            const std::lock_guard lock(failure_mutex_); // first: a kernel that sees the state may have it asked for
            device_failure_ = error.what();
        }
        assist_.close(device::kFailed);
        broken_ = true;
        return true;
    }
    left_ = assist_.left();
    if (left_ == 0) {
        looking_.found_all(ends);
    }
    // The kernels of a small host may be threads, which need its processors.
    empty_looks_ = moved ? 0 : empty_looks_ + 1;
    if (empty_looks_ % kLooksPerTurn == kLooksPerTurn - 1) {
        std::this_thread::yield();
    }
    return moved;
}

// The device does not tell when it has ended a request. The poller looks without a pause while somebody waits for that.
Backlog KernelQueue::backlog() const {
    if (closed_ || broken_) {
        return {.ready = false, .look_in_ns = UINT64_MAX};
    }
    return {.ready = looking_.wanted(), .look_in_ns = left_ != 0 ? kMillisecond : UINT64_MAX};
}

// A kernel may ask as soon as it has seen the completion of a failed request, so this looks where it is known first.
KernelQueue::Failure KernelQueue::failure() const {
    const std::lock_guard lock(failure_mutex_);
    const bool refused = device_failure_.empty() && assist_.refused();
    return {refused ? "a kernel has written a request, or rung a doorbell, that no NIC takes" : device_failure_,
            executor_.failed()};
}

void KernelQueue::close(Outcome /*outcome*/) {
    if (!closed_.exchange(true)) {
        assist_.close(device::kClosed);
    }
}

} // namespace zerohop::fabric
