"""Derives keys from a Context's secret: slowly, once, and on a thread of its own.

What a stranger can see of a session, a proof or a certificate, lets him try secrets at home. Each try costs him one
scrypt: some tens of milliseconds and 32 MiB. A Context pays that once, on its first connection.
"""

from __future__ import annotations

import asyncio
import hashlib
from functools import partial
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from zerohop.core.control import tls
from zerohop.errors import Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable

    from zerohop.core.runtime.control_thread import ControlThread

T = TypeVar("T")

# The salt is the same for all, because two sides that have never met must derive the same keys.
_SALT: Final = b"zerohop secret 1"
_COST: Final = 1 << 15
_BLOCK: Final = 8
# OpenSSL counts 128 * cost * block bytes and a little more.
_MEMORY: Final = 64 << 20
_KEY_BYTES: Final = 32


class Keys(NamedTuple):
    """Holds what is derived from a secret: the key of proofs, and the seeds of the two certificates."""

    proof: bytes
    listen: bytes
    dial: bytes

    def __repr__(self) -> str:
        """Return no key: logs and tracebacks have no business with them."""
        return "Keys(<hidden>)"


def derive(secret: bytes) -> Keys:
    """Derive the keys; blocks for some tens of milliseconds.

    Raises:
        Unsupported: this Python's OpenSSL has no scrypt, or does not let it run.
    """
    try:
        # It is hashed first, because scrypt's HMAC pads a short one with zeros: "x" and "x\0" would be the same secret.
        short = hashlib.sha256(secret).digest()
        data = hashlib.scrypt(
            short, salt=_SALT, n=_COST, r=_BLOCK, p=1, maxmem=_MEMORY, dklen=_KEY_BYTES * len(Keys._fields)
        )
    except (AttributeError, ValueError, MemoryError) as error:
        raise Unsupported(
            f"no keys can be derived from the secret: {error}",
            fix="use a Python whose OpenSSL has scrypt, with 32 MiB of memory for it",
            operation="connect",
        ) from None
    return Keys(*(data[at : at + _KEY_BYTES] for at in range(0, len(data), _KEY_BYTES)))


class Secret:
    """Holds a Context's secret and what was derived from it. Only the control thread may use it."""

    def __init__(self, secret: bytes, control: ControlThread) -> None:
        self._control = control
        self._keys = _Once(partial(derive, secret), control)
        self._tls: _Once[tls.Contexts] | None = None

    def begin(self) -> None:
        """Begin to derive the keys, if that has not begun."""
        self._keys.begin()

    async def proof_key(self) -> bytes:
        """Return the key of proofs; raises what ``derive`` raises."""
        return (await self._keys.get()).proof

    async def tls(self) -> tls.Contexts:
        """Return what TLS needs; raises what ``derive`` and ``tls.make_contexts`` raise."""
        keys = await self._keys.get()
        if self._tls is None:
            self._tls = _Once(partial(tls.make_contexts, keys.listen, keys.dial), self._control)
        return await self._tls.get()


class _Once(Generic[T]):
    """Calls a blocking function on a new thread when its value is first wanted; after a failure, again."""

    def __init__(self, call: Callable[[], T], control: ControlThread) -> None:
        self._call = call
        self._control = control
        self._task: asyncio.Task[T] | None = None

    def begin(self) -> asyncio.Task[T]:
        """Return the task that has the value, or will have it."""
        task = self._task
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = self._task = asyncio.get_running_loop().create_task(self._control.run_in_thread(self._call))
            # asyncio would warn of an exception that nobody fetched.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task

    async def get(self) -> T:
        """Return the value; one that waits and is cancelled does not end the call for the others."""
        return await asyncio.shield(self.begin())
