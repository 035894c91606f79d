"""3FS's C interface on torch's tensors of GPUs: views of them are read into and written from."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any

import pytest

from support.hf3fs import own_state
from support.pattern import pattern
from zerohop.compat.hf3fs import (
    hf3fs_cqe,
    hf3fs_dereg_fd,
    hf3fs_ior,
    hf3fs_iorcreate4,
    hf3fs_iordestroy,
    hf3fs_iov,
    hf3fs_iovdestroy_gpu,
    hf3fs_iovsync_gpu,
    hf3fs_iovwrap_gpu,
    hf3fs_prep_io,
    hf3fs_reg_fd,
    hf3fs_wait_for_ios,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

torch: Any = pytest.importorskip("torch")
NBYTES = 4 << 20
pytestmark = pytest.mark.timeout(60)


@pytest.fixture(autouse=True)
def own() -> Iterator[None]:
    with own_state():
        yield


def move(iov: hf3fs_iov, path: Path, *, read: bool) -> int:
    ior, cqe = hf3fs_ior(), hf3fs_cqe()
    assert hf3fs_iorcreate4(ior, str(path.parent), 4, read, 0, 0, -1, 0) == 0
    fd = os.open(path, os.O_RDONLY if read else os.O_WRONLY | os.O_CREAT)
    assert hf3fs_reg_fd(fd, 0) <= 0
    assert hf3fs_prep_io(ior, iov, read, iov.base, fd, 0, iov.size, None) >= 0
    assert hf3fs_wait_for_ios(ior, cqe, 1, 1, None) == 1
    hf3fs_dereg_fd(fd)
    os.close(fd)
    hf3fs_iordestroy(ior)
    return cqe.result


@pytest.mark.parametrize("by_address", [True, False])
def test_a_view_of_a_tensor(tmp_path: Path, by_address: bool) -> None:
    """Work that was queued before ``hf3fs_iovsync_gpu`` is in what is written."""
    there = pattern(5, NBYTES)
    (tmp_path / "data").write_bytes(there.tobytes())
    tensor = torch.zeros(3, NBYTES, dtype=torch.uint8, device="cuda:0")
    torch.cuda.synchronize()
    view, iov = tensor[1], hf3fs_iov()
    pointer = view.data_ptr() if by_address else view
    assert hf3fs_iovwrap_gpu(iov, pointer, bytes(16), str(tmp_path), NBYTES, 0, 0) == 0
    assert move(iov, tmp_path / "data", read=True) == NBYTES
    assert hf3fs_iovsync_gpu(iov, 1) == 0
    assert view.cpu().numpy().tobytes() == there.tobytes()
    assert not tensor[0].any()
    assert not tensor[2].any()
    for _ in range(100):
        view.add_(1)
    assert hf3fs_iovsync_gpu(iov, 0) == 0
    assert move(iov, tmp_path / "copy", read=False) == NBYTES
    assert (tmp_path / "copy").read_bytes() == (there + 100).tobytes()
    hf3fs_iovdestroy_gpu(iov)
    view.add_(1)
    assert hf3fs_iovwrap_gpu(iov, view, bytes(16), str(tmp_path), NBYTES - 1, 0, 0) == -errno.EINVAL
