"""In a sandbox that refuses a system call: the error names the call, and says what to allow."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import zerohop as zh
from support.options import Options
from support.service import Service
from zerohop._native import NativeError

if TYPE_CHECKING:
    from support.fixtures import StartPeer

ALL = ["memfd_create", "eventfd", "pipe2", "epoll_create1", "socket", "socketpair", "bind", "listen"]
OF_SOCKETS = ["getsockopt", "setsockopt", "getsockname"]
# By these, threads wake the Context's own.
WAKING = ["epoll_ctl", "epoll_wait", "sendto", "recvfrom"]


@pytest.mark.parametrize("call", ALL + WAKING + OF_SOCKETS)
def test_opening_without(start_peer: StartPeer, call: str) -> None:
    peer = start_peer(Options())
    peer.clear()  # the Context that it has opened could not be closed any more
    peer.call(Service.forbid, call)
    outcome = peer.call(Service.try_open, Options(providers=None))
    assert outcome.kind == "Unsupported", outcome
    assert outcome.says(call.replace("_", " "), "not permitted"), outcome
    assert "seccomp" in outcome.fix


@pytest.mark.parametrize("device", ["host", "sim:0"])
@pytest.mark.parametrize("call", ["memfd_create", "ftruncate"])
def test_allocating_without_shared_memory(start_peer: StartPeer, call: str, device: str) -> None:
    peer = start_peer(Options())
    peer.call(Service.forbid, call)
    outcome = peer.call(Service.try_alloc, 64, device)
    assert outcome.kind == "Unsupported", outcome
    assert outcome.says(call.replace("_", " "), "not permitted"), outcome
    assert "seccomp" in outcome.fix


def test_asking_for_shared_memory(start_peer: StartPeer) -> None:
    peer = start_peer(Options())
    peer.call(Service.forbid, "memfd_create")
    outcome = peer.call(Service.try_open, Options(providers=("shm",)))
    assert outcome.kind == "Unsupported", outcome
    assert outcome.says("memfd create", "not permitted"), outcome
    assert "seccomp" in outcome.fix


def test_without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a chroot in which nothing was mounted."""

    def make_no_doorbell(*_: object) -> None:
        raise NativeError(7, 0, "cannot make a doorbell (open /proc/self/fd): No such file or directory")

    monkeypatch.setattr("zerohop.core.lifecycle.Engine", make_no_doorbell)
    monkeypatch.setattr("zerohop.machine.host.why_no_context", lambda: ("/proc is not mounted", "mount it"))
    with pytest.raises(zh.Unsupported, match="open: /proc is not mounted") as caught:
        zh.Context()
    assert caught.value.fix == "mount it"
