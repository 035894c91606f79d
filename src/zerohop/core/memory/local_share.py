"""Declares LocalShare, a range of memory that is shared with peers, and the Protocols by which Shares knows others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import weakref
    from collections.abc import Mapping
    from typing import TypeAlias

    from zerohop.core.base.peer_process import PeerProcess
    from zerohop.core.memory.registration import Registration, RetainedBuffer
    from zerohop.core.memory.remote_buffer import RemoteBuffer
    from zerohop.core.memory.rights import Rights

    # A peer that has imported a share, and the provider: a peer may import a share once for each provider.
    Importer: TypeAlias = tuple["Peer", str]


class Peer(Protocol):
    """Stands for a peer that imports shares."""

    peer: str

    def process(self) -> PeerProcess | None:
        """Return the peer's process, which may still write to memory that it has mapped; None if it has ended."""

    def ask_back(self, provider: str, share_ids: list[int]) -> None:
        """Ask the peer to give shares back. Any thread may call this."""


class Shared(Protocol):
    """Stands for the Memory that shares belong to; a Shares changes these attributes under its lock."""

    _closed: bool
    _closer: int | None
    _layout: bytes
    _left: RetainedBuffer | None
    _registration: Registration
    _shares: dict[bytes, LocalShare] | tuple[()]
    _whole: Mapping[tuple[Rights, bool], RemoteBuffer]

    def _check_open(self) -> None: ...

    def _close(self, unmap_s: float, *, by_user: bool = False, last: bool = False) -> None: ...

    def _share_loosely(self, rights: Rights) -> RemoteBuffer: ...

    def share(self, rights: Rights) -> RemoteBuffer:
        """Return a handle of the whole Memory."""


class LocalShare:
    """Describes a range of this Context's memory that is shared with peers."""

    __slots__ = (
        "handle",
        "importers",
        "keep",
        "lingering",
        "loose_memory",
        "memory",
        "offset",
        "registration",
        "revocable",
    )

    def __init__(self, registration: Registration, offset: int, handle: RemoteBuffer, *, revocable: bool) -> None:
        # The share keeps the Memory alive, because a peer cannot know that the last reference to it went away here.
        self.memory: Shared | None = None
        # A loose share does not keep it alive.
        self.loose_memory: weakref.ref[Shared] | None = None
        # The object that a closed Memory leaves until all peers have given the share back.
        self.keep: object = None
        # Ids and processes of lost peers that had mapped the share and may still write to it.
        self.lingering: list[tuple[str, PeerProcess]] = []
        self.registration = registration
        self.offset = offset
        self.handle = handle
        self.revocable = revocable
        self.importers: set[Importer] = set()

    def open_memory(self) -> Shared | None:
        """Return the Memory that the share belongs to, if it is open."""
        return self.memory if self.loose_memory is None else self.loose_memory()

    @property
    def share_id(self) -> int:
        """Return the engine's id of the share."""
        return self.handle._share.share_id
