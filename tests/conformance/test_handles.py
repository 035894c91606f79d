"""Handles as values: bytes, pickle, slices, rights, and what a handle tells."""

from __future__ import annotations

import copy
import pickle
from typing import TYPE_CHECKING

import numpy as np
import pytest

import zerohop as zh
from support.buffers import KINDS, Kind
from support.patience import PATIENCE_S
from support.pattern import pattern
from support.world import WORLDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.world import World


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("world", WORLDS, indirect=True)
def test_through_bytes_and_pickle(world: World, kind: Kind) -> None:
    """Whatever way the handle went, it reaches the same memory."""
    target = world.target(kind, 1000)
    handle = target.handle
    forms = [
        zh.RemoteBuffer.from_bytes(bytes(handle)),
        pickle.loads(pickle.dumps(handle)),
        pickle.loads(pickle.dumps(handle, protocol=2)),
        copy.copy(handle),
        copy.deepcopy(handle),
    ]
    for seed, form in enumerate(forms):
        assert form == handle
        assert hash(form) == hash(handle)
        assert bytes(form) == bytes(handle)
        world.here.write(pattern(seed, 1000), form).result(PATIENCE_S)
        target.settle(0, 1000, seed)


@pytest.mark.parametrize("world", WORLDS, indirect=True)
def test_a_slice_travels_as_a_slice(world: World) -> None:
    target = world.target("numpy", 1000)
    piece = pickle.loads(pickle.dumps(target.handle[100:900]))[10:20]
    again = zh.RemoteBuffer.from_bytes(bytes(piece))
    assert again.nbytes == 10
    world.here.write(pattern(1, 10), again).result(PATIENCE_S)
    target.settle(110, 10, 1)
    target.expect_poison()


@pytest.mark.parametrize("world", ["shm-other"], indirect=True)
def test_what_a_handle_tells(world: World) -> None:
    for kind in KINDS:
        target = world.target(kind, 1000)
        handle = target.share("r")
        assert handle.nbytes == 1000
        assert handle.device == {"sim": "sim:0", "cuda": "cuda:0"}.get(kind, "host")
        assert handle.rights == "r"
        assert handle.owner == world.there.identity.id
        assert handle.url == world.there.identity.url
        assert len(bytes(handle)) < 1024


@pytest.mark.parametrize("world", ["shm-other"], indirect=True)
def test_slicing(world: World) -> None:
    handle = world.target("numpy", 100).handle
    assert handle[:].nbytes == 100
    assert handle[10:].nbytes == 90
    assert handle[-10:].nbytes == 10
    assert handle[50:10].nbytes == 0
    assert handle[90:200].nbytes == 10
    assert handle[10:20][5:].nbytes == 5
    assert handle[0:0].nbytes == 0
    with pytest.raises(ValueError, match="step"):
        handle[::2]
    with pytest.raises(TypeError):
        handle[3]  # type: ignore[index]
    memory = world.buffer("numpy", 100).memory
    assert memory[10:20][2:4].nbytes == 2
    with pytest.raises(ValueError, match="step"):
        memory[::2]


@pytest.mark.parametrize("world", ["shm-other", "tcp-other"], indirect=True)
def test_unequal_lengths(world: World) -> None:
    """A ValueError that names both, before anything is posted."""
    target = world.target("numpy", 100)
    source = world.buffer("numpy", 100)
    for local, remote in ((source.memory[:99], target.handle), (source.memory, target.handle[:99])):
        lengths = r"(?s)(99.*100|100.*99)"
        with pytest.raises(ValueError, match=lengths):
            world.here.write(local, remote)
        with pytest.raises(ValueError, match=lengths):
            world.here.read(remote, local)
    target.expect_poison()
    source.expect_poison()


@pytest.mark.parametrize("world", ["shm-other"], indirect=True)
def test_a_handle_cannot_be_changed(world: World) -> None:
    handle = world.target("numpy", 100).handle
    for name, value in (("nbytes", 1000), ("rights", "rw"), ("owner", "0" * 32), ("anything", 1)):
        with pytest.raises(AttributeError):
            setattr(handle, name, value)
    assert handle.nbytes == 100


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("world", WORLDS, indirect=True)
def test_rights(world: World, kind: Kind) -> None:
    """Each handle allows what it says, and nothing else changes a byte."""
    target = world.target(kind, 1000)
    readable, writable = target.share("r"), target.share("w")
    into = np.zeros(1000, np.uint8)
    refused: list[Callable[[], zh.Operation[int]]] = [
        lambda: world.here.write(pattern(1, 1000), readable),
        lambda: world.here.write_pages(pattern(1, 1000), readable, [0], [1], page_bytes=8),
        lambda: world.here.fetch_add(readable, 1),
        lambda: world.here.compare_swap(readable, 0xA5A5A5A5A5A5A5A5, 1),
        lambda: world.here.read(writable, into),
        lambda: world.here.read_pages(writable, into, [0], [1], page_bytes=8),
    ]
    for post in refused:
        with pytest.raises(zh.AccessDenied, match="rights") as caught:
            post().result(PATIENCE_S)
        assert caught.value.fix
    target.expect_poison()
    assert not into.any()
    world.here.write(pattern(2, 1000), writable).result(PATIENCE_S)
    target.expect(0, 1000, 2)
    world.here.read(readable, into).result(PATIENCE_S)
    assert into.tobytes() == pattern(2, 1000).tobytes()


@pytest.mark.parametrize("rights", ["", "x", "rwx", "wr ", None, 3])
@pytest.mark.parametrize("world", ["shm-other"], indirect=True)
def test_rights_that_do_not_exist(world: World, rights: object) -> None:
    with pytest.raises((ValueError, TypeError)):
        world.buffer("numpy", 100).memory.share(rights)  # type: ignore[arg-type]


@pytest.mark.parametrize("world", WORLDS, indirect=True)
def test_read_only_memory(world: World) -> None:
    """An immutable buffer can be a source and can be shared for reading, and for nothing else."""
    data = pattern(1, 1000).tobytes()
    target = world.target("numpy", 1000)
    memory = world.here.register(data)
    try:
        assert memory.rights == "r"
        with pytest.raises((zh.AccessDenied, ValueError)):
            memory.share("rw")
        with pytest.raises((zh.AccessDenied, ValueError)):
            memory.share("w")
        world.here.write(memory, target.handle).result(PATIENCE_S)
        target.expect(0, 1000, 1)
        with pytest.raises((zh.AccessDenied, ValueError)):
            world.here.read(target.handle, memory).result(PATIENCE_S)
        with pytest.raises((zh.AccessDenied, ValueError)):
            world.here.read(target.handle, bytes(1000)).result(PATIENCE_S)
        assert memory.share("r").rights == "r"
        assert data == pattern(1, 1000).tobytes()
    finally:
        memory.close()
