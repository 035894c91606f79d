"""Gives up what root may do with other users' files, for as long as a test needs that."""

from __future__ import annotations

import contextlib
import ctypes
import os
from typing import TYPE_CHECKING, Final

from support.nobody import NOBODY

if TYPE_CHECKING:
    from collections.abc import Iterator

_PR_SET_DUMPABLE: Final = 4


@contextlib.contextmanager
def plain_user() -> Iterator[None]:
    """Have all threads of this process act as a user to whom no file belongs. Nothing changes for users other than
    root. No Context may be opened meanwhile: its sockets would lie in a folder of root's."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(int(NOBODY))
    try:
        _show_own_files()
        yield
    finally:
        os.seteuid(0)
        _show_own_files()


def _show_own_files() -> None:
    """Have /proc/self belong to the user of now, which the kernel takes away from a process that changes its user."""
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)
