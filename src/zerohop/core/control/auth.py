"""Proves a shared secret without sending it: an HMAC-SHA256 challenge in both directions.

Each proof covers the whole Hello, the whole Challenge and the side that proves, so that it can be neither replayed, nor
reflected, nor moved to another connection, and so that nobody in between can change what the two sides have said. The
key is derived from the secret (see secret.py); for the socket of a lane, from the token of its invitation, too. Without
a secret on either side the key is empty and the exchange proves nothing; that is allowed on loopback and Unix sockets
only (see listener.py).
"""

from __future__ import annotations

import hashlib
import hmac
from functools import partial
from typing import Final, Literal, NamedTuple

from zerohop.core.base.sandbox import random_bytes
from zerohop.core.control import wire

NONCE_BYTES: Final = 32
CAPABILITY_BYTES: Final = 16
_PROOF: Final = b"zerohop proof 2"
_LANE: Final = b"zerohop lane 1"
_INVITATION: Final = b"zerohop invitation 1"
_GRANT: Final = b"zerohop grant 1"


class Transcript(NamedTuple):
    """Holds the messages of a handshake that both sides have seen before either proves anything."""

    hello: wire.Hello
    challenge: wire.Challenge

    def proof(self, key: bytes, side: Literal["client", "server"], answer: bytes = b"") -> bytes:
        """Return the proof that ``side`` knows the key, and that it has sent ``answer`` beside the proof."""
        code = hmac.new(key, _PROOF, hashlib.sha256)
        # Both sides encode the messages as they understood them, so that every field that they act on is covered.
        for part in (side.encode(), wire.encode(self.hello), wire.encode(self.challenge), answer):
            # Each part goes in with its length, so that no two transcripts give the same bytes.
            code.update(len(part).to_bytes(4, "big"))
            code.update(part)
        return code.digest()

    def verify(self, key: bytes, side: Literal["client", "server"], proof: bytes, answer: bytes = b"") -> bool:
        """Tell whether ``proof`` is right for ``side``, in a time that does not depend on where it is wrong."""
        return hmac.compare_digest(self.proof(key, side, answer), proof)


def name_of(token: bytes) -> bytes:
    """Return the public name of an invitation; its token, which only the control channel has carried, is the proof."""
    return hashlib.sha256(_INVITATION + token).digest()[:CAPABILITY_BYTES]


def grant_key(capability: bytes) -> bytes:
    """Return the key of a share in tables of grants, whose first half is public: see native/memory/grants.hpp."""
    return hashlib.sha256(_GRANT + capability).digest()[:CAPABILITY_BYTES]


def lane_key(key: bytes, token: bytes) -> bytes:
    """Return the key for the proofs on the socket of an invited lane."""
    return hmac.new(key, _LANE + token, hashlib.sha256).digest()


# Fresh random bytes for a handshake; and 128 random bits, without which no peer reaches a share.
new_nonce: Final = partial(random_bytes, NONCE_BYTES)
new_capability: Final = partial(random_bytes, CAPABILITY_BYTES)


def same(left: bytes, right: bytes) -> bool:
    """Compare in a time that does not depend on the content."""
    return hmac.compare_digest(left, right)
