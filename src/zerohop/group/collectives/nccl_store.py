"""Declares LockstepStore, by which the ranks of a group tell NCCL of each other; no port is bound for it.

torch's ProcessGroupNCCL takes a store. In it one rank, or a few, set a key each, and the others get them; then all of
them wait for each other. So the values travel in rounds: each rank carries on until it has set a key, waits for one, or
has ended, and then all ranks exchange what they have set.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from torch.distributed import Store  # type: ignore[attr-defined,unused-ignore]  # torch's types forget that it is public

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class LockstepStore(Store):
    """Holds the keys of all ranks as far as they were exchanged. Thread-safe."""

    def __init__(self) -> None:
        super().__init__()
        self._changed = threading.Condition()
        self._values: dict[str, bytes] = {}
        # Holds the values that this rank has set since the last round.
        self._new: dict[str, bytes] = {}
        self._wanted: list[str] = []
        self._ended = False
        self._failed = False

    # Torch calls the methods below, on the thread that makes the communicator.

    def set(self, key: str, value: Any) -> None:
        """Set a key, for this rank at once."""
        with self._changed:
            self._values[key] = self._new[key] = value.encode() if isinstance(value, str) else bytes(value)
            self._changed.notify_all()

    def get(self, key: str) -> bytes:
        """Wait for a key, and return its value."""
        self.wait([key])
        return self._values[key]

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Wait for keys, and return their values."""
        self.wait(keys)
        return [self._values[key] for key in keys]

    def wait(self, keys: Sequence[str], timeout: object = None) -> None:  # noqa: ARG002 - the collective has a deadline
        """Wait until all keys are there.

        Raises:
            RuntimeError: the collective has failed meanwhile.
        """
        with self._changed:
            self._wanted = list(keys)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._failed or self._has(keys))
            self._wanted = []
            if not self._has(keys):
                raise RuntimeError("the collective that connects the ranks has failed")

    def check(self, keys: Sequence[str]) -> bool:
        """Tell whether all keys are there."""
        with self._changed:
            return self._has(keys)

    # What the collective calls.

    def until_round(self) -> None:
        """Wait until this rank has set a key, wants one that is not there, or has ended."""
        with self._changed:
            self._changed.wait_for(lambda: self._new or self._ended or self._failed or not self._has(self._wanted))

    def take_new(self) -> tuple[dict[str, bytes], bool]:
        """Return what this rank has set since the last round, and whether it has ended."""
        with self._changed:
            new, self._new = self._new, {}
            return new, self._ended

    def deliver(self, values: Mapping[str, bytes]) -> None:
        """Add what all ranks have set."""
        with self._changed:
            self._values.update(values)
            self._changed.notify_all()

    def end(self) -> None:
        """Note that this rank wants nothing any more."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def fail(self) -> None:
        """End all waits with an error."""
        with self._changed:
            self._failed = True
            self._changed.notify_all()

    def _has(self, keys: Sequence[str]) -> bool:
        return all(key in self._values for key in keys)
