"""Declares Completion: the outcome of one work request; and the errors for failures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from zerohop._native import Status
from zerohop.errors import AccessDenied, DeviceFailed, PeerLost, WouldBlock, ZerohopError, from_native

if TYPE_CHECKING:
    from zerohop._native import NativeError

# Indexed by the numbers of verbs (enum ibv_wc_status), without the prefix IBV_WC_.
STATUSES: Final = (
    "SUCCESS", "LOC_LEN_ERR", "LOC_QP_OP_ERR", "LOC_EEC_OP_ERR", "LOC_PROT_ERR", "WR_FLUSH_ERR", "MW_BIND_ERR",
    "BAD_RESP_ERR", "LOC_ACCESS_ERR", "REM_INV_REQ_ERR", "REM_ACCESS_ERR", "REM_OP_ERR", "RETRY_EXC_ERR",
    "RNR_RETRY_EXC_ERR", "LOC_RDD_VIOL_ERR", "REM_INV_RD_REQ_ERR", "REM_ABORT_ERR", "INV_EECN_ERR",
    "INV_EEC_STATE_ERR", "FATAL_ERR", "RESP_TIMEOUT_ERR", "GENERAL_ERR", "TM_ERR", "TM_RNDV_INCOMPLETE",
)  # fmt: skip
# Keyed by the numbers of verbs (enum ibv_wc_opcode).
OPCODES: Final = {
    0: "SEND",
    1: "RDMA_WRITE",
    2: "RDMA_READ",
    3: "COMP_SWAP",
    4: "FETCH_ADD",
    128: "RECV",
    129: "RECV_RDMA_WITH_IMM",
}


class _Meaning(NamedTuple):
    kind: type[ZerohopError]
    reason: str
    fix: str = ""


_RECONNECT: Final = "close the endpoint and connect a new one"
_MEANINGS: Final = {
    "LOC_LEN_ERR": _Meaning(
        AccessDenied, "the message is longer than the receive that it met, or than a message may be", "post longer ones"
    ),
    "LOC_PROT_ERR": _Meaning(
        AccessDenied, "local access: a local range is not registered, not for this, or its region was closed"
    ),
    "LOC_ACCESS_ERR": _Meaning(AccessDenied, "local access: the region may not be written to", "use LOCAL_WRITE"),
    "LOC_QP_OP_ERR": _Meaning(
        DeviceFailed,
        "the queue pair could not do it: a request that makes no sense to it, or (Soft-RoCE) a region that was closed",
        _RECONNECT,
    ),
    "WR_FLUSH_ERR": _Meaning(PeerLost, "flushed: the queue pair failed before the request's turn", _RECONNECT),
    "REM_ACCESS_ERR": _Meaning(
        AccessDenied, "remote access: the peer's device refused the key, the range or the right", _RECONNECT
    ),
    "REM_INV_REQ_ERR": _Meaning(
        AccessDenied,
        "the peer's device refused the request: longer than the receive that it met, misaligned, or of a kind that it "
        "does not do",
        _RECONNECT,
    ),
    "REM_OP_ERR": _Meaning(PeerLost, "the peer's device could not do it", _RECONNECT),
    "REM_ABORT_ERR": _Meaning(PeerLost, "the peer's device broke it off", _RECONNECT),
    "RETRY_EXC_ERR": _Meaning(
        PeerLost, "no answer: the peer's queue pair is gone or not connected, or nothing reaches it", _RECONNECT
    ),
    "RESP_TIMEOUT_ERR": _Meaning(PeerLost, "no answer in time", _RECONNECT),
    "RNR_RETRY_EXC_ERR": _Meaning(PeerLost, "not ready: the peer had no receive posted, for all retries", _RECONNECT),
}
_OTHER: Final = _Meaning(DeviceFailed, "the device failed", _RECONNECT)


class Completion(NamedTuple):
    """Holds the outcome of one work request.

    Attributes:
        wr_id: the ``wr_id`` of the request.
        opcode: kind of the request, in verbs' words: ``"RDMA_WRITE"``, ``"RDMA_READ"``, ``"SEND"``, ``"FETCH_ADD"``,
            ``"COMP_SWAP"``. For a receive, the kind of message that used it: ``"RECV"``, ``"RECV_RDMA_WITH_IMM"``; a
            failed receive is ``"RECV"``.
        status: ``"SUCCESS"``, or the failure in verbs' words, such as ``"REM_ACCESS_ERR"``.
        byte_len: bytes moved; 0 for a failure.
        imm: the 32 bits that came with the message, or None.
        vendor_error: the device's own code for a failure, in its vendor's numbers.
    """

    wr_id: int
    opcode: str
    status: str
    byte_len: int
    imm: int | None
    vendor_error: int

    @property
    def ok(self) -> bool:
        """Tell whether the request succeeded."""
        return self.status == "SUCCESS"

    @property
    def error(self) -> ZerohopError | None:
        """Return the error for a failure, a new one each time; None after a success.

        AccessDenied: a key, range or right was refused, here or at the peer. PeerLost: no answer, or the queue pair had
        failed before. DeviceFailed: any other failure.
        """
        if self.ok:
            return None
        kind, reason, fix = _MEANINGS.get(self.status, _OTHER)
        text = f"{reason} ({self.status}, wr_id {self.wr_id})"
        return kind(text, fix=fix, provider="verbs", operation=self.opcode)


def translate(error: NativeError, operation: str) -> ZerohopError:
    """Return the error that stands for a NativeError."""
    status, reason, text = error.args
    if status == Status.WOULD_BLOCK.value:
        return WouldBlock(text, fix="poll(), which frees places", provider="verbs", operation=operation)
    fields: dict[str, Any] = {"fix": ""} if status == Status.DEVICE_ERROR.value else {}
    return from_native(status, reason, text, provider="verbs", operation=operation, **fields)


def from_entry(entry: tuple[int, int, int, int, int, int]) -> Completion:
    """Return the Completion for an entry that native code has polled."""
    wr_id, opcode, status, nbytes, imm, vendor = entry
    return Completion(
        wr_id,
        OPCODES.get(opcode, str(opcode)),
        STATUSES[status] if status < len(STATUSES) else str(status),
        nbytes,
        None if imm < 0 else imm,
        vendor,
    )
