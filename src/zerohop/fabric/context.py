"""Declares Context, which finds the RDMA devices of this machine, and DeviceContext, an opened port of one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from zerohop._native import FabricDevice, NativeError, fabric_devices, fabric_why_not_direct, providers
from zerohop.config.checks import check_text
from zerohop.config.nic_filter import NicFilter
from zerohop.config.providers import VERBS
from zerohop.core.memory import sources
from zerohop.core.memory.access import lend
from zerohop.core.memory.memory import Memory, View
from zerohop.core.memory.rights import RIGHTS
from zerohop.core.runtime.devices import DEVICE_BY_ADDRESS, HOST
from zerohop.errors import Closed, LimitReached, RegistrationFailed, Unsupported
from zerohop.fabric.completions import translate
from zerohop.fabric.config import EndpointConfig, check, native_options
from zerohop.fabric.devices import Device, OpenedDevice, Port, from_facts
from zerohop.fabric.endpoint import Endpoint
from zerohop.fabric.memory import REMOTE, WRITES, Access, MemoryRegion
from zerohop.fabric.resource import Resource
from zerohop.machine import choose_gid, choose_nics, has_gid, parse_nic_filter, process_numa_node, read_rdma_devices
from zerohop.shown import shown

if TYPE_CHECKING:
    from zerohop._native import Engine
    from zerohop.machine import RdmaPort

DIRECT: Final = "direct"
_CANNOT_OPEN: Final = "apt-get install ibverbs-providers, and see to the rights of /dev/infiniband"
# Rights of a zerohop Memory that each kind of remote access needs.
_NEEDS: Final = {Access.REMOTE_READ: RIGHTS["r"], Access.REMOTE_WRITE: RIGHTS["w"], Access.REMOTE_ATOMIC: RIGHTS["rw"]}


class ActivePort(NamedTuple):
    """Names a port over which traffic can flow, and its device."""

    device: Device
    port: Port

    @property
    def name(self) -> str:
        """Return device and port in the form ``"mlx5_0:1"``."""
        return f"{self.device.name}:{self.port.number}"


class Context(Resource):
    """Finds and opens the RDMA devices of this machine, through one backend. Independent of ``zerohop.Context``.

    Args:
        backend: ``"verbs"`` posts requests through libibverbs. ``"direct"`` is to write the queues of mlx5 devices
            without it, as a GPU kernel does; this version raises Unsupported, and says what else is missing.

    Raises:
        ValueError: there is no such backend.
        Unsupported: the backend cannot be used here; ``reason`` says why, ``fix`` says what helps.
    """

    __slots__ = ("backend",)

    _kind = "fabric Context"
    _copy_refusal = "a fabric Context stays in its process, and is not copied; make another one"

    def __init__(self, backend: str = VERBS) -> None:
        if backend not in (VERBS, DIRECT):
            raise ValueError(f'a backend is "{VERBS}" or "{DIRECT}", not {shown(backend)}')
        if backend == DIRECT:
            raise _direct_unavailable()
        _devices()  # raises if the backend cannot be used
        self.backend = backend
        super().__init__(None)

    def devices(self) -> tuple[Device, ...]:
        """Return all RDMA devices, in their present state; none is no error, and ``choose_port`` says why."""
        self._check_open()
        return _devices()

    def active_ports(self) -> tuple[ActivePort, ...]:
        """Return the ports over which traffic can flow now."""
        return tuple(ActivePort(device, port) for device in self.devices() for port in device.ports if port.active)

    def choose_port(self, nics: str | None = None, *, near: str | None = None) -> ActivePort:
        """Return the best port that is active and has a GID, by the rule of docs/nics.md.

        Args:
            nics: the ports to choose from, such as ``"mlx5_0:1"`` or ``"^mlx5_9"``; None: as ``ZEROHOP_NICS`` says.
            near: PCI address of the GPU whose memory is to be moved.

        Raises:
            Unsupported: there is no such port; ``reason`` says why for each port, ``fix`` says what helps.
            ValueError, TypeError: ``nics`` or ``near`` cannot be understood.
        """
        check_text("nics", nics)
        check_text("near", near)
        devices = {device.name: device for device in self.devices()}
        text = os.environ.get("ZEROHOP_NICS") if nics is None else nics
        wanted = parse_nic_filter(text) if text else NicFilter()
        found = choose_nics(
            read_rdma_devices(), near=near, numa=process_numa_node(), include=wanted.include, exclude=wanted.exclude
        )
        refused, fix = found.why, found.fix if found.rejected else _fix()
        for choice in found.chosen:
            device = devices.get(choice.device)
            # sysfs also lists devices that this process may not open, or whose user-space driver is not installed.
            if device is not None and not device.why_not:
                return ActivePort(device, device.ports[choice.port - 1])
            refused = device.why_not if device is not None else f"libibverbs has no driver for {choice.device}"
            fix = _CANNOT_OPEN
        raise Unsupported(refused, fix=fix, provider=VERBS)

    def open(self, device: ActivePort | Device | str, port: int = 1) -> DeviceContext:
        """Open a port of a device, with a protection domain.

        Args:
            device: an active port; or a device or its name, with ``port``.
            port: number of the port; ignored if ``device`` is an active port.

        Raises:
            TypeError: ``device`` or ``port`` has the wrong type.
            Unsupported: there is no such device or port, or it cannot be opened.
            DeviceFailed: the device does not answer.
            Closed: the Context is closed.
        """
        self._check_open()
        if isinstance(device, ActivePort):
            port, device = device.port.number, device.device
        if not isinstance(device, (Device, str)):
            raise TypeError(f"a device is given as a Device, an ActivePort or by its name, not {type(device).__name__}")
        if isinstance(port, bool) or not isinstance(port, int):
            raise TypeError(f"port must be an int, not {type(port).__name__}")
        found = self._find(device) if isinstance(device, str) else device
        if found.why_not:
            raise Unsupported(found.why_not, fix=_CANNOT_OPEN, provider=VERBS)
        if not 1 <= port <= len(found.ports):
            raise Unsupported(f"{found.name} has no port {port}; it has {len(found.ports)}", provider=VERBS)
        try:
            native = FabricDevice.open(found.name, port)
        except NativeError as error:
            raise translate(error, "open") from None
        return DeviceContext(self, native, found, port)

    def _find(self, name: str) -> Device:
        devices = _devices()
        found = next((device for device in devices if device.name == name), None)
        if found is None:
            names = ", ".join(device.name for device in devices) or "none at all"
            raise Unsupported(f"there is no RDMA device named {shown(name)}; there is {names}", provider=VERBS)
        return found

    def __repr__(self) -> str:
        return f"<fabric Context over {self.backend}{', closed' if self.closed else ''}>"


class DeviceContext(OpenedDevice):
    """Opens a port of an RDMA device, with a protection domain, which all its endpoints and memory regions share.

    Attributes:
        device: the device, in the state that it had when it was opened.
        port: number of the port.
    """

    __slots__ = ("_context", "_described")

    _kind = "DeviceContext"
    _copy_refusal = "a DeviceContext stays in its process, and is not copied; open the device again"

    def __init__(self, context: Context, native: FabricDevice, device: Device, port: int) -> None:
        self._context = context
        self._described: RdmaPort | None = None
        super().__init__(context, native, device, port)

    def create_endpoint(self, config: EndpointConfig | None = None) -> Endpoint:
        """Make a queue pair with its own completion queue and receive queue; it is not connected yet.

        Raises:
            TypeError: ``config`` is no EndpointConfig.
            ValueError: it asks for more than the device can do, for another port, or for a GID that the port lacks.
            Unsupported: the port has no usable GID, or the device refused; ``reason`` says why, ``fix`` what helps.
            RegistrationFailed: the device, or the limit of locked memory, has no room for the endpoint.
            DeviceFailed: the device does not answer.
            Closed: the DeviceContext is closed.
        """
        config = EndpointConfig() if config is None else config
        if not isinstance(config, EndpointConfig):
            raise TypeError(f"an endpoint is made from an EndpointConfig, not from {type(config).__name__}")
        self._check_open()
        check(config, self.device.limits, self.port)
        port = self.device.ports[self.port - 1]
        try:
            native = self._native.endpoint(
                messages=config.max_messages,
                receives=config.receives,
                completions=config.completions,
                sge=config.max_sge,
                inline_bytes=config.max_inline,
                options=native_options(config, self._gid_index(config)),
            )
            return Endpoint(self, native, config, port.max_message)
        except NativeError as error:
            raise translate(error, "create_endpoint") from None

    def register(self, x: Any, access: Access | None = None) -> MemoryRegion:
        """Register memory with the device, so that requests may name it; it is not copied.

        Registers exactly this range, and keeps the memory alive until the region is closed.

        Args:
            x: host memory: a numpy array, a torch tensor, anything with DLPack or the buffer protocol, or a raw
                ``(pointer, nbytes, "host")``, which you keep alive. For memory of an accelerator, simulated ones
                included, a Memory or View of the ``zerohop.Context`` that has registered it.
            access: permitted uses. None: LOCAL_WRITE if the memory is writable, and nothing for peers.

        Raises:
            TypeError: ``x`` is no memory, or ``access`` is no Access.
            ValueError: the memory is not contiguous, or empty; write access to read-only memory; more access for peers
                than the rights of a Memory allow; REMOTE_WRITE or REMOTE_ATOMIC without LOCAL_WRITE.
            Unsupported: REMOTE_ATOMIC without atomics in the device; an accelerator's memory given as something else.
            RegistrationFailed: the system, or the device, refused; the reason names each way that was tried.
            Closed: the DeviceContext, or the Memory, is closed.
        """
        self._check_open()
        if access is not None and not isinstance(access, Access):
            raise TypeError(f"access must be an Access, such as Access.LOCAL_WRITE, not {type(access).__name__}")
        engine: Engine | None = None
        keep: object
        if isinstance(x, (Memory, View)):
            keep, possible, owner = lend(x)
            address, nbytes, device, readonly = x.address, x.nbytes, x.device, x.readonly
            engine = owner if device != HOST else None
        else:
            source = sources.read(x, as_bytes=True)
            address, nbytes, device, readonly = source.address, source.nbytes, source.device, source.readonly
            possible, keep = RIGHTS["rw"], source.keep
            if device != HOST:
                where = "an accelerator" if device == DEVICE_BY_ADDRESS else device
                raise Unsupported(
                    f"memory of {where} is registered through the Context that has it",
                    fix="register the Memory that context.alloc() or context.register() gave",
                )
        if access is None:
            access = Access.NONE if readonly else Access.LOCAL_WRITE
        self._check_access(access, nbytes, possible, readonly=readonly)
        try:
            native = self._native.register(engine, address, nbytes, access.value)
        except NativeError as error:
            failed = translate(error, "register")
            if isinstance(failed, (Closed, LimitReached)):
                raise failed from None
            fix = failed.fix or "for an accelerator's memory: nvidia_peermem, or a driver that exports dma-buf"
            raise RegistrationFailed(failed.reason, fix=fix, provider=VERBS, operation="register") from None
        return MemoryRegion(self, native, address, nbytes, access, device, keep)

    def _check_access(self, access: Access, nbytes: int, possible: int, *, readonly: bool) -> None:
        if nbytes == 0:
            raise ValueError("there are no bytes to register")
        if readonly and access & WRITES:
            raise ValueError(f"the memory is read-only, and cannot be registered with {access & WRITES}")
        for flag, rights in _NEEDS.items():
            if flag in access and rights & ~possible:
                raise ValueError(f"{flag} is more than the rights of the Memory allow")
        if access & REMOTE & WRITES and Access.LOCAL_WRITE not in access:
            raise ValueError(f"{access & REMOTE & WRITES} needs LOCAL_WRITE, too")
        if Access.REMOTE_ATOMIC in access:
            self._check_atomics()

    def _gid_index(self, config: EndpointConfig) -> int:
        """Return the index of the GID that an endpoint is to use; -1: it needs none."""
        # GID tables are long and change rarely: read them again only if the remembered choice is no longer valid.
        if self._described is not None:
            try:
                choice = choose_gid(self._described, config.gid_index)
            except ValueError:
                choice = None
            if choice is not None and choice.gid is not None and has_gid(self.device.name, self.port, choice.gid):
                return choice.gid.index
        described = (device for device in read_rdma_devices() if device.name == self.device.name)
        port = next((port for device in described for port in device.ports if port.number == self.port), None)
        if port is None:
            if config.gid_index is None:
                raise Unsupported(f"sysfs shows no GID table of {self.name}", fix="pass gid_index=", provider=VERBS)
            return config.gid_index
        self._described = port
        choice = choose_gid(port, config.gid_index)
        if choice.gid is not None:
            return choice.gid.index
        if port.link_layer == "InfiniBand":
            # Within one subnet the LID suffices.
            return -1
        raise Unsupported(f"{self.name}: {choice.why}", fix=choice.fix, provider=VERBS)

    def __repr__(self) -> str:
        return f"<DeviceContext of {self.name}{', closed' if self.closed else ''}>"


def _devices() -> tuple[Device, ...]:
    try:
        return tuple(map(from_facts, fabric_devices()))
    except NativeError as error:
        failed = translate(error, "open")
        if isinstance(failed, Unsupported):
            failed = Unsupported(failed.reason, fix=_fix(), provider=VERBS, operation="open")
        raise failed from None


def _fix() -> str:
    """Return what would make verbs usable, as its provider says."""
    return next((fix for name, _, _, fix in providers() if name == VERBS), "")


def _direct_unavailable() -> Unsupported:
    fix = f'use backend="{VERBS}"'
    try:
        why = fabric_why_not_direct()
    except NativeError as error:
        # The verbs backend is not usable either.
        why, fix = translate(error, "open").reason, _fix()
    return Unsupported(why, fix=fix, operation="open")
