// Finds the queues of an endpoint in memory, as mlx5 NICs read and write them: kernels then post without this process.
//
// Not verified on hardware: the tests give it a table of the vendor's library, and a NIC in software.
#pragma once

#include "fabric/request.hpp"
#include "shim/mlx5.hpp"

#include <cstdint>
#include <optional>

namespace zerohop::fabric {

// Addresses in this process. All but the doorbell are memory of the host; that is a register of the NIC.
struct DirectQueue {
    uint32_t number = 0; // of the queue pair
    uint64_t blocks = 0; // of the send queue
    uint32_t slots = 0;
    uint64_t record = 0; // of both queues
    uint64_t doorbell = 0;
    uint64_t completions = 0;
    uint32_t completion_slots = 0;
    uint64_t completion_record = 0;
};

// Both queues are new: nothing was posted or polled through libibverbs. Throws NativeError(unsupported) if the NIC or
// its library is not mlx5's, or the queues have another form than kernels write.
[[nodiscard]] DirectQueue find_direct_queue(const shim::Mlx5& api, ibv_qp& pair, ibv_cq& completions);

// Returns the first request that has failed, by the entries that the NIC has written; requests that were only flushed
// come last.
[[nodiscard]] std::optional<Completion> find_failure(const DirectQueue& queue);

} // namespace zerohop::fabric
