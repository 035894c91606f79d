"""Errors carry fields, survive pickling, and native outcomes become the right ones with a fix."""

from __future__ import annotations

import pickle

import pytest

import zerohop as zh
from zerohop._native import Reason, Status
from zerohop.errors import CANCELLED, from_native

KINDS = [
    zh.ZerohopError,
    zh.Closed,
    zh.PeerLost,
    zh.DeadlineExceeded,
    zh.WouldBlock,
    zh.AccessDenied,
    zh.RegistrationFailed,
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
    assert isinstance(error, zh.RegistrationFailed)
    assert error.reason == "out of file descriptors: EMFILE"
    assert error.fix == "mine"


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
