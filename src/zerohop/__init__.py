"""Moves bytes between GPU memory, host memory and storage of any two processes, with no needless hop."""

from .connection import Connection
from .context import Context
from .errors import (
    AccessDenied,
    Closed,
    DeadlineExceeded,
    DeviceFailed,
    PeerLost,
    ProtocolError,
    RegistrationFailed,
    RevocationIncomplete,
    StagedPathWarning,
    Unsupported,
    WouldBlock,
    ZerohopError,
)
from .facts import Device, Statistics
from .memory import Memory, View
from .notification import Notification
from .operation import Operation
from .paths import Explanation
from .pool import Pool
from .remote_buffer import RemoteBuffer
from .transport import Transport
from .verbs_options import VerbsOptions
from .waiting import as_completed, wait_all

__version__ = "0.1.0"

__all__ = [
    "AccessDenied",
    "Closed",
    "Connection",
    "Context",
    "DeadlineExceeded",
    "Device",
    "DeviceFailed",
    "Explanation",
    "Memory",
    "Notification",
    "Operation",
    "PeerLost",
    "Pool",
    "ProtocolError",
    "RegistrationFailed",
    "RemoteBuffer",
    "RevocationIncomplete",
    "StagedPathWarning",
    "Statistics",
    "Transport",
    "Unsupported",
    "VerbsOptions",
    "View",
    "WouldBlock",
    "ZerohopError",
    "__version__",
    "as_completed",
    "wait_all",
]
