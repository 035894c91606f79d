"""The second process: answers, failures, and an end that always comes."""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.patience import patience
from zerohop.cli.peer import PeerFailed, PeerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def peer(monkeypatch: pytest.MonkeyPatch) -> Iterator[PeerProcess]:
    before = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", f"{Path(__file__).parents[1]}{os.pathsep}{before}".rstrip(os.pathsep))
    with PeerProcess("cli.echo_peer", timeout=patience(10)) as process:
        yield process


def test_answers_and_prints_do_not_mix(peer: PeerProcess) -> None:
    for number in range(3):
        assert peer.call("echo", number=number, text="ü\n") == {"number": number, "text": "ü\n"}


def test_large_answers_arrive_whole(peer: PeerProcess) -> None:
    text = "x" * 3_000_000
    assert peer.call("echo", text=text)["text"] == text


def test_an_error_there_is_an_error_here_and_not_the_end(peer: PeerProcess) -> None:
    with pytest.raises(PeerFailed, match="ValueError: as asked"):
        peer.call("fail")
    assert peer.call("echo", a=1) == {"a": 1}


def test_memory_that_is_short_there_is_named(peer: PeerProcess) -> None:
    with pytest.raises(PeerFailed, match=r"out of memory.* Fix: "):
        peer.call("fill_memory")


def test_a_lack_of_descriptors_there_is_named(peer: PeerProcess) -> None:
    with pytest.raises(PeerFailed, match=r"LimitReached: out of file descriptors.* Fix: "):
        peer.call("take_descriptors")


def test_no_directory_for_temporary_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/nonexistent")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    with PeerProcess("cli.echo_peer", timeout=patience(10)) as process, pytest.raises(PeerFailed, match="goodbye"):
        process.call("leave")


def test_unknown_command(peer: PeerProcess) -> None:
    with pytest.raises(PeerFailed, match="KeyError"):
        peer.call("nothing")


def test_an_end_is_told_with_the_last_words(peer: PeerProcess) -> None:
    with pytest.raises(PeerFailed, match=r"exit code 3.*\n.*goodbye"):
        peer.call("leave")
    with pytest.raises(PeerFailed):
        peer.call("echo")


def test_a_kill_is_told(peer: PeerProcess) -> None:
    peer.begin("nap", seconds=30)
    os.kill(peer.pid, signal.SIGKILL)
    with pytest.raises(PeerFailed, match="SIGKILL"):
        peer.finish()


def test_silence_ends_and_so_does_close(peer: PeerProcess) -> None:
    with pytest.raises(PeerFailed, match=r"within 0\.1 s"):
        peer.call("nap", seconds=30, timeout=0.1)
    peer.close(0.1)
    with pytest.raises(ProcessLookupError):
        os.kill(peer.pid, 0)
    peer.close()


def test_descriptors_are_inherited_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{Path(__file__).parents[1]}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    reader, writer = os.pipe()
    try:
        with PeerProcess("cli.echo_peer", pass_fds=(writer,), timeout=patience(10)) as process:
            process.call("echo")
            assert (Path("/proc") / str(process.pid) / "fd" / str(writer)).exists()
            assert not (Path("/proc") / str(process.pid) / "fd" / str(reader)).exists()
    finally:
        os.close(reader)
        os.close(writer)
