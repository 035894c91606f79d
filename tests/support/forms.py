"""The ways in which bytes reach a peer on one host, each with its own way of noticing that the peer is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from support.world import PROVIDERS

if TYPE_CHECKING:
    from support.buffers import Kind


class Form(NamedTuple):
    """`waits` says whether an operation needs the target's process to run."""

    provider: str
    kind: Kind
    waits: bool


_ALL = {
    "shm-mapped": Form("shm", "alloc", waits=False),
    "shm-ring": Form("shm", "numpy", waits=True),
    "shm-staged": Form("shm", "sim", waits=True),
    "p2p": Form("p2p", "sim", waits=False),
    "tcp": Form("tcp", "numpy", waits=True),
    "tcp-staged": Form("tcp", "sim", waits=True),
    "verbs": Form("verbs", "numpy", waits=False),
}
FORMS: dict[str, Form] = {name: form for name, form in _ALL.items() if form.provider in PROVIDERS}
# Those in which the target itself places every byte.
WAITING = [name for name, form in FORMS.items() if form.waits]
