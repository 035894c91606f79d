// Finds the queues of an endpoint in memory, as mlx5 NICs read and write them: kernels then post without this process.
//
// Not verified on hardware: the tests give it a table of the vendor's library, and a NIC in software.
#pragma once

#include "fabric/request.hpp"
#include "shim/mlx5.hpp"

#include <cstdint>
#include <optional>

namespace zerohop::fabric {

// Where kernels write requests, and read completions. All addresses are those of this process. The doorbell is a
// register of the NIC, and everything else memory of the host.
struct DirectQueue {
    uint32_t number = 0; // of the queue pair
    uint64_t blocks = 0; // of the send queue
    uint32_t slots = 0;
    uint32_t most = 0;   // requests that may be under way: the completion queue has twice as many entries
    uint64_t record = 0; // of both queues
    uint64_t doorbell = 0;
    uint64_t completions = 0;
    uint32_t completion_slots = 0;
    uint64_t completion_record = 0;
};

// Call it before anything is posted or polled through libibverbs. Throws NativeError(unsupported) if the device is no
// mlx5 NIC, or the queues have sizes that the kernels' functions do not handle.
[[nodiscard]] DirectQueue find_direct_queue(const shim::Mlx5& api, ibv_qp& pair, ibv_cq& completions);

// Returns a request whose completion is an error; one that was only flushed, if there is no other. `id`: the NIC's
// 16-bit index.
[[nodiscard]] std::optional<Completion> find_failure(const DirectQueue& queue);

} // namespace zerohop::fabric
