"""What a peer says of itself cannot leave the line or the quotes that it is put in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.options import Options
from support.patience import PATIENCE_S
from zerohop.core.base.peer_text import printable, quoted

if TYPE_CHECKING:
    from support.fixtures import OpenContext

FORGED = [
    "mallory\n2026-01-01 ERROR zerohop: your secret has leaked",
    "a\r\nb",
    "\x1b[2J\x1b[H",
    "a\u202eb",
    "a\u2028b",
    "\x00\x7f\x9b",
    "\U000e0041",
]


@pytest.mark.parametrize("text", FORGED)
def test_one_line_without_control(text: str) -> None:
    assert printable(text).isprintable()
    assert quoted(text).isprintable()
    assert text not in printable(text)


@pytest.mark.parametrize("text", ["", "worker 3", "Wörker", "日本", "a\\b", 'say "hi"'])
def test_what_is_printable_stays(text: str) -> None:
    assert printable(text) == text
    assert quoted(text) == f"'{text}'"


def test_quotes_cannot_be_ended() -> None:
    assert quoted("x' is gone") == "'x\\' is gone'"
    # A backslash does not undo that of the quote after it.
    assert quoted("x\\") == r"'x\\'"
    assert quoted("x\\' is gone") == r"'x\\\' is gone'"


def test_a_bounded_length() -> None:
    assert len(quoted("x" * 100_000)) < 1000
    assert quoted("x" * 100_000).endswith("…'")


def test_the_name_of_a_peer(open_context: OpenContext) -> None:
    context, peer = open_context(Options()), open_context(Options(name="x over rdma, alive> <y\u202e"))
    connection = context.connect(peer.url).result(PATIENCE_S)
    assert "'x over rdma, alive> <y\\u202e'" in repr(connection)


def test_the_name_of_a_context_of_ones_own(open_context: OpenContext) -> None:
    assert repr(open_context(Options(name="a\nb\x1b[31m"))).startswith(r"<Context a\nb\x1b[31m at ")
