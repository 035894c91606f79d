"""Keys are derived from a secret slowly, once, and beside everything else."""

from __future__ import annotations

import hashlib
import threading
from typing import TYPE_CHECKING, Any

import pytest

from support.lanes import eventually
from support.options import Options
from support.patience import PATIENCE_S
from support.raw_control import RawControl, proof_key
from zerohop.core.control import secret, tls, wire
from zerohop.errors import AccessDenied, Unsupported

if TYPE_CHECKING:
    from support.fixtures import OpenContext

KNOWS = Options(providers=("tcp",), secret="open sesame")


def test_a_proof_seen_on_the_wire_costs_a_slow_derivation(monkeypatch: pytest.MonkeyPatch) -> None:
    """No key is a plain hash of the secret; scrypt stands between them, with the memory that it needs."""
    asked: list[tuple[int, int]] = []
    scrypt = hashlib.scrypt

    def counted(password: bytes, **arguments: Any) -> bytes:
        asked.append((arguments["n"], arguments["r"]))
        return scrypt(password, **arguments)

    monkeypatch.setattr(hashlib, "scrypt", counted)
    proof_key.cache_clear()
    key = proof_key(b"sesame")
    assert asked == [(1 << 15, 8)]
    assert key not in (hashlib.sha256(b"sesame").digest(), b"sesame")
    assert proof_key(b"sesame\0") != key


def test_the_derivation_holds_nobody_up(open_context: OpenContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it goes on, the control thread serves others; and it is done once in a Context."""
    derive, goes_on, calls = secret.derive, threading.Event(), []

    def slow(given: bytes) -> Any:
        calls.append(given)
        goes_on.wait(PATIENCE_S)
        return derive(given)

    monkeypatch.setattr(secret, "derive", slow)
    owner = open_context(KNOWS)
    eventually(lambda: len(calls) == 1, "nothing was derived")
    waiting = RawControl(owner.url, unix=False)
    hello = waiting.hello(has_secret=True)
    waiting.send(hello)
    served = threading.Event()
    owner._core.control.call(served.set)
    assert served.wait(PATIENCE_S)
    goes_on.set()
    answered = waiting.receive()
    assert answered is not None
    assert isinstance(answered[0], wire.Challenge)
    waiting.close()
    for _ in range(3):
        friend = open_context(KNOWS)
        friend.connect(owner.url).result(PATIENCE_S)
    assert len(calls) == 4


def test_no_memory_for_the_derivation(open_context: OpenContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """The peer is told, and so is the user here; the next connection tries again."""

    def _no_memory(*_: Any, **__: Any) -> bytes:
        raise MemoryError("out of memory")

    with monkeypatch.context() as patched:
        patched.setattr(hashlib, "scrypt", _no_memory)
        owner, friend = open_context(KNOWS), open_context(KNOWS)
        with pytest.raises((Unsupported, AccessDenied), match="no keys can be derived"):
            friend.connect(owner.url).result(PATIENCE_S)
    assert friend.connect(owner.url).result(PATIENCE_S).peer == owner.id


def test_no_key_is_shown() -> None:
    keys = secret.derive(b"open sesame")
    contexts = tls.make_contexts(keys.listen, keys.dial)
    shown = repr(keys) + repr(contexts) + repr(tls._certificate(keys.listen, "listens"))
    for key in (*keys, contexts.listen_lane, contexts.dial_lane):
        assert repr(key)[2:-1] not in shown
    assert "PRIVATE KEY" not in shown
