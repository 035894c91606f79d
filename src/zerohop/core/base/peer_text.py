"""Makes text that a peer has sent fit for a log, an error or a terminal: it stays in its line, and in its quotes."""

from __future__ import annotations

import re
from typing import Final

_LONGEST: Final = 500
_LONGEST_LINE: Final = 2000


def printable(text: str) -> str:
    """Escape, as ``repr`` does, all characters that are not printed: newlines, escapes, those that turn the line."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def one_line(text: str) -> str:
    """Return text of a peer that is printed on one line, and cut short if it is very long."""
    return printable(text if len(text) <= _LONGEST_LINE else f"{text[:_LONGEST_LINE]}…")


def quoted(text: str) -> str:
    """Return text of a peer in quotes, which it cannot end, and cut short if it is long."""
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST]}…"
    # A quote gets a backslash. Those of the text before it are doubled, because they would undo that.
    inside = re.sub(r"(\\*)('|\Z)", lambda found: 2 * found[1] + ("\\'" if found[2] else ""), printable(text))
    return f"'{inside}'"
