"""Makes the errors of a Queue from what kernels have written into its words of state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zerohop.device.status import FAILED, TIMED_OUT
from zerohop.errors import AccessDenied, DeadlineExceeded

if TYPE_CHECKING:
    from zerohop.errors import ZerohopError


def of_call(number: int, peer: str) -> AccessDenied:
    """Return the error of a call that was refused; ``number`` and ``peer``: index in the list of peers, and the id."""
    return AccessDenied(
        f"a kernel's call for peer {number} was refused: a range beyond the peer's memory or the local's, "
        "no such local, a word that is not aligned to 8 bytes, or a right that the handle does not give",
        peer=peer,
        fix="compare the arguments of the kernel's calls with the lists that the Queue was made of",
    )


def of_queue(state: int, peers: int, locals_: int) -> ZerohopError | None:
    """Return the error of a Queue that has ended for all peers; None if it has not. The counts: of its lists."""
    if state == TIMED_OUT:
        return DeadlineExceeded(
            "a kernel found no free slot in the FIFO for longer than the Queue's timeout",
            fix="run kernels within `with queue.active():`, and make another Queue",
        )
    if state == FAILED:
        return AccessDenied(
            "a kernel named a peer that the Queue does not have, or waited for what is no word of a local",
            fix=f"there are {peers} peers and {locals_} locals, counted from 0; the offset of a word is a multiple "
            "of 8",
        )
    return None


def late() -> DeadlineExceeded:
    """Return the error of requests that have not ended in time."""
    return DeadlineExceeded(
        "what kernels have posted has not ended within the Queue's timeout",
        fix="find out which peer has stopped, or allow more time",
    )
