"""A proof holds for one handshake, one side and one secret, and for nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from zerohop.core.control import auth
from zerohop.core.control.auth import Transcript

SEEN = Transcript("a" * 32, "b" * 32, b"1" * 32, b"2" * 32, "control", b"")


@pytest.mark.parametrize("secret", [None, b"sesame"])
def test_both_sides_agree(secret: bytes | None) -> None:
    assert SEEN.verify(secret, "client", SEEN.proof(secret, "client"))
    assert SEEN.verify(secret, "server", SEEN.proof(secret, "server"))


def test_a_proof_cannot_be_reflected() -> None:
    assert not SEEN.verify(b"sesame", "server", SEEN.proof(b"sesame", "client"))


@pytest.mark.parametrize("other", [None, b"", b"Sesame", b"sesame\0"])
def test_another_secret(other: bytes | None) -> None:
    assert not SEEN.verify(b"sesame", "client", SEEN.proof(other, "client"))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("client", "c" * 32),
        ("server", "c" * 32),
        ("client_nonce", b"3" * 32),
        ("server_nonce", b"3" * 32),
        ("purpose", "lane"),
        ("token", b"t"),
    ],
)
def test_a_proof_cannot_be_moved(field: str, value: Any) -> None:
    other = SEEN._replace(**{field: value})
    assert not other.verify(b"sesame", "client", SEEN.proof(b"sesame", "client"))


def test_parts_do_not_run_together() -> None:
    left = Transcript("ab", "c", b"", b"", "", b"")
    right = Transcript("a", "bc", b"", b"", "", b"")
    assert left.proof(b"s", "client") != right.proof(b"s", "client")


def test_fresh_values() -> None:
    assert len({auth.new_nonce() for _ in range(100)}) == 100
    assert {len(auth.new_capability()) for _ in range(10)} == {16}
    assert auth.same(b"x", b"x")
    assert not auth.same(b"x", b"y")
