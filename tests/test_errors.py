"""Errors carry fields, survive pickling, and native outcomes become the right ones with a fix."""

from __future__ import annotations

import os
import pickle
import resource
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

import zerohop as zh
from zerohop import limits
from zerohop._native import Reason, Status
from zerohop.errors import CANCELLED, copy_of, from_native, limit_for, out_of_memory, said_by_peer, too_many_threads

if TYPE_CHECKING:
    from pathlib import Path

KINDS = [
    zh.ZerohopError,
    zh.Closed,
    zh.PeerLost,
    zh.DeadlineExceeded,
    zh.WouldBlock,
    zh.AccessDenied,
    zh.RegistrationFailed,
    zh.LimitReached,
    zh.Unsupported,
    zh.ProtocolError,
    zh.DeviceFailed,
]


@pytest.mark.parametrize("kind", KINDS)
def test_fields_and_text(kind: type[zh.ZerohopError]) -> None:
    error = kind("it broke", fix="mend it", peer="abc" * 8, provider="shm", operation="write", bytes_done=12)
    assert (error.reason, error.fix, error.peer, error.provider, error.operation, error.bytes_done) == (
        "it broke",
        "mend it",
        "abc" * 8,
        "shm",
        "write",
        12,
    )
    assert str(error) == "write over shm with peer abcabcabcabc: it broke (12 bytes were done). Fix: mend it"
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert str(again) == str(error)
    assert again.fix == error.fix


@pytest.mark.parametrize("kind", KINDS)
def test_ranks(kind: type[zh.ZerohopError]) -> None:
    """They stay with an error wherever it goes."""
    error = kind("they have not come", ranks=(3, 5))
    for each in (error, copy_of(error), replace(error, reason="not yet"), pickle.loads(pickle.dumps(error))):
        assert type(each) is kind
        assert each.ranks == (3, 5)
    assert kind("it broke").ranks == ()


def test_repr_has_what_was_learned_later() -> None:
    error = zh.PeerLost("it is gone")
    error.operation, error.ranks = "send", (2,)
    assert repr(error) == "PeerLost('send: it is gone')"
    assert repr(copy_of(error)) == repr(error)


def test_a_lane_over_tcp_names_the_calls_that_a_sandbox_may_refuse() -> None:
    error = from_native(Status.PEER_LOST.value, Reason.NOT_ALLOWED.value, provider="tcp", operation="read")
    assert error.reason.endswith("as a sandbox does: sendmsg or recvmsg")
    named = from_native(Status.PEER_LOST.value, Reason.NOT_ALLOWED.value, "poll", provider="tcp", operation="read")
    assert named.reason.endswith("as a sandbox does: poll")


def test_text_of_what_is_known_only() -> None:
    assert str(zh.Closed("closed")) == "closed"
    assert str(zh.PeerLost("gone", peer="f" * 32)) == "peer ffffffffffff: gone"
    assert str(zh.AccessDenied("no", operation="read")) == "read: no"


def test_revocation_incomplete_names_the_peers() -> None:
    error = zh.RevocationIncomplete("2 peers", peers=["a", "b"], operation="revoke")
    assert error.peers == ("a", "b")
    assert pickle.loads(pickle.dumps(error)).peers == ("a", "b")


@pytest.mark.parametrize("status", [status for status in Status if status not in (Status.OK, Status.PENDING)])
@pytest.mark.parametrize("reason", list(Reason))
def test_every_native_outcome_has_words(status: Status, reason: Reason) -> None:
    error = from_native(status.value, reason.value, operation="write")
    if status != CANCELLED:
        assert error.reason
        assert type(error) is not zh.ZerohopError


def test_the_reasons_name_says_what_it_is() -> None:
    """Whoever looks for a native reason finds its name in the text."""
    for reason in Reason:
        if reason in (Reason.NONE, Reason.USER, Reason.NO_CREDIT):
            continue
        said = from_native(Status.ACCESS_DENIED.value, reason.value).reason.lower()
        assert all(word[:4] in said for word in reason.name.lower().split("_")), (reason, said)


def test_native_text_is_added_and_fields_are_kept() -> None:
    error = from_native(
        Status.NO_MEMORY.value, Reason.OUT_OF_DESCRIPTORS.value, "EMFILE", operation="alloc", fix="mine"
    )
    assert isinstance(error, zh.LimitReached)
    assert error.reason.startswith("out of file descriptors: EMFILE (")
    assert error.fix == "mine"


def test_revoked_is_said_of_a_peers_memory_alone() -> None:
    """Where this side is closed, it is its own memory, which no owner can give a handle of."""
    assert "ask the owner" in from_native(Status.ACCESS_DENIED.value, Reason.REVOKED.value).fix
    own = from_native(Status.CLOSED.value, Reason.REVOKED.value)
    assert type(own) is zh.Closed
    assert own.reason == "the memory of a transfer was closed"
    assert "owner" not in own.fix


@pytest.mark.parametrize("status", [len(Status), 99, 255])
def test_a_status_of_another_version(status: int) -> None:
    """A peer that is newer may send one."""
    error = from_native(status, 0, operation="read", peer="f" * 32)
    assert type(error) is zh.ProtocolError
    assert f"status {status}" in error.reason
    assert "same version" in error.fix


def test_a_reason_of_another_version() -> None:
    error = from_native(Status.ACCESS_DENIED.value, 200)
    assert type(error) is zh.AccessDenied
    assert error.reason


NO_MEMORY, OUT_OF_SHARED_MEMORY = Status.NO_MEMORY.value, Reason.OUT_OF_SHARED_MEMORY.value


class TestLimits:
    def test_descriptors(self) -> None:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        try:
            # As its peer was lost, the same: it is a limit of this process.
            for status in (Status.NO_MEMORY, Status.PEER_LOST):
                error = from_native(status.value, Reason.OUT_OF_DESCRIPTORS.value, peer="p")
                assert isinstance(error, zh.LimitReached)
                assert not isinstance(error, zh.PeerLost)
                assert error.limit in ("RLIMIT_NOFILE", "fs.file-max")
                assert error.value > 0
                assert "raise the limit: " in error.fix
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

    def test_no_descriptor_is_left_to_count_them(self) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        try:
            error = from_native(NO_MEMORY, Reason.OUT_OF_DESCRIPTORS.value)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert isinstance(error, zh.LimitReached)
        assert (error.limit, error.value) == ("RLIMIT_NOFILE", 0)
        assert error.fix == "raise the limit: ulimit -n 65536"

    def test_of_which_process_it_is_for_another(self) -> None:
        """A server tells its clients of its own limits, and of theirs, which they have told it."""
        own = from_native(NO_MEMORY, Reason.OUT_OF_DESCRIPTORS.value, "EMFILE")
        told = said_by_peer(NO_MEMORY, Reason.OUT_OF_DESCRIPTORS.value, peer="f" * 32)
        assert isinstance(own, zh.LimitReached)
        assert isinstance(told, zh.LimitReached)
        assert limit_for(own, "the server", "the client") == (
            own.reason,
            "raise the limit of the server: ulimit -n 65536",
        )
        assert limit_for(told, "the server", "the client") == (
            "out of file descriptors, in the client",
            "raise the limit of the client: ulimit -n 65536",
        )
        other = zh.LimitReached("too few threads", fix="start fewer")
        assert limit_for(other, "the server", "the client") == ("too few threads", "start fewer")

    def test_locked_memory(self) -> None:
        error = from_native(NO_MEMORY, Reason.MEMLOCK.value)
        assert isinstance(error, zh.LimitReached)
        assert error.limit == "RLIMIT_MEMLOCK"
        assert error.fix.endswith("ulimit -l unlimited")

    def test_mappings(self, monkeypatch: pytest.MonkeyPatch) -> None:
        text = "cannot map a peer's memory of 4096 bytes: Cannot allocate memory"
        assert not isinstance(from_native(NO_MEMORY, OUT_OF_SHARED_MEMORY, text), zh.LimitReached)
        monkeypatch.setattr(limits, "_NEAR", 1 << 40)
        error = from_native(NO_MEMORY, OUT_OF_SHARED_MEMORY, text)
        assert isinstance(error, zh.LimitReached)
        assert error.limit == "vm.max_map_count"
        assert error.value > 1000
        assert "sysctl -w vm.max_map_count=" in error.fix
        # It is no limit of that kind if the system has no memory left.
        other = from_native(NO_MEMORY, OUT_OF_SHARED_MEMORY, "cannot size it: No space left on device")
        assert isinstance(other, zh.RegistrationFailed)

    def test_threads(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(_: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(zh.LimitReached, match="threads") as caught:
            zh.Context()
        assert caught.value.limit in ("RLIMIT_NPROC", "kernel.threads-max", "pids.max")
        assert caught.value.value > 0

    def test_threads_without_room_for_a_stack(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The number of threads is not what is short then, and raising its limit would not help."""
        for short, option in (("RLIMIT_AS", "ulimit -v"), ("RLIMIT_DATA", "ulimit -d")):
            values = {getattr(resource, short): 1 << 20, resource.RLIMIT_NPROC: 100, resource.RLIMIT_STACK: 8 << 20}
            monkeypatch.setattr(resource, "getrlimit", lambda which, values=values: (values.get(which, -1), -1))
            error = too_many_threads()
            assert (error.limit, error.value) == (short, 1 << 20)
            assert option in error.fix

    @pytest.mark.parametrize("version", [1, 2])
    def test_threads_of_a_control_group(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: int) -> None:
        """The group that this one is in may be full, too; ``ulimit -u`` would not help."""
        (tmp_path / "member").write_text(f"{'8:pids' if version == 1 else '0:'}:/outer/inner\n3:cpu:/other\n")
        groups = tmp_path / "groups"
        outer = groups / ("pids" if version == 1 else "") / "outer"
        for group, most, now in ((outer, "64", "64"), (outer / "inner", "max", "3")):
            group.mkdir(parents=True)
            (group / "pids.max").write_text(f"{most}\n")
            (group / "pids.current").write_text(f"{now}\n")
        monkeypatch.setattr(limits, "_GROUPS", groups)
        monkeypatch.setattr(limits, "_MEMBER_OF", tmp_path / "member")
        error = too_many_threads()
        assert (error.limit, error.value) == ("pids.max", 64)
        assert "pids.max of the control group" in error.fix
        (outer / "pids.current").write_text("5\n")
        assert too_many_threads().limit != "pids.max"

    def test_threads_of_root(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The system does not hold root to RLIMIT_NPROC."""
        monkeypatch.setattr(limits, "_control_groups", list)
        monkeypatch.setattr(
            limits, "_rlimit", lambda name: limits.Limit(name, 100 if name == "RLIMIT_NPROC" else -1, "")
        )
        for user, limit in ((1000, "RLIMIT_NPROC"), (0, "kernel.threads-max")):
            monkeypatch.setattr(os, "geteuid", lambda user=user: user)
            assert too_many_threads().limit == limit

    @pytest.mark.parametrize("limit", [1 << 30, resource.RLIM_INFINITY])
    @pytest.mark.parametrize("words", ["", "Unable to allocate 1.00 GiB"])
    def test_of_memory(self, monkeypatch: pytest.MonkeyPatch, limit: int, words: str) -> None:
        """A MemoryError has no words of its own, unless it is numpy's."""
        monkeypatch.setattr(resource, "getrlimit", lambda which: (limit, limit))
        error = out_of_memory(MemoryError(words) if words else MemoryError())
        assert error.reason.startswith(f"out of memory: {words}" if words else "out of memory")
        assert error.fix
        named = "RLIMIT_AS is 1073741824" in error.reason and "ulimit -v" in error.fix
        assert named == isinstance(error, zh.LimitReached) == (limit > 0)

    def test_of_the_peers_process(self) -> None:
        error = said_by_peer(NO_MEMORY, Reason.OUT_OF_DESCRIPTORS.value, peer="p")
        assert isinstance(error, zh.LimitReached)
        assert (error.limit, error.value) == ("RLIMIT_NOFILE", 0)
        assert "the peer's process" in error.fix
        assert isinstance(said_by_peer(Status.ACCESS_DENIED.value, 0), zh.AccessDenied)

    def test_fields_survive_pickling(self) -> None:
        error = zh.LimitReached("full", limit="RLIMIT_AS", value=7, fix="more")
        again = pickle.loads(pickle.dumps(error))
        assert (again.limit, again.value, again.fix) == ("RLIMIT_AS", 7, "more")
