"""Checks the types and ranges of arguments, in the same words everywhere."""

from __future__ import annotations

import operator
from typing import Any, Final

from zerohop.shown import shown

_MAX_SECONDS: Final = 10.0**9


def check_int(name: str, value: Any, least: int, most: int | None = None) -> int:
    """Return the value if it is an int within its limits, both included.

    Raises:
        TypeError: it is no int; True and False are none.
        ValueError: it is out of range.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, not {type(value).__name__}")
    if most is None and value < least:
        raise ValueError(f"{name} must be at least {least}, not {shown(value)}")
    if most is not None and not least <= value <= most:
        raise ValueError(f"{name} must be from {least} to {most}, not {shown(value)}")
    return value


def as_int(name: str, value: Any) -> int:
    """Return an integer of any kind, also one of NumPy's or a tensor of one, as an int.

    Raises:
        TypeError: it is no integer. The error says which argument this is, and Python's own does not.
    """
    try:
        return operator.index(value)
    except (TypeError, RuntimeError) as error:  # torch raises RuntimeError for a tensor without a value
        raise TypeError(f"{name} must be an int, not {type(value).__name__}") from (
            None if isinstance(error, TypeError) else error
        )


def check_flag(name: str, value: Any) -> bool:
    """Return the value if it is True or False, else raise TypeError: bool() would make True of the text "false"."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, not {shown(value)}")
    return value


def check_list(name: str, value: Any) -> Any:
    """Return the value if it has a length, as lists and arrays have, else raise TypeError."""
    if not hasattr(value, "__len__"):
        raise TypeError(f"{name} must be a list or an array, not {type(value).__name__}")
    return value


def check_seconds(name: str, value: Any) -> float:
    """Return a number from 0 to 10^9 as float; raise TypeError for no number, ValueError for one out of range."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number, not {type(value).__name__}")
    if not 0 <= value <= _MAX_SECONDS:
        raise ValueError(f"{name} must be from 0 to {_MAX_SECONDS:g}, not {shown(value)}")
    return float(value)


def check_text(name: str, value: Any) -> str | None:
    """Return the value if it is None or a text that can be sent, else raise TypeError or ValueError."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a string or None, not {type(value).__name__}")
    check_encodable(name, value)
    return value


def check_encodable(name: str, value: str) -> bytes:
    """Return a text as UTF-8; raise ValueError if that is impossible, as for what os.environ makes of other bytes."""
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        where = error.start
    # Outside of the clause above, and without the text, which may be a secret: UnicodeEncodeError holds it.
    raise ValueError(f"{name} must be text that UTF-8 can encode: character {where} of it (from 0) is no such text")
