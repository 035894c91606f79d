"""Finds the device of a Transport, and says whether a Transport can be made on it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from zerohop.core.face import HOST, Context, check_device
from zerohop.errors import ZerohopError
from zerohop.shown import shown

if TYPE_CHECKING:
    from collections.abc import Mapping

_NAME: Final = re.compile(r"(?:cuda|hip|sim):[0-9]{1,4}")


def device_name(device: object) -> str:
    """Return the name of a device, given as a name, as the number of a CUDA device, or as a ``torch.device``.

    Raises:
        TypeError: none of these.
        ValueError: no device has such a name.
    """
    if isinstance(device, bool):
        raise TypeError("a device is a name, a number or a torch.device, not a bool")
    if isinstance(device, int):
        device = f"cuda:{shown(device)}"
    elif not isinstance(device, str):
        kind, index = getattr(device, "type", None), getattr(device, "index", None)
        if not isinstance(kind, str):
            raise TypeError(f"a device is a name, a number or a torch.device, not {type(device).__name__}")
        device = HOST if kind == "cpu" else f"{kind}:{index or 0}"
    if device == "cpu":
        return HOST
    if device != HOST and not _NAME.fullmatch(device):
        raise ValueError(f'{shown(device)} is no device; those are "host", "cuda:0", "hip:0", "sim:0" and so on')
    return device


def settings_for(device: str, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings of a Context that has this device: a simulated one has to be asked for."""
    kind, _, number = device.partition(":")
    if kind == "sim" and "sim_devices" not in settings:
        return {**settings, "sim_devices": int(number) + 1}
    return settings


def why_unsupported(device: object, settings: Mapping[str, Any]) -> str:
    """Return why no Transport can be made on a device with such a Context, and the fix; empty if one can.

    Raises:
        TypeError: not a device, or no setting of a Context.
    """
    try:
        name = device_name(device)
        with Context(**settings_for(name, settings)) as context:
            check_device(context, name)
    except (ZerohopError, ValueError) as error:
        return str(error)
    return ""
