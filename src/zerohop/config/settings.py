"""Declares the settings of a Context; a value comes from the call, else from ``ZEROHOP_<NAME>``, else from here."""

from __future__ import annotations

import enum
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from zerohop.config.checks import check_encodable, check_flag, check_int, check_seconds, check_text
from zerohop.config.environment import warn_of_unknown
from zerohop.config.processors import usable_processors
from zerohop.config.protection import ENCRYPTIONS
from zerohop.config.providers import PROVIDERS
from zerohop.config.verbs_options import VerbsOptions, parse_verbs_options
from zerohop.shown import shown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from zerohop.config.nic_filter import NicFilter
    from zerohop.config.protection import Encryption


# Most sockets that carry large transfers to one peer over TCP.
MAX_FLOWS: Final = 64
# A socket keeps a processor busy at either end, and a program has other work for most of them.
_USUAL_FLOWS: Final = 4
_PROCESSORS_A_FLOW: Final = 4


class Unset(enum.Enum):
    """Declares the type of ``UNSET``: an argument that was not given, where None has a meaning of its own."""

    UNSET = "from the environment"


UNSET: Final = Unset.UNSET


class Settings(NamedTuple):
    """Holds the arguments of a Context after defaults and environment; seconds and microseconds as in the arguments."""

    listen: str | None
    advertise: str | None
    secret: bytes | None
    insecure: bool
    encryption: Encryption
    providers: tuple[str, ...] | None
    require: Literal["direct"] | None
    nics: NicFilter | None
    verbs: VerbsOptions
    sim_devices: int
    sim_peermem: bool
    tcp_flows: int
    timeout: float
    spin_us: float
    heartbeat: float
    name: str
    # Names of the settings whose values come from the environment.
    from_environment: frozenset[str] = frozenset()

    def source(self, name: str) -> str:
        """Return what an error calls a setting: its variable if the value comes from there, else its argument."""
        return _variable(name) if name in self.from_environment else name

    def __repr__(self) -> str:
        """Return the settings as text for logs and tracebacks, which the secret has no business in."""
        secret = None if self.secret is None else "<hidden>"
        return (
            f"Settings({', '.join(f'{key}={value!r}' for key, value in {**self._asdict(), 'secret': secret}.items())})"
        )


class Setting(NamedTuple):
    """Describes one setting: its default, how to parse its environment variable, and its meaning."""

    name: str
    default: Any
    parse: Callable[[str], Any]
    help: str

    @property
    def variable(self) -> str:
        """Return the name of the environment variable."""
        return _variable(self.name)


def _variable(name: str) -> str:
    return f"ZEROHOP_{name.upper()}"


def _text_or_none(text: str) -> str | None:
    text = text.strip()
    return None if text.lower() in ("", "none") else text


def _mode(text: str) -> str | None:
    return text.strip().lower() or None


def _secret(text: str) -> str:
    # Taken unchanged, as in an argument: "none" or a space may be the secret. An empty one is refused as there: a shell
    # variable that is not set must not open a Context that trusts everybody.
    return text


def _flag(text: str) -> bool:
    lowered = text.strip().lower()
    if lowered in ("1", "true", "yes", "on"):
        return True
    if lowered in ("", "0", "false", "no", "off"):
        return False
    raise ValueError("expected 1 or 0")


def _count_or_none(text: str) -> int | None:
    return None if text.strip().lower() in ("", "none") else int(text)


def _names(text: str) -> tuple[str, ...] | None:
    return tuple(part.strip() for part in text.split(",") if part.strip()) or None


SETTINGS: Final[tuple[Setting, ...]] = (
    Setting("listen", "127.0.0.1:0", _text_or_none, "host:port to listen on; port 0 takes a free one; none: no TCP"),
    Setting(
        "advertise",
        None,
        _text_or_none,
        "host, address or interface that peers are told for listen; none: the address of the usual way out",
    ),
    Setting("secret", None, _secret, "what peers must know to connect, taken as it is; needed to listen off loopback"),
    Setting("insecure", False, _flag, "1: listen off loopback without a secret"),
    Setting(
        "encryption",
        None,
        _mode,
        "control: TLS on the control channel, which a secret brings by itself; all: on tcp lanes, too, and no RDMA to "
        "other hosts; none: no TLS, on a network that you trust",
    ),
    Setting("providers", None, _names, "names with commas; only these are used; none: all that work here"),
    Setting("require", None, _text_or_none, "direct: a path through host buffers is an error"),
    Setting("nics", None, _text_or_none, "RDMA ports to use, such as mlx5_0,mlx5_1:1, or ^mlx5_2 for all but that one"),
    Setting("verbs", VerbsOptions(), parse_verbs_options, "options of RDMA lanes, as in traffic_class=106,gid_index=3"),
    Setting("sim_devices", 0, int, "number of simulated accelerators"),
    Setting("sim_peermem", True, _flag, "0: NICs cannot register the memory of simulated accelerators"),
    Setting(
        "tcp_flows",
        None,
        _count_or_none,
        "sockets that carry large transfers to a peer over TCP at once, if both sides allow as many; none: one for "
        "each four processors, four at most",
    ),
    Setting("timeout", 30.0, float, "seconds until an operation ends with DeadlineExceeded; 0: never"),
    Setting("spin_us", 50.0, float, "microseconds of polling before a wait sleeps"),
    Setting("heartbeat", 10.0, float, "seconds of silence until a peer on another host is lost; 0: never"),
    Setting("name", None, _text_or_none, "what peers and logs call this Context; none: the process id"),
)


def resolve(given: Mapping[str, Any], environment: Mapping[str, str] | None = None) -> Settings:
    """Return the settings from the given arguments (UNSET if not given) and the environment.

    Raises:
        ValueError: a value makes no sense; the message names the variable if the value came from there.
        TypeError: a value has the wrong type.
    """
    environment = os.environ if environment is None else environment
    warn_of_unknown(environment, [setting.variable for setting in SETTINGS])
    values: dict[str, Any] = {}
    from_environment = set()
    for setting in SETTINGS:
        value = given.get(setting.name, UNSET)
        if value is not UNSET:
            values[setting.name] = _CHECKS[setting.name](setting.name, value)
        elif (text := environment.get(setting.variable)) is not None:
            try:
                value = setting.parse(text)
            except ValueError as error:
                raise ValueError(f"{setting.variable}={shown(text)} is not understood: {error}") from None
            values[setting.name] = _CHECKS[setting.name](setting.variable, value)
            from_environment.add(setting.name)
        else:
            values[setting.name] = setting.default
    settings = Settings(**values, from_environment=frozenset(from_environment))
    return settings._replace(
        encryption=_settled_encryption(settings),
        tcp_flows=settings.tcp_flows or _usual_flows(),
        name=settings.name or str(os.getpid()),
    )


def _usual_flows() -> int:
    return max(1, min(_USUAL_FLOWS, len(usable_processors()) // _PROCESSORS_A_FLOW))


def _settled_encryption(settings: Settings) -> Encryption:
    """Give a secret the protection that it has by itself, and refuse to protect anything without one."""
    secret = settings.secret is not None
    encryption: Encryption | None = settings.encryption
    if encryption is None:
        return "control" if secret else "none"
    if encryption != "none" and not secret:
        raise ValueError(
            f'{settings.source("encryption")}="{encryption}" takes its keys from a secret, and there is none. '
            f"Fix: pass secret=, or set ZEROHOP_SECRET"
        )
    return encryption


def _check_encryption(source: str, value: Any) -> str | None:
    if value is not None and value not in ENCRYPTIONS:
        raise ValueError(f"{source} must be one of {', '.join(ENCRYPTIONS)}, or None, not {shown(value)}")
    return None if value is None else str(value)


def _check_secret(source: str, value: Any) -> bytes | None:
    if isinstance(value, str):
        value = check_encodable(source, value)
    if value is not None and not isinstance(value, bytes):
        raise TypeError(f"{source} must be str, bytes or None, not {type(value).__name__}")
    if value is not None and not value:
        raise ValueError(f"{source} must not be empty")
    return value


def _check_providers(source: str, value: Any) -> tuple[str, ...] | None:
    if value is None:
        return None
    if not isinstance(value, Iterable):
        raise TypeError(f'{source} must be names, such as "shm,tcp" or ["shm", "tcp"], not {type(value).__name__}')
    try:
        names = _names(value) or () if isinstance(value, str) else tuple(value)
    except (TypeError, RuntimeError) as error:  # a tensor of torch's that cannot be iterated
        raise TypeError(
            f'{source} must be names, such as "shm,tcp" or ["shm", "tcp"], not {type(value).__name__}'
        ) from error
    for entry in names:
        # Something else may have an == of its own, which gives no bool.
        if not isinstance(entry, str) or entry not in PROVIDERS:
            raise ValueError(f"{source}: no provider is called {shown(entry)}; there are {', '.join(PROVIDERS)}")
    if not names:
        raise ValueError(f"{source} names no provider; None means all that work here")
    return names


def _check_require(source: str, value: Any) -> str | None:
    if value not in (None, "direct"):
        raise ValueError(f'{source} must be "direct" or None, not {shown(value)}')
    return "direct" if value else None


def _check_nics(source: str, value: Any) -> NicFilter | None:
    if value is None:
        return None
    # Imported here, so that zerohop can be imported without it.
    from zerohop.config.nic_filter import NicFilter, parse_nic_filter

    if isinstance(value, NicFilter):
        return value
    if not isinstance(value, str):
        if not isinstance(value, (list, tuple)) or not all(isinstance(each, str) for each in value):
            raise TypeError(f"{source} must be a string or a list of names, not {type(value).__name__}")
        value = ",".join(value)
    try:
        return parse_nic_filter(value)
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from None


def _check_verbs(source: str, value: Any) -> VerbsOptions:
    if not isinstance(value, VerbsOptions):
        raise TypeError(f"{source} must be a VerbsOptions, not {type(value).__name__}")
    return value


def _check_count(source: str, value: Any) -> int:
    return check_int(source, value, 0, 64)


def _check_flows(source: str, value: Any) -> int | None:
    return None if value is None else check_int(source, value, 1, MAX_FLOWS)


# Each takes the name for its messages and a value, and returns the value in its final type.
_CHECKS: Final[dict[str, Callable[[str, Any], Any]]] = {
    "listen": check_text,
    "advertise": check_text,
    "secret": _check_secret,
    "insecure": check_flag,
    "encryption": _check_encryption,
    "providers": _check_providers,
    "require": _check_require,
    "nics": _check_nics,
    "verbs": _check_verbs,
    "sim_devices": _check_count,
    "sim_peermem": check_flag,
    "tcp_flows": _check_flows,
    "timeout": check_seconds,
    "spin_us": check_seconds,
    "heartbeat": check_seconds,
    "name": check_text,
}
