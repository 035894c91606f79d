"""torchcomms' names where something ends or fails: codes, connecting, a fork, and the end of a program."""

from __future__ import annotations

import contextlib
import gc
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import zerohop as zh
from support.forking import in_child
from support.patience import PATIENCE_S
from support.pattern import pattern
from support.torchcomms_peer import other_process, pair
from zerohop.compat.process import shared_context
from zerohop.compat.torchcomms import (
    COMM_INTERNAL_ERROR,
    COMM_SUCCESS,
    COMM_TIMEOUT,
    COMM_USER_ABORT,
    RdmaMemory,
    RdmaRemoteBuffer,
    RdmaTransport,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NBYTES = 8192

pytestmark = pytest.mark.usefixtures("own_context")


@contextlib.contextmanager
def _standing_still(
    before_ours: Callable[[], object] = lambda: None,
) -> Iterator[tuple[RdmaTransport, RdmaRemoteBuffer]]:
    """A transport whose peer has stopped, and its memory.

    What is done before ours is made does not concern the other process. That connects, in its own time.
    """
    with other_process(NBYTES) as far:
        before_ours()
        transport = RdmaTransport("cpu")
        far.tell((transport.bind(), None))
        url, remote = far.hear()
        assert far.hear() == (COMM_SUCCESS, True)
        assert transport.connect(url) == COMM_SUCCESS
        far.stop()
        yield transport, remote


class TestCodes:
    def test_of_what_has_no_peer(self) -> None:
        transport, memory = RdmaTransport("cpu"), RdmaMemory(np.zeros(8, np.uint8))
        assert not transport.connected()
        assert transport.write(memory.to_view(), memory.to_remote_buffer()) == COMM_INTERNAL_ERROR

    def test_of_what_takes_too_long(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ZEROHOP_PROVIDERS", "tcp")
        with _standing_still(lambda: monkeypatch.setenv("ZEROHOP_TIMEOUT", "0.05")) as (transport, remote):
            memory = RdmaMemory(np.zeros(NBYTES, np.uint8))
            assert transport.write(memory.to_view(), remote) == COMM_TIMEOUT

    def test_of_one_that_is_dropped(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """And while it waits, other threads run."""
        monkeypatch.setenv("ZEROHOP_PROVIDERS", "tcp")
        with _standing_still() as (transport, remote):
            memory, codes = RdmaMemory(np.zeros(NBYTES, np.uint8)), []
            started = threading.Event()

            def write() -> None:
                started.set()
                codes.append(transport.write(memory.to_view(), remote))

            writer = threading.Thread(target=write, daemon=True)
            writer.start()
            assert started.wait(PATIENCE_S)
            until = time.monotonic() + 0.2
            while time.monotonic() < until:
                assert not codes
            transport._transport.abort()
            writer.join(PATIENCE_S)
            assert codes == [COMM_USER_ABORT]


class TestConnecting:
    @pytest.mark.parametrize("url", [b"", b"garbage", b"\xff\xfe", b"zerohop://127.0.0.1:1/00", bytes(300)])
    def test_to_garbage(self, url: bytes) -> None:
        with pytest.raises(ValueError, match=r"URL|utf-8|zerohop:|names no"):
            RdmaTransport("cpu").connect(url)

    def test_to_text(self) -> None:
        text: Any = RdmaTransport("cpu").bind().decode()
        with pytest.raises(TypeError, match="bytes, not str"):
            RdmaTransport("cpu").connect(text)

    def test_to_what_is_gone(self) -> None:
        other = RdmaTransport("cpu")
        url = other.bind()
        del other
        gc.collect()
        with pytest.raises(zh.PeerLost):
            RdmaTransport("cpu").connect(url)


class TestSupported:
    def test_always_the_same(self) -> None:
        assert all(RdmaTransport.supported() for _ in range(100))

    def test_not(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ZEROHOP_PROVIDERS", "verbs")
        monkeypatch.setenv("ZEROHOP_NICS", "none_of_that_name")
        assert not RdmaTransport.supported()

    def test_of_a_device_that_is_not_there(self) -> None:
        with pytest.raises(ValueError, match="sim:7"):
            RdmaTransport("sim:7")


def test_a_forked_child_has_its_own() -> None:
    ours = shared_context()

    def work() -> str:
        here, _ = pair()
        target = np.zeros(8, np.uint8)
        memory, source = RdmaMemory(target), RdmaMemory(pattern(1, 8))
        code = here.write(source.to_view(), memory.to_remote_buffer())
        return f"{code} {np.array_equal(target, pattern(1, 8))} {shared_context() is ours}"

    assert in_child(work) == "0 True False"


def test_at_exit() -> None:
    """A program that closes nothing ends, and says nothing."""
    program = """
import numpy as np
from zerohop.compat.torchcomms import RdmaMemory, RdmaTransport
a, b = RdmaTransport("cpu"), RdmaTransport("cpu")
a.connect(b.bind())
m, n = RdmaMemory(np.ones(8)), RdmaMemory(np.zeros(8))
print(a.write(m.to_view(), n.to_remote_buffer()))
"""
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert (ran.stdout, ran.stderr, ran.returncode) == ("0\n", "", 0)


def test_a_url_that_is_no_text() -> None:
    with pytest.raises(ValueError, match="no zerohop URL"):
        RdmaTransport("host").connect(b"\xff\xfe")
