"""Finds a user's stream: the driver's number of it, and its device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from zerohop._native import NativeError
from zerohop.config.checks import check_int
from zerohop.core.runtime.devices import GPUS, HOST
from zerohop.errors import from_native

if TYPE_CHECKING:
    from zerohop.core.runtime.runtime import Runtime

# A torch, CuPy or cuda-core stream, anything with ``__cuda_stream__``, or the number that the driver has for one.
Stream: TypeAlias = Any

# Attributes in which older versions of torch, CuPy and cuda-core keep the driver's number.
_NUMBERS: Final = ("cuda_stream", "ptr", "handle")
# Attributes in which these libraries keep the number of the device.
_DEVICES: Final = ("device_index", "device_id")


class Place(NamedTuple):
    """Names a stream for the engine: index of its device in this Context, and the driver's number."""

    device: int
    number: int


def place_of(core: Runtime, stream: Stream, near: str = HOST) -> Place:
    """Find a stream's device and number.

    A stream that does not know its device is taken to be on ``near``, the device of the memory that goes with it.

    Raises:
        TypeError: not a stream.
        ValueError: this Context has no GPU, or not the one that the stream is on; a number that no stream has.
        Unsupported: the stream is being captured into a graph.
    """
    number = _number(stream)
    place = Place(_device(core, stream, near), number)
    try:
        core.engine.check_stream(place.device, check_int("stream", place.number, 0, (1 << 64) - 1))
    except NativeError as error:
        core.check_open()
        raise from_native(*error.args, operation="stream") from None
    return place


def _number(stream: Stream) -> int:
    if isinstance(stream, int) and not isinstance(stream, bool):
        return stream
    if hasattr(stream, "__cuda_stream__"):
        protocol = stream.__cuda_stream__
        # The first drafts of the protocol had an attribute in place of the method.
        given = protocol() if callable(protocol) else protocol
        try:
            version, number = given
        except (TypeError, ValueError):
            raise TypeError("__cuda_stream__ gives a pair, its version and the driver's number of the stream") from None
        if version != 0:
            raise TypeError(f"version {version} of the stream protocol is not known here")
        return int(number)
    for name in _NUMBERS:
        number = getattr(stream, name, None)
        if isinstance(number, int):
            return number
    raise TypeError(
        f"a stream is a torch, CuPy or cuda-core one, anything with __cuda_stream__, or the driver's number of one; "
        f"{type(stream).__name__} is none of these"
    )


def _device(core: Runtime, stream: Stream, near: str) -> int:
    devices = core.devices
    own = getattr(stream, "zerohop_device", None)
    if own is not None:
        return devices.index_of(own)
    for name in _DEVICES:
        index = getattr(stream, name, None)
        if isinstance(index, int) and not isinstance(index, bool) and index >= 0:
            for kind in GPUS:
                if f"{kind}:{index}" in devices.by_name:
                    return devices.by_name[f"{kind}:{index}"]
    if near != HOST:
        return devices.index_of(near)
    for device, index in devices.by_name.items():
        if device != HOST:
            return index
    raise ValueError("this Context has no GPU that the stream could be on")
