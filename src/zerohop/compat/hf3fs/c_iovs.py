"""Offers the functions of 3FS's C interface for memory: on the host, and on GPUs."""

from __future__ import annotations

import contextlib
import uuid
import weakref
from dataclasses import dataclass
from typing import Any, Final

from zerohop.compat.hf3fs import gpus, log, state
from zerohop.compat.hf3fs.codes import coded, structured
from zerohop.compat.hf3fs.mounts import folder_of
from zerohop.config.checks import check_int
from zerohop.core.face import HOST
from zerohop.errors import ProtocolError, ZerohopError
from zerohop.storage import ImportedIov, Iov
from zerohop.storage.gpu_work import synchronize

_ID_BYTES: Final = 16


@dataclass(eq=False)
class hf3fs_iov:  # noqa: N801 - 3FS's name
    """Describes memory of transfers; functions of this module fill it in.

    Attributes:
        base: address of the first byte.
        iovh: the ``zerohop.storage.Iov``, whose ``memory.numpy()`` shows the bytes of host memory; of imported memory
            the ``ImportedIov``.
        id: 16 bytes that name it.
        mount_point: the mount point that it was made for.
        size: length in bytes.
        block_size: as it was given; no effect.
        numa: as it was given; no effect.
    """

    base: int = 0
    iovh: Iov | ImportedIov | None = None
    id: bytes = bytes(_ID_BYTES)
    mount_point: str = ""
    size: int = 0
    block_size: int = 0
    numa: int = -1


@dataclass(eq=False)
class hf3fs_gpu_ipc_handle_t:  # noqa: N801 - 3FS's name
    """Holds what ``hf3fs_iov_export_gpu`` gives: the bytes of a ``zerohop.RemoteBuffer``.

    Attributes:
        data: the bytes.
    """

    data: bytes = b""


def hf3fs_gdr_available() -> bool:
    """Tell whether there is a GPU, or a simulated one, whose memory files can be read into."""
    return hf3fs_gdr_device_count() > 0


def hf3fs_gdr_device_count() -> int:
    """Return the number of GPUs; where there are none, that of simulated ones (``ZEROHOP_SIM_DEVICES``)."""
    log.begin()
    try:
        return len(gpus.names())
    except (ZerohopError, ValueError) as error:
        log.logger.warning("hf3fs_gdr_device_count: %s", str(error))
        return 0


@coded
def hf3fs_iovcreate(iov: hf3fs_iov, hf3fs_mount_point: str, size: int, block_size: int, numa: int) -> int:
    """Allocate host memory. Results: 0, -EINVAL, -ENOENT (no such mount point), -ENOMEM."""
    return _create(iov, hf3fs_mount_point, size, block_size, numa, HOST)


@coded
def hf3fs_iovcreate_gpu(iov: hf3fs_iov, hf3fs_mount_point: str, size: int, block_size: int, gpu_device_id: int) -> int:
    """Allocate memory of a GPU. Results: 0, -EINVAL, -ENOENT (no such mount point), -ENODEV (no such GPU), -ENOMEM."""
    return _create(iov, hf3fs_mount_point, size, block_size, -1, gpus.name_of(gpu_device_id))


@coded
def hf3fs_iovwrap(
    iov: hf3fs_iov,
    base: Any,
    id: bytes,  # noqa: A002 - 3FS's name
    hf3fs_mount_point: str,
    size: int,
    block_size: int,
    numa: int,
) -> int:
    """Take host memory that is there: its address, or an object with a buffer. Results as for ``hf3fs_iovcreate``."""
    return _wrap(iov, base, id, hf3fs_mount_point, size, block_size, numa, HOST)


@coded
def hf3fs_iovwrap_gpu(
    iov: hf3fs_iov,
    gpu_ptr: Any,
    id: bytes,  # noqa: A002 - 3FS's name
    hf3fs_mount_point: str,
    size: int,
    block_size: int,
    gpu_device_id: int,
) -> int:
    """Take memory of a GPU that is there: its address, or a tensor, or a view of one, that is contiguous.

    By address it must stay until ``hf3fs_iovdestroy_gpu``, which never frees it. Results: 0, -EINVAL (it is no such
    memory), -ENOENT (no such mount point), -ENODEV (no such GPU), -ENOTSUP (memory that cannot be registered), -ENOMEM.
    """
    return _wrap(iov, gpu_ptr, id, hf3fs_mount_point, size, block_size, -1, gpus.name_of(gpu_device_id))


@structured
def hf3fs_iovdestroy(iov: hf3fs_iov) -> None:
    """Give memory back: what was allocated is freed, what was wrapped stays. Without effect the second time."""
    handle, iov.iovh = iov.iovh, None
    iov.base = iov.size = 0
    if handle is not None:
        handle.close()


@structured
def hf3fs_iovdestroy_gpu(iov: hf3fs_iov) -> None:
    """Do as ``hf3fs_iovdestroy``."""
    hf3fs_iovdestroy(iov)


@structured
def hf3fs_iov_is_gpu(iov: hf3fs_iov) -> bool:
    """Tell whether the memory is a GPU's."""
    return iov.iovh is not None and iov.iovh.is_device


@structured
def hf3fs_iov_gpu_device(iov: hf3fs_iov) -> int:
    """Return the number of the memory's GPU; -1 if it is none's."""
    return gpus.names().index(iov.iovh.device) if iov.iovh is not None and iov.iovh.is_device else -1


@coded
def hf3fs_iovsync_gpu(iov: hf3fs_iov, direction: int) -> int:
    """Wait until a GPU has done what it was told: before its memory is written to a file. Results: 0, -EINVAL, -EIO.

    Args:
        iov: memory of a GPU.
        direction: 0: before transfers; 1: after them, where there is nothing to wait for: when ``hf3fs_wait_for_ios``
            gives a result, the GPU sees the bytes.
    """
    check_int("direction", direction, 0, 1)
    handle = _of_gpu(iov)
    if direction == 0:
        synchronize(handle.device)
    return 0


@coded
def hf3fs_iov_export_gpu(iov: hf3fs_iov, handle: hf3fs_gpu_ipc_handle_t) -> int:
    """Make a handle of a GPU's memory, which pickles and travels as ``handle.data``. Results: 0, -EINVAL.

    Other processes reach the memory with ``zerohop.RemoteBuffer.from_bytes(handle.data)``.
    """
    exporter = _of_gpu(iov)
    handle.data = exporter.export()
    current = state.current()
    with current.lock:
        dropped = [data for data, memory in current.exported.items() if memory() is None]
        for data in dropped:
            del current.exported[data]
        if isinstance(exporter, Iov):
            current.exported[handle.data] = weakref.ref(exporter.memory)
    return 0


@coded
def hf3fs_iov_import_gpu(iov: hf3fs_iov, handle: hf3fs_gpu_ipc_handle_t, hf3fs_mount_point: str) -> int:
    """Use memory of a GPU that a process of this host has exported, as if it were this process's.

    Results: 0, -EINVAL (it is no handle), -ENOENT (no such mount point), -EACCES (its owner has destroyed it), -ENOTSUP
    (no GPU of this process reaches it), -EIO (its owner is gone).
    """
    folder_of(hf3fs_mount_point)
    current = state.current()
    with current.lock:
        known = current.exported.get(handle.data)
    memory = None if known is None else known()
    store = current.store()
    with _no_handle():
        made = store.wrap(memory) if memory is not None else store.import_iov(handle.data).result()
    _fill(iov, made, uuid.uuid4().bytes, hf3fs_mount_point, 0, -1)
    return 0


@contextlib.contextmanager
def _no_handle() -> Any:
    try:
        yield
    except ProtocolError as error:
        raise ValueError(f"this is no handle that hf3fs_iov_export_gpu gave: {error}") from None


def memory_of(handle: Iov | ImportedIov) -> Any:
    """Return what a Ring takes for the memory, and what has its address."""
    return handle.memory if isinstance(handle, Iov) else handle


def _of_gpu(iov: hf3fs_iov) -> Iov | ImportedIov:
    if iov.iovh is None or not iov.iovh.is_device:
        raise ValueError("the iov is not of a GPU, or was destroyed: use hf3fs_iovcreate_gpu or hf3fs_iovwrap_gpu")
    return iov.iovh


def _create(iov: hf3fs_iov, mount_point: str, size: int, block_size: int, numa: int, device: str) -> int:
    folder_of(mount_point)
    check_int("block_size", block_size, 0)
    check_int("numa", numa, -1)
    made = state.current().store().iov(check_int("size", size, 1), device)
    _fill(iov, made, uuid.uuid4().bytes, mount_point, block_size, numa)
    return 0


def _wrap(
    iov: hf3fs_iov, base: Any, name: bytes, mount_point: str, size: int, block_size: int, numa: int, device: str
) -> int:
    folder_of(mount_point)
    check_int("block_size", block_size, 0)
    check_int("numa", numa, -1)
    check_int("size", size, 1)
    if len(name) != _ID_BYTES:
        raise ValueError("an id has 16 bytes: uuid.uuid4().bytes")
    if base is None or (isinstance(base, int) and base == 0):
        raise ValueError("there is no memory at the address 0")
    store = state.current().store()
    made = store.wrap((base, size, device) if isinstance(base, int) else base)
    if (made.device, made.nbytes) != (device, size):
        made.close()
        raise ValueError(f"the memory has {made.nbytes} bytes of {made.device}, and not {size} of {device}")
    _fill(iov, made, name, mount_point, block_size, numa)
    return 0


def _fill(iov: hf3fs_iov, handle: Iov | ImportedIov, name: bytes, mount_point: str, block_size: int, numa: int) -> None:
    iov.base, iov.iovh, iov.id = memory_of(handle).address, handle, name
    iov.mount_point, iov.size, iov.block_size, iov.numa = mount_point, handle.nbytes, block_size, numa
