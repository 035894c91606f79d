"""The ways in which bytes reach a peer on one host, each with its own way of noticing that the peer is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from support.buffers import Kind


class Form(NamedTuple):
    """`waits` says whether an operation needs the target's process to run."""

    provider: str
    kind: Kind
    waits: bool


FORMS: dict[str, Form] = {
    "shm-mapped": Form("shm", "alloc", waits=False),
    "shm-ring": Form("shm", "numpy", waits=True),
    "shm-staged": Form("shm", "sim", waits=True),
    "tcp": Form("tcp", "numpy", waits=True),
    "tcp-staged": Form("tcp", "sim", waits=True),
}
# Those in which the target itself places every byte.
WAITING = [name for name, form in FORMS.items() if form.waits]
