"""A wire that loses, repeats and reorders packets: every byte is right, or an error says what happened, in time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

import zerohop as zh
from support.options import Options
from support.pattern import expect_equal, pattern
from support.service import Service
from support.sizes import KIB, MIB
from support.wire import FAR, NEAR, trouble
from support.world import Target

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.fixtures import OpenContext, StartPeer

TIMEOUT_S = 60.0
ROUNDS = 3
# Operations in each round.
EACH = 4
# What the wire does, how many bytes get through it in a few seconds, and how many operations at least must not fail.
# Soft-RoCE asks for all that follows again when a packet comes out of order, and that counts against `retry_count`.
TROUBLES = {
    "loss 1%": (MIB, EACH * ROUNDS),
    "loss 5%": (256 * KIB, 0),
    "loss 20%": (32 * KIB, 0),
    "delay 2ms reorder 25% 50%": (256 * KIB, EACH * ROUNDS // 2),
    "duplicate 20%": (MIB, EACH * ROUNDS),
}


@pytest.mark.timeout(400)
@pytest.mark.parametrize("words", TROUBLES)
def test_right_or_an_error(
    open_context: OpenContext,
    start_peer: StartPeer,
    record_property: Callable[[str, object], None],
    words: str,
) -> None:
    nbytes, least = TROUBLES[words]
    context = open_context(Options(providers=("verbs",), nics=NEAR, timeout=TIMEOUT_S))
    peer = start_peer(Options(providers=("verbs",), nics=FAR, timeout=TIMEOUT_S))
    target = Target(peer, "numpy", nbytes + 8)
    target.put(nbytes, bytes(8))
    body, word = target.handle[:nbytes], target.handle[nbytes:]
    source = context.register(np.zeros(nbytes, np.uint8))
    back = context.register(np.zeros(nbytes, np.uint8))
    assert context.write(source, body).result(30) == nbytes
    path = context.explain(source, body)
    assert (path.provider, path.direct) == ("verbs", True), path.details()
    done = 0
    failures: list[str] = []

    def ends(operation: zh.Operation[int]) -> bool:
        """Whether it is done; what fails says so in time, with an error of its own."""
        nonlocal done
        error = operation.exception(2 * TIMEOUT_S)  # which is raised, should it not have ended by then
        assert isinstance(error, zh.PeerLost | zh.DeadlineExceeded | None), error
        if error is None:
            done += 1
        else:
            failures.append(f"{operation}: {error}")
        return error is None

    with trouble(words):
        for turn in range(ROUNDS):
            data = pattern(100 + turn, nbytes)
            source.write_bytes(0, data.tobytes())
            if ends(context.write(source, body, notify=turn)):
                note = peer.call(Service.notification)
                assert (note.value, note.nbytes) == (turn, nbytes)
                target.expect(0, nbytes, 100 + turn)
                if ends(context.read(body, back)):
                    expect_equal(np.frombuffer(back.read_bytes(), np.uint8), data, "read back")
            added = context.fetch_add(word, 1)
            if ends(added):
                assert added.result() <= turn
            pages = np.arange(nbytes // KIB)
            if ends(context.write_pages(source, body, pages, pages[::-1].copy(), page_bytes=KIB)):
                mirrored = data.reshape(-1, KIB)[::-1].reshape(-1)
                assert target.get(0, nbytes) == mirrored.tobytes()
    record_property("failures", failures)
    print(f"\n{words}: {len(failures)} of {EACH * ROUNDS} operations failed: {failures}")
    assert done >= least
    # The wire is good again, and so is the connection, by whatever lane.
    assert context.write(source, body).result(30) == nbytes
    target.expect(0, nbytes, 100 + ROUNDS - 1)
