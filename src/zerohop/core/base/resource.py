"""Holds the mix-ins of objects that own something of this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, SupportsIndex

from zerohop.core.base.frameworks import NO_LOOP_TO_CLOSE

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self


class Closeable:
    """Makes a context manager of a class that has ``close``."""

    __slots__ = ()

    def close(self) -> None:
        """Release everything; each class says how long it waits, and for what."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncCloseable(Closeable):
    """Makes an asynchronous context manager, too, of a class whose ``close`` may wait."""

    __slots__ = ()

    async def __aenter__(self) -> Self:
        import asyncio

        # Now, because the end of the block would find it out with the object left open.
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            raise RuntimeError(NO_LOOP_TO_CLOSE) from None
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        import asyncio

        # Closing may wait for peers, and must not hold up the loop, so it runs on another thread.
        await asyncio.to_thread(self.close)


class NotCopyable:
    """Refuses copy and pickle: a copy would be a second owner of the same thing."""

    __slots__ = ()

    # The text of the TypeError names the object, and says what to pass on instead.
    _copy_refusal: ClassVar[str]

    def __copy__(self) -> Any:
        raise TypeError(self._copy_refusal)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        raise TypeError(self._copy_refusal)

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        raise TypeError(self._copy_refusal)
