"""Declares LaneCore, the part of a Context's core that the code for lanes may use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from zerohop.core.memory.memory_core import MemoryCore

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Coroutine
    from typing import Any

    from zerohop.core.control.address import Address
    from zerohop.core.control.listener import Listeners
    from zerohop.core.lanes.nic_ports import NicPorts


class _LaneTls(Protocol):
    def __call__(self, tokens: list[bytes], *, dials: bool) -> Coroutine[Any, Any, bytes]: ...


class LaneCore(MemoryCore):
    """Adds to MemoryCore the parts that lanes need.

    Attributes:
        url: the address at which peers reach the Context.
        providers: names of the providers that the Context may use, the cheapest first.
        unusable: for each other provider that would be used if it worked on this machine, why it does not.
        listeners: the sockets at which peers come in.
        nic_ports: the NIC ports of the Context.
        open_lane: connects a socket for a tcp lane; takes the address, the peer's id and the token of its invitation.
        lane_tls: returns what such sockets need for TLS, empty without; takes the tokens of their invitations, and
            ``dials`` for the side that connects them.
    """

    url: str
    providers: tuple[str, ...]
    unusable: dict[str, str]
    listeners: Listeners
    nic_ports: NicPorts
    open_lane: Callable[[Address, str, bytes], Coroutine[Any, Any, socket.socket]]
    lane_tls: _LaneTls
