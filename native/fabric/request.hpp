// Work requests as plain values, made once and posted as often as one likes.
#pragma once

#include <cstdint>
#include <infiniband/verbs.h>
#include <string>
#include <vector>

namespace zerohop::fabric {

// For the send queue.
struct Request {
    uint64_t id = 0;
    ibv_wr_opcode opcode = IBV_WR_RDMA_WRITE;
    unsigned flags = 0;     // IBV_SEND_*
    uint32_t immediate = 0; // in this machine's byte order
    uint64_t remote_address = 0;
    uint32_t remote_key = 0;
    uint64_t operand = 0; // fetch and add: the addend; compare and swap: the new value
    uint64_t compare = 0;
    std::vector<ibv_sge> pieces;
    std::string payload; // of an inline request without pieces
    uint64_t nbytes = 0; // of all pieces, or of the payload
};

// For the receive queue.
struct Receive {
    uint64_t id = 0;
    std::vector<ibv_sge> pieces;
};

// An entry of the completion queue, as far as its user is told.
struct Completion {
    uint64_t id = 0;
    ibv_wc_opcode opcode = IBV_WC_SEND; // also where it failed, unlike in the device's own entry
    ibv_wc_status status = IBV_WC_SUCCESS;
    uint32_t nbytes = 0;
    int64_t immediate = -1; // -1: none
    uint32_t vendor_error = 0;
};

} // namespace zerohop::fabric
