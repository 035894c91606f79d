"""Opens the ranks of a program in one process, each with a Context of its own."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pytest

import zerohop as zh
from support.options import Options

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


# The kinds of memory that messages are tried with.
PLACES = ["host", "sim:0", pytest.param("cuda:0", marks=pytest.mark.cuda)]


@contextmanager
def groups(folder: Path, size: int, provider: str = "shm") -> Iterator[list[zh.Group]]:
    with ExitStack() as opened:
        contexts = [opened.enter_context(Options(providers=(provider,), sim_devices=1).open()) for _ in range(size)]
        yield [opened.enter_context(zh.Group(rank, size, folder, ctx=ctx)) for rank, ctx in enumerate(contexts)]
