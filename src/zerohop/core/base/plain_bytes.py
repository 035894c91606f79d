"""Takes bytes as an argument, in any object that has them."""

from __future__ import annotations

from typing import Any


def plain_bytes(name: str, value: Any, given_by: str = "") -> bytes:
    """Return the bytes of the argument ``name``; raise TypeError if it has none, or is text.

    ``given_by`` names the call that gives such bytes, if only those of one call will do.
    """
    if type(value) is bytes:
        return value
    try:
        # bytes(value) would turn a number into that many zeros.
        view = memoryview(value)
    except TypeError:
        which = f"the bytes that {given_by} gave" if given_by else "bytes"
        fix = f". Fix: {name}=text.encode()" if isinstance(value, str) and not given_by else ""
        raise TypeError(
            f"{name}= takes {which}, or another object with the buffer protocol, not {type(value).__name__}{fix}"
        ) from None
    return view.tobytes()
