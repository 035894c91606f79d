"""Finds ranks through PMIx, the service that mpirun and srun have for their processes, by the client's library.

The library is opened at run time. Its functions and structures are those of the PMIx standard, versions 3 to 5.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import math
from pathlib import Path
from typing import TYPE_CHECKING, Final

from zerohop.errors import PeerLost

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import timedelta

# One environment variable says that a process was started with PMIx; another, where the launcher's library is.
LIBRARY: Final = "libpmix.so.2"
NAMESPACE: Final = "PMIX_NAMESPACE"
_PREFIX: Final = "PMIX_PREFIX"
# Constants of pmix_common.h.
_SUCCESS, _ERR_TIMEOUT, _ERR_NOT_FOUND = 0, -24, -46
_INT, _BYTE_OBJECT = 6, 27
_GLOBAL: Final = 3
_ALL_RANKS: Final = 0xFFFFFFFE
_JOB_SIZE: Final = b"pmix.job.size"
_TIMEOUT: Final = b"pmix.timeout"


class _Process(ctypes.Structure):
    _fields_ = (("nspace", ctypes.c_char * 256), ("rank", ctypes.c_uint32))


class _Bytes(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_void_p), ("size", ctypes.c_size_t))


class _Data(ctypes.Union):
    # The last one is as large as the largest that the standard has.
    _fields_ = (
        ("integer", ctypes.c_int),
        ("uint32", ctypes.c_uint32),
        ("bytes", _Bytes),
        ("room", ctypes.c_uint64 * 3),
    )


class _Value(ctypes.Structure):
    _fields_ = (("type", ctypes.c_uint16), ("data", _Data))


class _Info(ctypes.Structure):
    _fields_ = (("key", ctypes.c_char * 512), ("flags", ctypes.c_uint32), ("value", _Value))


class PmixError(Exception):
    """Raised if a function of the library fails; ``status`` is the number that it has returned."""

    def __init__(self, function: str, status: int) -> None:
        super().__init__(f"{function} of {LIBRARY} says {status}")
        self.status = status


class PmixStore:
    """Keeps each value with its rank, which is the last part of its key. Ranks are told to nobody in advance.

    Attributes:
        rank: this process's rank.
        size: the number of ranks.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        """Connect with the service of this host.

        Raises:
            PmixError: it does not answer.
        """
        self._library = library
        self._libc = ctypes.CDLL(None)
        self._libc.free.argtypes = (ctypes.c_void_p,)
        library.PMIx_Init.argtypes = (ctypes.POINTER(_Process), ctypes.c_void_p, ctypes.c_size_t)
        library.PMIx_Finalize.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
        library.PMIx_Put.argtypes = (ctypes.c_uint8, ctypes.c_char_p, ctypes.POINTER(_Value))
        library.PMIx_Get.argtypes = (
            ctypes.POINTER(_Process),
            ctypes.c_char_p,
            ctypes.POINTER(_Info),
            ctypes.c_size_t,
            ctypes.POINTER(ctypes.POINTER(_Value)),
        )
        me = _Process()
        self._call("PMIx_Init", ctypes.byref(me), None, 0)
        # A process that ends without this has failed, as the launcher sees it.
        atexit.register(library.PMIx_Finalize, None, 0)
        self._nspace: bytes = me.nspace
        self.rank: int = me.rank
        with self._value(_ALL_RANKS, _JOB_SIZE, None, 0) as value:
            self.size: int = value.data.uint32

    def set(self, key: str, value: bytes) -> None:
        """Store a value of this rank's.

        Raises:
            PmixError: the service refuses.
        """
        copy = ctypes.create_string_buffer(value, len(value))
        data = _Value(type=_BYTE_OBJECT)
        data.data.bytes = _Bytes(ctypes.addressof(copy), len(value))
        self._call("PMIx_Put", _GLOBAL, key.encode(), ctypes.byref(data))
        self._call("PMIx_Commit")

    def get(self, key: str) -> bytes:
        """Return a value.

        Raises:
            PmixError: it is not there.
        """
        return self._get(key, 1)

    def wait(self, keys: Sequence[str], timeout: timedelta) -> None:
        """Wait until all values are there, for whole seconds, and for one at least.

        Raises:
            TimeoutError: one is not there.
            PmixError: the service fails.
        """
        for key in keys:
            try:
                self._get(key, max(1, math.ceil(timeout.total_seconds())))
            except PmixError as error:
                if error.status in (_ERR_TIMEOUT, _ERR_NOT_FOUND):
                    raise TimeoutError(f"PMIx has no {key}") from None
                raise

    def _get(self, key: str, seconds: int) -> bytes:
        """Return a value; wait for so many seconds until it is there."""
        info = _Info(key=_TIMEOUT, value=_Value(type=_INT, data=_Data(integer=seconds)))
        with self._value(int(key.rpartition("/")[2]), key.encode(), ctypes.byref(info), 1) as value:
            if value.type != _BYTE_OBJECT:
                raise PmixError("PMIx_Get", value.type)
            return ctypes.string_at(value.data.bytes.bytes, value.data.bytes.size)

    @contextlib.contextmanager
    def _value(self, rank: int, key: bytes, info: object, infos: int) -> Iterator[_Value]:
        """Ask for a value, which is given back at the end."""
        found = ctypes.POINTER(_Value)()
        self._call("PMIx_Get", ctypes.byref(_Process(self._nspace, rank)), key, info, infos, ctypes.byref(found))
        try:
            yield found.contents
        finally:
            if found.contents.type == _BYTE_OBJECT:
                self._libc.free(found.contents.data.bytes.bytes)
            self._libc.free(found)

    def _call(self, function: str, *arguments: object) -> None:
        status = getattr(self._library, function)(*arguments)
        if status != _SUCCESS:
            raise PmixError(function, status)


def open_pmix(environment: Mapping[str, str]) -> PmixStore | None:
    """Return the store that PMIx is to this process; None if it was not started so, or the library is not there.

    Raises:
        PeerLost: the service does not answer.
    """
    if NAMESPACE not in environment:
        return None
    return _open_once(environment.get(_PREFIX, ""))


@functools.lru_cache(maxsize=1)
def _open_once(prefix: str) -> PmixStore | None:
    for path in _paths(prefix):
        try:
            library = ctypes.CDLL(path)
        except OSError:
            continue
        try:
            return PmixStore(library)
        except PmixError as error:
            raise PeerLost(
                f"the launcher's PMIx does not answer: {error}",
                fix="see that this process was started by mpirun or srun itself, and still runs under it",
                operation="group",
            ) from None
    return None


def _paths(prefix: str) -> Iterator[str]:
    """Yield the places of the library: the launcher's own first, because other versions log errors."""
    if prefix:
        for folder in ("lib", "lib64", "lib/openmpi", "lib64/openmpi"):
            yield str(Path(prefix, folder, LIBRARY))
    yield LIBRARY
