"""Declares ImportedIov, memory of another process that files of this machine are read into and written from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zerohop.core.face import HOST, Closeable, NotCopyable, RemoteBuffer, start_of
from zerohop.errors import Closed

if TYPE_CHECKING:
    from zerohop._native import Reached
    from zerohop.core.face import Rights


class ImportedIov(Closeable, NotCopyable):
    """Stands for memory of another process, which this process reaches by itself. It is used as an Iov is.

    The owner may close the memory at any time: transfers that have begun end as usual, and later ones with
    AccessDenied. Slices are parts of it, in bytes.

    Attributes:
        handle: the owner's handle.
        device: ``"host"``, or the name of the device of this process that reaches the memory.
    """

    _copy_refusal = "an ImportedIov stays in its process, and is not copied; import it there, too"

    def __init__(self, handle: RemoteBuffer, reached: Reached, device: str, address: int) -> None:
        """Use ``Store.import_iov``."""
        self.handle = handle
        self.device = device
        self._reached = reached
        self._address = address
        self._closed = False

    @property
    def nbytes(self) -> int:
        """Return the length in bytes."""
        return self.handle.nbytes

    @property
    def is_device(self) -> bool:
        """Tell whether the memory is a device's."""
        return self.device != HOST

    @property
    def readonly(self) -> bool:
        """Tell whether files cannot be read into it."""
        return "w" not in self.handle.rights

    @property
    def address(self) -> int:
        """Return where it begins for this process, or for the device that reaches it."""
        return self._address

    @property
    def start(self) -> int:
        """Return its offset in what ``reached`` names."""
        return start_of(self.handle)

    @property
    def reached(self) -> Reached:
        """Return the memory that the owner shares as native code knows it.

        Raises:
            Closed: it was closed here.
        """
        if self._closed:
            raise Closed("the ImportedIov is closed", fix="import the memory again", operation="storage")
        return self._reached

    def export(self, rights: Rights = "rw") -> bytes:
        """Return the bytes of the owner's handle; raise ValueError if it does not have these rights."""
        if not set(rights) <= set(self.handle.rights):
            raise ValueError(f'the memory was imported with "{self.handle.rights}", and not with "{rights}"')
        return bytes(self.handle)

    def close(self) -> None:
        """Use the memory no more. It stays as it is."""
        self._closed = True

    def __getitem__(self, key: slice) -> ImportedIov:
        part = self.handle[key]
        return ImportedIov(part, self.reached, self.device, self._address + start_of(part) - self.start)

    def __len__(self) -> int:
        return self.nbytes

    def __repr__(self) -> str:
        state = ", closed" if self._closed else ""
        return f"<ImportedIov, {self.nbytes} bytes of {self.handle.device} at {self.handle.owner[:12]}{state}>"
