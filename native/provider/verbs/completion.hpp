// What a completion says: whose it is, and what its status means for the operation that it ends.
#pragma once

#include "base/status.hpp"

#include <cstdint>
#include <infiniband/verbs.h>

namespace zerohop::verbs {

// Bits of a work request's id: it is the last of its chain; it is all of a transfer, whose index then stands in the id
// instead of a chain's.
inline constexpr uint64_t kLast = 1;
inline constexpr uint64_t kOne = 2;

inline uint64_t request_id(uint16_t lane, uint16_t generation, uint32_t index) {
    return uint64_t{lane} << 48 | uint64_t{generation} << 32 | uint64_t{index} << 2;
}

inline uint16_t lane_of(uint64_t id) {
    return static_cast<uint16_t>(id >> 48);
}

inline uint16_t generation_of(uint64_t id) {
    return static_cast<uint16_t>(id >> 32);
}

inline uint32_t index_of(uint64_t id) {
    return static_cast<uint32_t>(id) >> 2;
}

inline Outcome outcome_of(ibv_wc_status status) {
    switch (status) {
    case IBV_WC_SUCCESS:
        return {};
    case IBV_WC_REM_ACCESS_ERR: // not registered (any more), not for this, or not so long
        return {Status::access_denied, Reason::remote_access};
    case IBV_WC_RETRY_EXC_ERR:
    case IBV_WC_RESP_TIMEOUT_ERR:
        return {Status::peer_lost, Reason::no_answer};
    case IBV_WC_RNR_RETRY_EXC_ERR:
        return {Status::peer_lost, Reason::not_ready};
    case IBV_WC_WR_FLUSH_ERR: // not its own fault
        return {Status::peer_lost, Reason::lane_reset};
    case IBV_WC_REM_INV_REQ_ERR:
    case IBV_WC_REM_OP_ERR:
    case IBV_WC_REM_ABORT_ERR:
        return {Status::peer_lost, Reason::remote_error};
    case IBV_WC_LOC_LEN_ERR:
    case IBV_WC_LOC_PROT_ERR:
    case IBV_WC_LOC_ACCESS_ERR:
    case IBV_WC_LOC_QP_OP_ERR:
        return {Status::device_error, Reason::local_access};
    default:
        return {Status::device_error, Reason::remote_error};
    }
}

} // namespace zerohop::verbs
