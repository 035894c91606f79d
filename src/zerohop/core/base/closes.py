"""What `with` closes at its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self


class ClosesItself:
    """A context manager whose end is its own `close`, whatever has happened."""

    __slots__ = ()

    def close(self) -> None:
        """Each class has its own, which says what it waits for."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
