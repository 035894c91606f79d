"""Tells whether the files of this library can still be read: after chroot(), what is not imported by then is gone."""

from __future__ import annotations

from pathlib import Path
from typing import Final

FIX: Final = (
    "before chroot(), open a Context, and with a secret connect to a peer; or have Python and its packages inside, at "
    "the same path"
)


def why_gone() -> str:
    """Return that the files cannot be reached any more; empty if they can."""
    try:
        Path(__file__).stat()
    except (FileNotFoundError, NotADirectoryError):
        return f"the files of Python's packages, such as {__file__}, cannot be reached any more, as after chroot()"
    except OSError:  # a sandbox refuses the look
        pass
    return ""
