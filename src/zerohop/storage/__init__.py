"""Moves bytes between files and registered memory, on the host or on a GPU: ``open_store``, and what it gives."""

from zerohop.storage.completion import Completion, RingFlags
from zerohop.storage.entry import open_store
from zerohop.storage.file import File
from zerohop.storage.imported_iov import ImportedIov
from zerohop.storage.iov import Iov
from zerohop.storage.ring import Ring
from zerohop.storage.serving.server import Server, ServerStatistics
from zerohop.storage.store import Store

__all__ = [
    "Completion",
    "File",
    "ImportedIov",
    "Iov",
    "Ring",
    "RingFlags",
    "Server",
    "ServerStatistics",
    "Store",
    "open_store",
]
