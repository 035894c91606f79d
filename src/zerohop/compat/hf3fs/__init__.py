"""Offers the names of 3FS's user-space I/O, in Python and of its C interface, on folders of this machine.

Call ``install()`` before the program imports ``hf3fs_fuse.io`` or ``hf3fs_py_usrbio``; or write ``from
zerohop.compat.hf3fs import make_iovec, …`` in their place. A mount point is a folder, or what ``mount(path, folder)``
says. All use one Context per process, with the environment's settings. docs/hf3fs.md lists the differences.
"""

from zerohop.compat.hf3fs.c_iovs import (
    hf3fs_gdr_available,
    hf3fs_gdr_device_count,
    hf3fs_gpu_ipc_handle_t,
    hf3fs_iov,
    hf3fs_iov_export_gpu,
    hf3fs_iov_gpu_device,
    hf3fs_iov_import_gpu,
    hf3fs_iov_is_gpu,
    hf3fs_iovcreate,
    hf3fs_iovcreate_gpu,
    hf3fs_iovdestroy,
    hf3fs_iovdestroy_gpu,
    hf3fs_iovsync_gpu,
    hf3fs_iovwrap,
    hf3fs_iovwrap_gpu,
)
from zerohop.compat.hf3fs.c_rings import (
    hf3fs_cqe,
    hf3fs_dereg_fd,
    hf3fs_hardlink,
    hf3fs_io_entries,
    hf3fs_ior,
    hf3fs_ior_size,
    hf3fs_iorcreate4,
    hf3fs_iordestroy,
    hf3fs_prep_io,
    hf3fs_punchhole,
    hf3fs_reg_fd,
    hf3fs_submit_ios,
    hf3fs_wait_for_ios,
)
from zerohop.compat.hf3fs.descriptors import deregister_fd, register_fd
from zerohop.compat.hf3fs.io import force_fsync, hardlink, make_ioring, make_iovec, punch_hole, read_file
from zerohop.compat.hf3fs.iovec import iovec
from zerohop.compat.hf3fs.modules import install, uninstall
from zerohop.compat.hf3fs.mounts import extract_mount_point, local_path, mount, unmount
from zerohop.compat.hf3fs.rings import IorPriority, ioring

__all__ = [
    "IorPriority",
    "deregister_fd",
    "extract_mount_point",
    "force_fsync",
    "hardlink",
    "hf3fs_cqe",
    "hf3fs_dereg_fd",
    "hf3fs_gdr_available",
    "hf3fs_gdr_device_count",
    "hf3fs_gpu_ipc_handle_t",
    "hf3fs_hardlink",
    "hf3fs_io_entries",
    "hf3fs_ior",
    "hf3fs_ior_size",
    "hf3fs_iorcreate4",
    "hf3fs_iordestroy",
    "hf3fs_iov",
    "hf3fs_iov_export_gpu",
    "hf3fs_iov_gpu_device",
    "hf3fs_iov_import_gpu",
    "hf3fs_iov_is_gpu",
    "hf3fs_iovcreate",
    "hf3fs_iovcreate_gpu",
    "hf3fs_iovdestroy",
    "hf3fs_iovdestroy_gpu",
    "hf3fs_iovsync_gpu",
    "hf3fs_iovwrap",
    "hf3fs_iovwrap_gpu",
    "hf3fs_prep_io",
    "hf3fs_punchhole",
    "hf3fs_reg_fd",
    "hf3fs_submit_ios",
    "hf3fs_wait_for_ios",
    "install",
    "ioring",
    "iovec",
    "local_path",
    "make_ioring",
    "make_iovec",
    "mount",
    "punch_hole",
    "read_file",
    "register_fd",
    "uninstall",
    "unmount",
]
