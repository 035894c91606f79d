"""A proof holds for one handshake, one side and one key, and for nothing else."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from zerohop.core.control import auth, wire
from zerohop.core.control.auth import Transcript

HELLO = wire.Hello(
    version=wire.VERSION,
    magic="zerohop",
    context="a" * 32,
    host="c" * 32,
    pid=7,
    name="me",
    purpose="control",
    nonce=b"1" * 32,
    has_secret=True,
    encryption="control",
    tls=True,
)
CHALLENGE = wire.Challenge(context="b" * 32, host="d" * 32, nonce=b"2" * 32, encryption="control", tls=True)
SEEN = Transcript(HELLO, CHALLENGE)


@pytest.mark.parametrize("key", [b"", b"sesame"])
def test_both_sides_agree(key: bytes) -> None:
    assert SEEN.verify(key, "client", SEEN.proof(key, "client"))
    assert SEEN.verify(key, "server", SEEN.proof(key, "server", b"answer"), b"answer")


def test_a_proof_cannot_be_reflected() -> None:
    assert not SEEN.verify(b"sesame", "server", SEEN.proof(b"sesame", "client"))


@pytest.mark.parametrize("other", [b"", b"Sesame"])
def test_another_key(other: bytes) -> None:
    assert not SEEN.verify(b"sesame", "client", SEEN.proof(other, "client"))


OTHERS: dict[str, Any] = {
    "version": 99,
    "context": "e" * 32,
    "host": "e" * 32,
    "pid": 8,
    "name": "you",
    "purpose": "lane",
    "nonce": b"3" * 32,
    "has_secret": False,
    "encryption": "none",
    "tls": False,
    "token": b"t" * 16,
}


@pytest.mark.parametrize("field", [name for name in wire.Hello.__struct_fields__ if name != "magic"])
def test_every_field_of_a_hello_counts(field: str) -> None:
    other = SEEN._replace(hello=msgspec.structs.replace(HELLO, **{field: OTHERS[field]}))
    assert not other.verify(b"sesame", "client", SEEN.proof(b"sesame", "client"))


@pytest.mark.parametrize("field", wire.Challenge.__struct_fields__)
def test_every_field_of_a_challenge_counts(field: str) -> None:
    other = SEEN._replace(challenge=msgspec.structs.replace(CHALLENGE, **{field: OTHERS[field]}))
    assert not other.verify(b"sesame", "client", SEEN.proof(b"sesame", "client"))


def test_the_answer_counts() -> None:
    assert not SEEN.verify(b"s", "server", SEEN.proof(b"s", "server", b"/tmp/a"), b"/tmp/b")


def test_a_lane_has_a_key_of_its_own() -> None:
    """The name of an invitation says nothing of its token; without the token or the secret there is no key."""
    token = b"t" * 16
    assert auth.name_of(token) != token
    keys = {auth.lane_key(key, each) for key in (b"", b"sesame") for each in (token, b"u" * 16, auth.name_of(token))}
    assert len(keys) == 6


def test_fresh_values() -> None:
    assert len({auth.new_nonce() for _ in range(100)}) == 100
    assert {len(auth.new_capability()) for _ in range(10)} == {16}
    assert auth.same(b"x", b"x")
    assert not auth.same(b"x", b"y")
