"""Declares EndpointHandle: the plain value that a peer needs to connect to an endpoint."""

from __future__ import annotations

import ipaddress
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from zerohop.config.checks import check_int
from zerohop.core.base.plain_bytes import plain_bytes
from zerohop.errors import ProtocolError
from zerohop.shown import shown

if TYPE_CHECKING:
    from collections.abc import Mapping

_VERSION: Final = 1
# Codes of verbs (ibv_port_attr.link_layer, enum ibv_mtu).
LINK_LAYERS: Final[Mapping[int, Literal["InfiniBand", "Ethernet"]]] = {1: "InfiniBand", 2: "Ethernet"}
LINK_CODES: Final = {name: code for code, name in LINK_LAYERS.items()}
MTUS: Final = {1: 256, 2: 512, 3: 1024, 4: 2048, 5: 4096}
MTU_CODES: Final = {size: code for code, size in MTUS.items()}
_GID_BYTES: Final = 16
_24_BITS: Final = 0xFF_FFFF


class ValueFormat:
    """Packs the fields of a value into bytes, behind four letters and a version, and checks and unpacks such bytes."""

    def __init__(self, kind: str, letters: bytes, fields: str, source: str) -> None:
        """Take what errors call the value and what gave its bytes, the letters, and the fields as for `struct`."""
        self._kind = kind
        self._letters = letters
        self._layout = struct.Struct(f"!4sB{fields}")
        self._source = source

    def pack(self, *fields: Any) -> bytes:
        """Return the bytes of a value."""
        return self._layout.pack(self._letters, _VERSION, *fields)

    def unpack(self, data: bytes | bytearray | memoryview) -> tuple[Any, ...]:
        """Return the fields.

        Raises:
            TypeError: neither bytes nor another object with the buffer protocol.
            ProtocolError: the bytes are of no such value, or come from another version of zerohop.
        """
        raw = plain_bytes("data", data, self._source)
        if raw[:4] != self._letters or len(raw) < 5:
            raise self.malformed("these bytes do not begin like one")
        if raw[4] != _VERSION:
            raise ProtocolError(
                f"the {self._kind} is of version {raw[4]}, this side reads version {_VERSION}",
                fix="install the same version of zerohop on both sides",
            )
        if len(raw) != self._layout.size:
            raise self.malformed(f"it has {self._layout.size} bytes, not {len(raw)}")
        return self._layout.unpack(raw)[2:]

    def malformed(self, why: str) -> ProtocolError:
        """Return the error for bytes that are of no such value."""
        return ProtocolError(f"malformed {self._kind}: {why}", fix=f"pass on exactly what {self._source} gave")


# Link layer, MTU, 1 if there is a GID, queue pair number, PSN, LID, port, read credit, GID.
_FORMAT: Final = ValueFormat("EndpointHandle", b"ZHEP", "BBBIIHBB16s", "bytes(handle)")


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointHandle:
    """Holds the address of an endpoint, for the ``connect`` of the other endpoint.

    A plain value: hashable, comparable, picklable, and 36 bytes as ``bytes(handle)``. It is no secret: a queue pair
    answers only the queue pair that it is connected to. ``Endpoint.handle`` gives it; you can also make one for a queue
    pair of another library.

    Attributes:
        qpn: queue pair number, 24 bits.
        psn: packet sequence number of the first packet that the queue pair will send, 24 bits.
        port: number of the device's port.
        lid: local id of the port; 0 on Ethernet.
        gid: 16 bytes; empty if there is none, on InfiniBand only.
        mtu: bytes of payload in a packet that the port takes: 256, 512, 1024, 2048 or 4096.
        link_layer: ``"InfiniBand"`` or ``"Ethernet"``.
        read_credit: RDMA reads and atomics that the queue pair answers at once.

    Raises:
        TypeError, ValueError: a value has the wrong type, or no queue pair can have it.
    """

    qpn: int
    psn: int
    port: int = 1
    lid: int = 0
    gid: bytes = b""
    mtu: int = 1024
    link_layer: Literal["InfiniBand", "Ethernet"] = "Ethernet"
    read_credit: int = 1

    def __post_init__(self) -> None:
        for name, least, most in (
            # Queue pairs 0 and 1 belong to the subnet's management.
            ("qpn", 2, _24_BITS),
            ("psn", 0, _24_BITS),
            ("port", 1, 255),
            ("lid", 0, 0xFFFF),
            ("read_credit", 0, 255),
        ):
            check_int(name, getattr(self, name), least, most)
        if not isinstance(self.gid, bytes):
            raise TypeError(f"gid must be bytes, not {type(self.gid).__name__}")
        if len(self.gid) not in (0, _GID_BYTES) or (self.gid and not any(self.gid)):
            raise ValueError("gid must be 16 bytes, not all of them 0, or none")
        # A tuple can be asked for what has no hash.
        if self.mtu not in tuple(MTU_CODES):
            raise ValueError(f"mtu must be one of {', '.join(map(str, MTU_CODES))}, not {shown(self.mtu)}")
        if self.link_layer not in tuple(LINK_CODES):
            raise ValueError(f"link_layer must be one of {', '.join(LINK_CODES)}, not {shown(self.link_layer)}")
        if not self.gid and (self.link_layer == "Ethernet" or not self.lid):
            raise ValueError("without a GID a port can be reached on InfiniBand only, and there by its LID")

    @property
    def address(self) -> str:
        """Return the GID in words: ``"10.0.0.1"`` if it maps IPv4, else IPv6 in its short form; empty without a GID."""
        if not self.gid:
            return ""
        address = ipaddress.IPv6Address(self.gid)
        return str(address.ipv4_mapped or address)

    def __bytes__(self) -> bytes:
        return _FORMAT.pack(
            LINK_CODES[self.link_layer],
            MTU_CODES[self.mtu],
            1 if self.gid else 0,
            self.qpn,
            self.psn,
            self.lid,
            self.port,
            self.read_credit,
            self.gid or bytes(_GID_BYTES),
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # Through the bytes, so that unpickling makes the checks of from_bytes.
        return EndpointHandle.from_bytes, (bytes(self),)

    @staticmethod
    def from_bytes(data: bytes | bytearray | memoryview) -> EndpointHandle:
        """Return the handle whose ``bytes()`` these are. It connects to nothing.

        Raises:
            TypeError: neither bytes nor another object with the buffer protocol.
            ProtocolError: the bytes are no handle, or come from another version of zerohop.
        """
        link, mtu, has_gid, qpn, psn, lid, port, credit, gid = _FORMAT.unpack(data)
        if link not in LINK_LAYERS or mtu not in MTUS or has_gid not in (0, 1) or (not has_gid and any(gid)):
            raise _FORMAT.malformed("one of its codes means nothing")
        try:
            return EndpointHandle(
                qpn=qpn,
                psn=psn,
                port=port,
                lid=lid,
                gid=gid if has_gid else b"",
                mtu=MTUS[mtu],
                link_layer=LINK_LAYERS[link],
                read_credit=credit,
            )
        except ValueError as error:
            raise _FORMAT.malformed(str(error)) from None
