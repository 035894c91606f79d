// What a completion's status means for the operation that it ends.
#pragma once

#include "engine/status.hpp"

#include <infiniband/verbs.h>

namespace zerohop::verbs {

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
