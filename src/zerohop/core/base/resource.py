"""What cannot leave its process, nor be there twice."""

from __future__ import annotations

from typing import Any, ClassVar, SupportsIndex


class StaysInProcess:
    """Can be neither copied nor pickled: the copy would be a second owner of what there is one of."""

    __slots__ = ()

    # The error's words: what it is, and what to pass on in its place.
    _stays: ClassVar[str]

    def __copy__(self) -> Any:
        raise TypeError(self._stays)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        raise TypeError(self._stays)

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        raise TypeError(self._stays)
