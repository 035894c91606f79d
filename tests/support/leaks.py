"""What a process holds, so that a test can prove that it gave everything back."""

from __future__ import annotations

import gc
import os
import re
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from support.patience import patience

if TYPE_CHECKING:
    from collections.abc import Callable

# Environment variable that holds a folder of this test session's own.
SESSION = "TESTS_SESSION_DIRECTORY"
# Closing is bounded, not immediate: a peer unmaps when it is asked to, and a thread needs a moment to end.
SETTLE_S = patience(5.0)


class Holdings(NamedTuple):
    """Counts by name. Equal Holdings before and after mean that nothing leaked."""

    descriptors: Counter[str]
    mappings: Counter[str]
    threads: Counter[str]
    shared_memory: Counter[str]
    runtime_files: Counter[str]

    def more_than(self, before: Holdings) -> str:
        """What is held beyond `before`, in words; empty when nothing is."""
        found = []
        for name, now, then in zip(self._fields, self, before, strict=True):
            extra = now - then
            if extra:
                found.append(f"{name}: " + ", ".join(f"{count} × {what}" for what, count in sorted(extra.items())))
        return "; ".join(found)


# Before and after every test, at both sides: without paths as objects, which cost several times as much.
def holdings() -> Holdings:
    """What this process holds now."""
    return Holdings(_descriptors(), _mappings(), _threads(), _shared_memory(), _runtime_files())


def _descriptors() -> Counter[str]:
    found: Counter[str] = Counter()
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:  # the descriptor that listdir itself used
            continue
        # The inode of a socket, a pipe or a nameless file says nothing across a reopening.
        found[re.sub(r"(\[|#)\d+(?=\]$| \(deleted\)$)", r"\1", target)] += 1
    return found


def _mappings() -> Counter[str]:
    found: Counter[str] = Counter()
    for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
        if ("zerohop" in line or "/dev/shm/" in line) and ".so" not in line:
            found[line.split(maxsplit=5)[5]] += 1
    return found


def _threads() -> Counter[str]:
    found: Counter[str] = Counter()
    for task in _tasks():
        try:
            with open(f"/proc/self/task/{task}/comm", "rb") as file:
                found[file.read().decode().strip()] += 1
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def _tasks() -> list[str]:
    """Numbers of the threads. A thread that ends while the kernel lists them makes it leave out one that lives on."""
    tasks, before = os.listdir("/proc/self/task"), None
    while tasks != before:
        tasks, before = os.listdir("/proc/self/task"), tasks
    return tasks


def shared_memory_prefix() -> str:
    """With which the names in /dev/shm begin that this test session makes, its peer processes included."""
    return f"{Path(os.environ[SESSION]).name}-"


def _shared_memory() -> Counter[str]:
    """Of /dev/shm, which the whole machine shares, only what zerohop and this session may have made."""
    # There is a session once a test wants its folder.
    ours = ("zerohop", "sem.zerohop", *([shared_memory_prefix()] if SESSION in os.environ else []))
    return Counter(name for name in os.listdir("/dev/shm") if name.startswith(ours))


def _runtime_files() -> Counter[str]:
    """What lies where this test session's Contexts put their sockets."""
    if SESSION not in os.environ:
        return Counter()
    root = os.environ["XDG_RUNTIME_DIR"]
    return Counter(
        f"{folder.removeprefix(root)}/{name}" for folder, folders, files in os.walk(root) for name in (*folders, *files)
    )


def expect_given_back(before: Holdings, now: Callable[[], Holdings], who: str) -> None:
    """Raise AssertionError when `now()` does not come back to `before` within SETTLE_S."""
    extra = now().more_than(before)
    if not extra:
        return
    deadline = time.monotonic() + SETTLE_S
    while True:
        # Only now: a collection costs more than most tests. Again and again, because what a thread of an ended Context
        # held becomes garbage when that thread ends.
        gc.collect()
        extra = now().more_than(before)
        if not extra:
            return
        if time.monotonic() > deadline:
            raise AssertionError(f"{who} still holds {extra}")
        time.sleep(0.005)  # neither descriptors nor mappings have an event
