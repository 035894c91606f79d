"""Ends a command in one line where its output goes nowhere: a full disk, a closed descriptor, a pipe nobody reads."""

from __future__ import annotations

import errno
import io
import os
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterator

_NOT_DONE: Final = 2
_NO_READER: Final = 1


class Output(io.TextIOWrapper):
    """Writes to standard output; where that fails, the command ends (SystemExit)."""

    def write(self, text: str, /) -> int:
        """Write a text."""
        with _ending():
            return super().write(text)

    def flush(self) -> None:
        """Write what is buffered."""
        with _ending():
            super().flush()


def watch_output() -> None:
    """Let the command end where it cannot write to standard output."""
    if sys.stderr is None:  # it is closed, and nobody is to be told anything
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - for as long as the process
    if sys.stdout is None:
        _end("it is closed")
    out = sys.stdout
    assert isinstance(out, io.TextIOWrapper)
    # An arrow or a Greek letter that the encoding lacks becomes a question mark. In the C locale Python asks for
    # "surrogateescape", which knows no such letter either.
    errors = "replace" if out.errors in ("strict", "surrogateescape") else out.errors
    sys.stdout = Output(out.detach(), out.encoding, errors, None, out.line_buffering, out.write_through)


@contextmanager
def _ending() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        # The interpreter writes the buffer's rest when it exits, and that must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if error.errno == errno.EPIPE:  # as of `zerohop info | head -1`
            sys.exit(_NO_READER)
        _end(error.strerror or str(error))


def _end(why: str) -> NoReturn:
    print(f"error: cannot write to standard output: {why}. Fix: send it elsewhere", file=sys.stderr)
    sys.exit(_NOT_DONE)
