"""What a Transport needs before there is one: the name of a device, a Context that has it, or why there is none."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from zerohop.core.runtime.devices import HOST
from zerohop.errors import ZerohopError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zerohop.core.context import Context

_NAME: Final = re.compile(r"(?:cuda|hip|sim):[0-9]{1,4}")


def device_name(device: object) -> str:
    """The name of a device that is given as one, as the number of a CUDA device, or as a ``torch.device``.

    Raises:
        TypeError: none of these.
        ValueError: a name of no device.
    """
    if isinstance(device, bool):
        raise TypeError("a device is a name, a number or a torch.device, not a bool")
    if isinstance(device, int):
        device = f"cuda:{device}"
    elif not isinstance(device, str):
        kind, index = getattr(device, "type", None), getattr(device, "index", None)
        if not isinstance(kind, str):
            raise TypeError(f"a device is a name, a number or a torch.device, not {type(device).__name__}")
        device = HOST if kind == "cpu" else f"{kind}:{index or 0}"
    if device == "cpu":
        return HOST
    if device != HOST and not _NAME.fullmatch(device):
        raise ValueError(f'{device!r} is no device; those are "host", "cuda:0", "hip:0", "sim:0" and so on')
    return device


def open_context(device: str, settings: Mapping[str, Any]) -> Context:
    """A Context with that device, if this machine has it: a simulated one comes with it. Errors as Context has them."""
    from zerohop.core.context import Context

    kind, _, number = device.partition(":")
    if kind == "sim" and "sim_devices" not in settings:
        settings = {**settings, "sim_devices": int(number) + 1}
    return Context(**settings)


def why_unsupported(device: object, settings: Mapping[str, Any]) -> str:
    """Why no Transport can be made on a device with such a Context, and the fix; empty where one can.

    Raises:
        TypeError: not a device, or no setting of a Context.
    """
    try:
        name = device_name(device)
        with open_context(name, settings) as context:
            context._devices.index_of(name)
    except (ZerohopError, ValueError) as error:
        return str(error)
    return ""
