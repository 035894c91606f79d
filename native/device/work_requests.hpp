// Reads the work requests that kernels write for mlx5 NICs, and refuses all that is not as it has to be.
#pragma once

#include "zerohop/device/mlx5.hpp"

#include <cstdint>
#include <optional>
#include <string>

namespace zerohop::device::mlx5 {

// A request, taken apart. Its keys and ranges were not checked.
struct Request {
    Opcode opcode = Opcode::nop;
    uint64_t index = 0;
    bool fenced = false; // it begins when the reads and atomics before it have ended
    Place remote{};
    Place local{};       // none, where the bytes are inline
    std::string payload; // the bytes that are inline
    uint64_t nbytes = 0;
    uint64_t operand = 0; // of an atomic: the addend, or the new value
    uint64_t compare = 0;
};

// Takes a block apart; nothing if it is no write or read of 1 to kMostBytes and no atomic, has no completion, or has
// another index, queue pair or number of segments than it has to have, or other bits where a NIC wants zero. Sends are
// not carried out here.
[[nodiscard]] std::optional<Request> take_apart(const Block& block, uint64_t index, uint32_t queue_pair);

// Returns the index behind the last request that a doorbell tells of, counted on from one that is known; nothing if
// that is none of this queue, or further than the queue is long.
[[nodiscard]] std::optional<uint64_t> tail_of(uint64_t doorbell, uint64_t known, uint64_t slots, uint32_t queue_pair);

} // namespace zerohop::device::mlx5
