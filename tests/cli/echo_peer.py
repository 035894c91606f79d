"""A second process for the tests of `zerohop.cli.peer`."""

from __future__ import annotations

import errno
import os
import time
from typing import Any

from zerohop.cli.peer import serve


def echo(**arguments: Any) -> dict[str, Any]:
    print("this must not get between the answers")
    return arguments


def fail() -> None:
    raise ValueError("as asked")


def fill_memory() -> None:
    raise MemoryError


def take_descriptors() -> None:
    raise OSError(errno.EMFILE, "Too many open files")


def leave() -> None:
    os.write(2, b"goodbye\n")
    os._exit(3)


def nap(seconds: float) -> None:
    time.sleep(seconds)


if __name__ == "__main__":
    serve(
        {
            "echo": echo,
            "fail": fail,
            "fill_memory": fill_memory,
            "take_descriptors": take_descriptors,
            "leave": leave,
            "nap": nap,
        }
    )
