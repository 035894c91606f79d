"""Which path is taken, what explain() says of it, what strict mode refuses, and what the statistics count."""

from __future__ import annotations

import pickle
import warnings
from typing import TYPE_CHECKING

import numpy as np
import pytest

import zerohop as zh
from support.buffers import GPUS
from support.lanes import eventually
from support.options import Options
from support.patience import PATIENCE_S
from support.pattern import pattern
from support.service import Service
from support.world import WORLDS, Target

if TYPE_CHECKING:
    from support.buffers import Kind
    from support.fixtures import OpenContext, StartPeer
    from support.world import World

MEMORIES: tuple[Kind, ...] = ("numpy", "alloc", "sim")


@pytest.mark.parametrize("target_kind", MEMORIES)
@pytest.mark.parametrize("source_kind", MEMORIES)
@pytest.mark.parametrize("world", ["shm-other", "tcp-other"], indirect=True)
def test_explain(world: World, source_kind: Kind, target_kind: Kind) -> None:
    """Before and after an operation: provider, both devices, direct or staged, how much, how long, how fast."""
    nbytes = 1 << 20
    source = world.buffer(source_kind, nbytes)
    target = world.target(target_kind, nbytes)
    write = world.here.write(source.memory, target.handle)
    write.result(PATIENCE_S)
    said = str(write.explain())
    planned = str(world.here.explain(source.memory, target.handle))
    mapped = world.provider == "shm" and target_kind == "alloc" and source_kind != "sim"
    for text in (said, planned):
        assert world.provider in text
        assert ("direct" if mapped else "staged") in text
        assert ("staged" if mapped else "direct") not in text.splitlines()[0]
        for kind in (source_kind, target_kind):
            assert ("sim:0" if kind == "sim" else "host") in text
    assert "1.0 MiB" in said
    assert "B/s" in said
    if world.provider == "shm":
        assert ("mapped" if mapped else "ring") in said


@pytest.mark.parametrize("world", ["shm-other"], indirect=True)
def test_explain_while_in_flight_and_after_a_failure(world: World) -> None:
    connection = world.here.connect(world.there.identity.url).result(PATIENCE_S)
    receive = connection.recv(np.zeros(8, np.uint8))
    assert "in flight" in str(receive.explain())
    receive.cancel()
    assert "cancel" in str(receive.explain()).lower()
    readable = world.target("numpy", 8).share("r")
    try:
        write = world.here.write(pattern(1, 8), readable)
    except zh.AccessDenied:
        return
    with pytest.raises(zh.AccessDenied):
        write.result(PATIENCE_S)
    assert "rights" in str(write.explain())


@pytest.mark.parametrize("kind", ["numpy", "sim"])
@pytest.mark.parametrize("world", ["shm-other", "tcp-other"], indirect=True)
def test_explain_messages(world: World, kind: Kind) -> None:
    """What is known here of a message's way: the lane, and where this side's memory is."""
    connection = world.here.connect(world.there.identity.url).result(PATIENCE_S)
    source = world.buffer(kind, 1000)
    target = world.target("numpy", 1000)
    receiving = world.there.start(Service.recv, world.here.url, target.number, 0, 1000)
    sent = connection.send(source.memory)
    assert sent.result(PATIENCE_S) == receiving.result() == 1000
    said = str(sent.explain())
    assert said.startswith(world.provider)
    assert ("sim:0→peer staged" if kind == "sim" else "host→peer staged") in said
    assert "1000 B" in said


def test_the_cheapest_of_both_providers(open_context: OpenContext, start_peer: StartPeer) -> None:
    """Without a restriction shm is taken on one host, and explain says why not tcp."""
    context, peer = open_context(Options()), start_peer(Options())
    target = Target(peer, "numpy", 1000)
    write = context.write(pattern(1, 1000), target.handle)
    write.result(PATIENCE_S)
    assert str(write.explain()).startswith("shm")
    explanation = context.explain(np.zeros(1000, np.uint8), target.handle)
    assert (explanation.provider, explanation.form, explanation.direct) == ("shm", "ring", False)
    assert str(explanation).startswith("shm")
    rejected = dict(explanation.rejected)
    assert {"shm (mapped)", "tcp (stream)"} <= set(rejected)
    assert all(rejected.values())
    for name, why in rejected.items():
        assert name in explanation.details()
        assert why in explanation.details()


@pytest.mark.parametrize(("mine", "theirs"), [("shm", "tcp"), ("tcp", "shm")])
def test_no_provider_in_common(open_context: OpenContext, start_peer: StartPeer, mine: str, theirs: str) -> None:
    """An error that names what each side has, and the target untouched."""
    context, peer = open_context(Options(providers=(mine,))), start_peer(Options(providers=(theirs,)))
    target = Target(peer, "numpy", 64)
    with pytest.raises(zh.Unsupported) as caught:
        context.write(pattern(1, 64), target.handle).result(PATIENCE_S)
    assert mine in str(caught.value)
    assert theirs in str(caught.value)
    assert caught.value.fix
    with pytest.raises(zh.Unsupported):
        context.connect(peer.identity.url).result(PATIENCE_S)
    target.expect_poison()


@pytest.mark.parametrize("provider", ["shm", "tcp"])
@pytest.mark.parametrize(
    "pair", [("sim", "numpy"), ("numpy", "sim"), ("sim", "alloc"), ("sim", "sim"), ("numpy", "numpy")]
)
def test_require_direct_refuses_what_is_staged(
    open_context: OpenContext, start_peer: StartPeer, provider: str, pair: tuple[Kind, Kind]
) -> None:
    source_kind, target_kind = pair
    strict = open_context(Options(providers=(provider,), require="direct"))
    peer = start_peer(Options(providers=(provider,)))
    target = Target(peer, target_kind, 1000)
    source = strict.alloc(1000, device="sim:0" if source_kind == "sim" else "host")
    with pytest.raises(zh.Unsupported, match=r"direct|staged") as caught:
        strict.write(source, target.handle).result(PATIENCE_S)
    assert caught.value.fix
    with pytest.raises(zh.Unsupported):
        strict.read(target.handle, source).result(PATIENCE_S)
    target.expect_poison()
    # What is direct works as ever; nothing is over a socket.
    host = Target(peer, "alloc", 1000)
    if provider == "shm":
        strict.write(pattern(1, 1000), host.handle).result(PATIENCE_S)
        host.expect(0, 1000, 1)
    else:
        with pytest.raises(zh.Unsupported, match="staged"):
            strict.write(pattern(1, 1000), host.handle).result(PATIENCE_S)
        host.expect_poison()
    strict.notify(host.handle, 7).result(PATIENCE_S)
    source.close()


def test_providers_that_do_not_exist() -> None:
    with pytest.raises(ValueError, match="nonsense"):
        zh.Context(providers=["nonsense"])
    with pytest.raises(ValueError, match="provider"):
        zh.Context(providers=[])
    for absent in ("verbs",) if GPUS else ("verbs", "p2p"):
        with pytest.raises(zh.Unsupported) as caught:
            zh.Context(providers=[absent])
        assert absent in str(caught.value)
        assert caught.value.reason


@pytest.mark.parametrize("world", WORLDS, indirect=True)
def test_sim_never_warns(world: World) -> None:
    """The warning of staged paths is for real accelerators; a simulated one has been asked for."""
    source = world.buffer("sim", 1000)
    target = world.target("sim", 1000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        world.here.write(source.memory, target.handle).result(PATIENCE_S)


def _counters(statistics: zh.Statistics) -> dict[str, int]:
    """Those of the Context and those of its engine; none has two meanings."""
    own = {name: value for name, value in statistics._asdict().items() if isinstance(value, int)}
    assert not own.keys() & statistics.engine.keys()
    return own | dict(statistics.engine)


def _counted(before: zh.Statistics, after: zh.Statistics) -> dict[str, int]:
    then = _counters(before)
    return {name: value - then.get(name, 0) for name, value in _counters(after).items()}


@pytest.mark.parametrize("world", WORLDS, indirect=True)
def test_statistics(world: World) -> None:
    """A NamedTuple of numbers; 100 writes of 1000 bytes are found in it, of the Context and of the Connection."""
    target = world.target("numpy", 1000)
    connection = world.here.connect(world.there.identity.url).result(PATIENCE_S)
    data = pattern(1, 1000)
    here, lane = world.here.statistics(), connection.statistics()
    for _ in range(100):
        world.here.write(data, target.handle).result(PATIENCE_S)
    # The last one is done a moment before it is counted so.
    eventually(lambda: _counted(here, world.here.statistics())["operations_pending"] == 0, "some pend")
    counts = _counted(here, world.here.statistics())
    assert counts["operations_inline"] + counts["operations_posted"] == 100
    # What a NIC moves by itself is counted apart.
    moved_as = "bytes_direct" if world.provider == "verbs" else "bytes_sent"
    assert 100_000 <= counts[moved_as] < 200_000
    assert counts["refusals"] == counts["connections"] == 0
    moved = {name: connection.statistics()[name] - count for name, count in lane.items()}
    assert 100_000 <= moved[moved_as] < 200_000


@pytest.mark.parametrize("world", ["shm-other", "tcp-other"], indirect=True)
def test_statistics_of_failures(world: World) -> None:
    before = world.here.statistics()
    connection = world.here.connect(world.there.identity.url).result(PATIENCE_S)
    for _ in range(10):
        with pytest.raises(zh.DeadlineExceeded):
            connection.recv(np.zeros(8, np.uint8), timeout=0.001).result()
    eventually(lambda: _counted(before, world.here.statistics())["operations_pending"] == 0, "some pend")
    assert _counted(before, world.here.statistics())["operations_posted"] == 10
    assert world.there.call(Service.identity).id == connection.peer


@pytest.mark.parametrize("world", ["shm-other"], indirect=True)
def test_devices(world: World) -> None:
    names = [str(getattr(device, "name", device)) for device in world.here.devices]
    assert [name for name in names if "sim" in name] == ["sim:0", "sim:1"]


def test_an_operation_explains_itself_as_its_context_does(open_context: OpenContext) -> None:
    """One type for both, which prints as one line."""
    here, there = open_context(Options(providers=("shm",))), open_context(Options(providers=("shm",)))
    target = there.alloc(8).share("rw")
    source = here.alloc(8)
    write = here.write(source, target)
    write.result(PATIENCE_S)
    explained = write.explain()
    assert explained._replace(kind="", outcome="") == here.explain(source, target)
    assert (explained.kind, explained.provider, explained.form) == ("write", "shm", "mapped")
    assert str(explained) == f"shm (mapped) host→host direct, {explained.outcome}"
    assert explained.outcome.startswith("8 B in ")
    assert pickle.loads(pickle.dumps(explained)) == explained
    flush = here.flush()
    flush.result(PATIENCE_S)
    assert str(flush.explain()).startswith("flush, ")
