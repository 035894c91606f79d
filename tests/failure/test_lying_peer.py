"""An initiator whose handles are forged: its own side lets them through, so it is the target that has to refuse.

What a handle cannot say is in test_lying_engine: there the requests themselves are forged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

import zerohop as zh
from support.patience import PATIENCE_S
from support.pattern import pattern
from support.tamper import CAPABILITY, DEVICE, KEYS, LENGTH, NBYTES, OFFSET, RIGHTS, SHARE, fields, flip, forge
from support.world import WORLDS_AND_KINDS

if TYPE_CHECKING:
    from support.buffers import Kind
    from support.world import Target, World
    from zerohop.core.memory.rights import Rights

pytestmark = [
    pytest.mark.unprivileged,
    pytest.mark.parametrize(("world", "kind"), WORLDS_AND_KINDS, indirect=["world"]),
]

ROOM = 3 * 4096


def _expect_refused(
    world: World, target: Target, forged: zh.RemoteBuffer, *, what: str = "rw", honest: int = 0
) -> None:
    """AccessDenied for all that the handle pretends to allow, beyond the first bytes where those are `honest`, nothing
    moved, and the honest handle works as ever."""
    nbytes = forged.nbytes
    last_word = (fields(forged)[OFFSET] + nbytes) // 8 * 8 - 8 - fields(forged)[OFFSET]
    # A range of which one page lies beyond.
    page_bytes = 64 if nbytes // 64 * 64 > honest else 1
    last_page = nbytes // page_bytes - 1
    into = np.zeros(nbytes, np.uint8)
    if "w" in what:
        with pytest.raises(zh.AccessDenied):
            world.here.write(pattern(1, nbytes), forged, notify=1).result(PATIENCE_S)
        with pytest.raises(zh.AccessDenied):
            world.here.write(pattern(1, 8), forged[-8:]).result(PATIENCE_S)
        with pytest.raises(zh.AccessDenied):
            world.here.write_pages(pattern(1, nbytes), forged, [0, 1], [last_page, 0], page_bytes=page_bytes).result(
                PATIENCE_S
            )
        if last_word + 8 > honest:
            with pytest.raises(zh.AccessDenied):
                world.here.fetch_add(forged, 1, offset=last_word).result(PATIENCE_S)
    if "r" in what:
        with pytest.raises(zh.AccessDenied):
            world.here.read(forged, into).result(PATIENCE_S)
        with pytest.raises(zh.AccessDenied):
            world.here.read_pages(forged, into, [last_page, 0], [0, 1], page_bytes=page_bytes).result(PATIENCE_S)
        assert not into.any()
    target.expect_poison()
    world.expect_no_notification()


def _expect_honest(world: World, target: Target, handle: zh.RemoteBuffer) -> None:
    world.here.write(pattern(5, handle.nbytes), handle).result(PATIENCE_S)
    target.settle(0, handle.nbytes, 5)


@pytest.mark.parametrize("bit", [0, 63, 127])
def test_capability(world: World, kind: Kind, bit: int) -> None:
    target = world.target(kind, ROOM)
    wrong = flip(fields(target.handle)[CAPABILITY], bit)
    _expect_refused(world, target, forge(target.handle, {CAPABILITY: wrong}))
    _expect_honest(world, target, target.handle)
    # And once the honest route exists.
    _expect_refused(world, target, forge(target.handle, {CAPABILITY: wrong}))


def test_capability_of_another_memory(world: World, kind: Kind) -> None:
    target, other = world.target(kind, ROOM), world.target(kind, ROOM)
    _expect_refused(world, target, forge(target.handle, {CAPABILITY: fields(other.handle)[CAPABILITY]}))
    other.expect_poison()


@pytest.mark.parametrize("beyond", [1, 64, 4096, 1 << 20])
def test_length(world: World, kind: Kind, beyond: int) -> None:
    """The memory really is longer than its share for the smaller lies, and ends before the larger ones."""
    target = world.target(kind, ROOM)
    longer = ROOM + beyond
    _expect_refused(world, target, forge(target.handle, {NBYTES: longer, LENGTH: longer}), honest=ROOM)
    _expect_honest(world, target, target.handle)


@pytest.mark.parametrize("offset", [ROOM, ROOM + 1, 1 << 40, (1 << 62) - 4096])
def test_place(world: World, kind: Kind, offset: int) -> None:
    """A short range, far outside."""
    target = world.target(kind, ROOM)
    lie = {NBYTES: offset + 4096, OFFSET: offset, LENGTH: 4096}
    _expect_refused(world, target, forge(target.handle, lie))


@pytest.mark.parametrize(("given", "claimed"), [("r", "w"), ("r", "rw"), ("w", "r"), ("w", "rw")])
def test_rights(world: World, kind: Kind, given: Rights, claimed: str) -> None:
    target = world.target(kind, ROOM)
    bits = {"r": 1, "w": 2, "rw": 3}
    forged = forge(target.share(given), {RIGHTS: bits[claimed]})
    _expect_refused(world, target, forged, what=claimed.replace(given, ""))


@pytest.mark.parametrize("change", [1, 1 << 31, 1 << 32, 5 << 32, (1 << 63) - 1])
def test_share(world: World, kind: Kind, change: int) -> None:
    """Another index, another generation, both."""
    target = world.target(kind, ROOM)
    _expect_refused(world, target, forge(target.handle, {SHARE: fields(target.handle)[SHARE] ^ change}))
    _expect_honest(world, target, target.handle)


def test_whether_it_may_be_mapped(world: World, kind: Kind) -> None:
    """A lie about that may cost a refusal or nothing, and never reaches another byte."""
    target = world.target(kind, ROOM)
    keys = dict(fields(target.handle)[KEYS])
    forged = forge(target.handle, {KEYS: {} if keys.pop("shm", None) else {**keys, "shm": b"m"}})
    try:
        world.here.write(pattern(3, ROOM), forged).result(PATIENCE_S)
    except (zh.AccessDenied, zh.Unsupported, zh.RegistrationFailed):
        target.expect_poison()
    else:
        target.settle(0, ROOM, 3)
    _expect_honest(world, target, target.handle)


def test_where_it_is(world: World, kind: Kind) -> None:
    """A device's memory said to be the host's, and the other way round."""
    target = world.target(kind, ROOM)
    forged = forge(target.handle, {DEVICE: "host" if kind == "sim" else "sim:0"})
    try:
        world.here.write(pattern(3, ROOM), forged).result(PATIENCE_S)
    except (zh.AccessDenied, zh.Unsupported):
        target.expect_poison()
    else:
        target.settle(0, ROOM, 3)
    _expect_honest(world, target, target.handle)
