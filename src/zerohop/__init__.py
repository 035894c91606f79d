"""Moves bytes between GPU memory, host memory and storage of any two processes, with no needless hop."""

from zerohop.config.verbs_options import VerbsOptions
from zerohop.core.base.statistics import Statistics
from zerohop.core.context import Context
from zerohop.core.memory.memory import Memory, View
from zerohop.core.memory.pool import Pool
from zerohop.core.memory.remote_buffer import RemoteBuffer
from zerohop.core.runtime.devices import Device
from zerohop.core.runtime.explanation import Explanation
from zerohop.core.runtime.operation import Operation
from zerohop.core.runtime.wait import as_completed, gather, wait_all
from zerohop.core.transfers.connection import Connection, Received
from zerohop.core.transfers.notification import Notification
from zerohop.errors import (
    AccessDenied,
    Closed,
    DeadlineExceeded,
    DeviceFailed,
    EndOfFile,
    LimitReached,
    PeerLost,
    ProtocolError,
    RegistrationFailed,
    RevocationIncomplete,
    StagedPathWarning,
    StorageError,
    Unsupported,
    WouldBlock,
    ZerohopError,
)
from zerohop.group.group import Group
from zerohop.transport.transport import Transport

__version__ = "0.1.0"

__all__ = [
    "AccessDenied",
    "Closed",
    "Connection",
    "Context",
    "DeadlineExceeded",
    "Device",
    "DeviceFailed",
    "EndOfFile",
    "Explanation",
    "Group",
    "LimitReached",
    "Memory",
    "Notification",
    "Operation",
    "PeerLost",
    "Pool",
    "ProtocolError",
    "Received",
    "RegistrationFailed",
    "RemoteBuffer",
    "RevocationIncomplete",
    "StagedPathWarning",
    "Statistics",
    "StorageError",
    "Transport",
    "Unsupported",
    "VerbsOptions",
    "View",
    "WouldBlock",
    "ZerohopError",
    "__version__",
    "as_completed",
    "gather",
    "wait_all",
]

# Pickles of these values name this module, so that they stay readable if the classes move to other files.
for _value in (Device, Explanation, Notification, RemoteBuffer, RemoteBuffer.from_bytes, Statistics, VerbsOptions):
    _value.__module__ = __name__
del _value
