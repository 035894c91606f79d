"""Takes bytes as an argument, in any object that has them."""

from __future__ import annotations

from typing import Any


def plain_bytes(name: str, value: Any) -> bytes:
    """Return the bytes of the argument ``name``; raise TypeError if it has none, or is text."""
    if type(value) is bytes:
        return value
    try:
        # bytes(value) would turn a number into that many zeros.
        view = memoryview(value)
    except TypeError:
        fix = f". Fix: {name}=text.encode()" if isinstance(value, str) else ""
        raise TypeError(
            f"{name}= takes bytes, or another object with the buffer protocol, not {type(value).__name__}{fix}"
        ) from None
    return view.tobytes()
