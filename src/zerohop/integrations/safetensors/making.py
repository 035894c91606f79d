"""Makes the tensors of a load, file by file: the first is read while the others are made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zerohop.integrations.safetensors.plan import PAGE, Wanted, goes_straight
from zerohop.shown import shown

if TYPE_CHECKING:
    from zerohop.integrations.safetensors.frameworks import Framework
    from zerohop.integrations.safetensors.layout import TensorEntry


class Tensors:
    """Holds the tensors of one load, by number.

    Attributes:
        framework: the library that makes them.
        made: the tensors; None for those that are not made yet.
        flat: for each of these, its bytes as one-dimensional array.
    """

    def __init__(self, framework: Framework, chosen: list[tuple[TensorEntry, Wanted]], slot: int) -> None:
        """Make none yet.

        Args:
            framework: the library that makes them.
            chosen: what each tensor is in its file, and the part of it that is loaded.
            slot: bytes of a slot, as in ``plan``.
        """
        self.framework = framework
        self.made: list[Any] = [None] * len(chosen)
        self.flat: list[Any] = [None] * len(chosen)
        self._chosen = chosen
        self._slot = slot
        self._of_file: dict[int, list[int]] = {}
        for number, (_, wanted) in enumerate(chosen):
            self._of_file.setdefault(wanted.file, []).append(number)

    def make(self, file: int) -> list[int]:
        """Make the tensors of a file, and return their numbers; none, if they were made before."""
        numbers = self._of_file.pop(file, [])
        self.framework.expect([self._chosen[number][1].nbytes for number in numbers])
        for number in numbers:
            entry, wanted = self._chosen[number]
            tensor = self._empty(entry, wanted)
            self.made[number], self.flat[number] = tensor, self.framework.flat(tensor)
        if numbers:
            self.framework.begin()
        return numbers

    def make_rest(self) -> None:
        """Make those of files that have no bytes for them."""
        for file in list(self._of_file):
            self.make(file)

    def _empty(self, entry: TensorEntry, wanted: Wanted) -> Any:
        """Make one; raise the error of a lack of memory with its name and bytes."""
        try:
            return self.framework.empty(entry.dtype, wanted.part.shape, self._place(wanted))
        except (MemoryError, RuntimeError) as error:
            said = (
                f"no memory is left on {self.framework.device} for tensor {shown(entry.name)}, "
                f"which takes {wanted.nbytes} bytes: load fewer with names=, or parts of them with slices="
            )
            told = self.framework.out_of_memory(error, said)
            if told is None:
                raise
            raise told from error

    def _place(self, wanted: Wanted) -> int | None:
        """Return where in a page a tensor is to begin so that whole pages of its file are whole pages of memory."""
        if wanted.part.starts.size != 1 or not goes_straight(wanted.part, self._slot):
            return None
        return (wanted.offset + int(wanted.part.starts[0])) % PAGE
