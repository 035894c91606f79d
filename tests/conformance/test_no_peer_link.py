"""Devices that do not reach a peer's memory themselves: the bytes are staged in host buffers, and it is said why."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

import zerohop as zh
from support.native import engine_of
from support.options import Options
from support.patience import PATIENCE_S
from support.world import World

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.buffers import Kind
    from support.fixtures import OpenContext, StartPeer

PAGE, COUNT = 4096, 24
NBYTES = PAGE * COUNT
ALWAYS = 1 << 30
LIMIT_S = PATIENCE_S
WHY = "no peer link: this process's devices cannot reach the memory of the peer's"


def divide(context: zh.Context) -> None:
    """From now on no simulated device of this process reaches a peer's."""
    for device in range(2):
        engine_of(context).sim_inject(device, "link", ALWAYS)


@pytest.fixture
def world(providers: tuple[str, ...] | None, open_context: OpenContext, start_peer: StartPeer) -> Iterator[World]:
    options = Options(providers=providers)
    made = World("p2p", open_context(options), start_peer(options))
    divide(made.here)
    yield made
    made.close_buffers()


@pytest.mark.parametrize("kind", ["sim", "alloc"])
@pytest.mark.parametrize(("providers", "taken"), [(None, "shm"), (("p2p",), "p2p")], ids=["all", "p2p alone"])
def test_staged_and_explained(world: World, taken: str, kind: Kind) -> None:
    """Every byte both ways, page lists too; before and after it is said which path, and why not the direct one."""
    source, target = world.buffer(kind, NBYTES), world.target("sim", NBYTES)
    source.fill(0, NBYTES, 1)
    write = world.here.write(source.memory, target.handle, notify=5)
    assert write.result(LIMIT_S) == NBYTES
    target.expect(0, NBYTES, 1)
    world.expect_notification(5, NBYTES)
    explanation = world.here.explain(source.memory, target.handle)
    assert (explanation.provider, explanation.form, explanation.direct) == (taken, "ring", False)
    assert dict(explanation.rejected)["p2p (peer)"] == WHY
    assert f"not p2p (peer): {WHY}" in explanation.details()
    assert str(write.explain()).startswith(f"{taken} (ring) ")
    assert "staged" in str(write.explain())
    target.fill(0, NBYTES, 2)
    world.here.read(target.handle, source.memory).result(LIMIT_S)
    source.expect(0, NBYTES, 2)
    source.fill(0, NBYTES, 3)
    pages = np.arange(COUNT)
    moved = world.here.write_pages(source.memory, target.handle, pages, pages, page_bytes=PAGE)
    moved.result(LIMIT_S)
    assert "staged" in str(moved.explain())
    target.expect(0, NBYTES, 3)


@pytest.mark.parametrize("providers", [None])
def test_another_memory_may_be_reached(world: World) -> None:
    """What one memory's devices cannot is no verdict on the next."""
    source, far = world.buffer("sim", NBYTES), world.target("sim", NBYTES)
    assert not world.here.explain(source.memory, far.handle).direct
    for device in range(2):
        engine_of(world.here).sim_inject(device, "link", 0)
    near = world.target("sim", NBYTES)
    source.fill(0, NBYTES, 4)
    world.here.write(source.memory, near.handle).result(LIMIT_S)
    near.expect(0, NBYTES, 4)
    explanation = world.here.explain(source.memory, near.handle)
    assert (explanation.provider, explanation.form, explanation.direct) == ("p2p", "peer", True)


def test_where_only_direct_will_do(open_context: OpenContext, start_peer: StartPeer) -> None:
    """Refused with that reason and a fix, before a byte moves."""
    context, peer = open_context(Options(require="direct")), start_peer(Options())
    divide(context)
    world = World("p2p", context, peer)
    source, target = world.buffer("sim", NBYTES), world.target("sim", NBYTES)
    with pytest.raises(zh.Unsupported, match="no peer link") as caught:
        context.write(source.memory, target.handle).result(LIMIT_S)
    assert caught.value.fix
    target.expect_poison()
    world.close_buffers()
