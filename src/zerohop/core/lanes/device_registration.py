"""Registers host memory here with the drivers of devices. A failure concerns that memory, and no other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zerohop._native import NativeError, Reason
from zerohop.core.memory.registration import DEVICES

if TYPE_CHECKING:
    from zerohop._native import Engine
    from zerohop.core.memory.registration import Registration
    from zerohop.core.memory.retention import Retention


def register_with_devices(engine: Engine, retention: Retention, registration: Registration) -> None:
    """Have devices know host memory. Any thread may call this.

    Raises:
        NativeError: they do not take it, which is recorded with the memory; or the memory or the engine is closed.
    """
    try:
        try:
            engine.register_with_devices(registration.region)
        except NativeError as error:
            if error.args[1] != Reason.HOST_REGISTERED.value:
                raise
            # Devices may know overlapping memory only in case it is registered again: have them forget it, and retry.
            retention.stop_lingering()
            engine.register_with_devices(registration.region)
        registration.unregistrable.record_success(DEVICES)
    except NativeError as error:
        registration.refused(DEVICES, error)
        raise
    finally:
        retention.known_to_devices(registration)
