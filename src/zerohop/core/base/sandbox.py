"""Names system calls that a sandbox refuses to this process."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from zerohop.errors import of_sandbox

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def naming(call: str, operation: str = "open") -> Iterator[None]:
    """Raise Unsupported, with the name of the call that the block makes, if the system refuses it as such."""
    try:
        yield
    except OSError as error:
        raise of_sandbox(error, call, operation=operation) or error from None
