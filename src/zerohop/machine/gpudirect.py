"""Finds out whether files can go straight into memory of NVIDIA's GPUs (GPUDirect Storage), and what to type if not.

Not verified on hardware.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

# Texts of native code (native/storage/gpudirect.cpp, native/shim/library.cpp) and of this package, and the fix.
_FIXES: Final = (
    ("libcufile.so.0 has no", "install a newer cuFile: apt-get install -y nvidia-gds"),
    ("libcufile.so.0", "install cuFile: apt-get install -y nvidia-gds, or put a folder with it into LD_LIBRARY_PATH"),
    ("compatibility mode", "start the program with CUFILE_ALLOW_COMPAT_MODE=false"),
    ("CU_FILE_DRIVER_NOT_INITIALIZED", "modprobe nvidia-fs"),
    ("CU_FILE_DRIVER_VERSION", "install cuFile and nvidia-fs of one release: apt-get install -y nvidia-gds"),
    (
        "CU_FILE_IO_NOT_SUPPORTED",
        "put the file on an NVMe disk with ext4 (data=ordered) or xfs; gdscheck -p tells more",
    ),
    ("neither ext4 nor xfs", "put the file on an NVMe disk with ext4 (data=ordered) or xfs"),
    ("past the page cache", "open the file without direct=False, on a disk with ext4 or xfs"),
    ("CU_FILE_GPU_MEMORY_PINNING_FAILED", "free memory of the GPU's PCI window (BAR1): nvidia-smi -q -d MEMORY"),
    ("not that of an NVIDIA GPU", "take memory of an NVIDIA GPU"),
    ("another process's", "read the file in the process that owns the memory"),
)
_OTHER: Final = "look at what cufile.log says, and gdscheck -p"


@dataclass(frozen=True, slots=True)
class GpuDirect:
    """Holds the answer.

    Attributes:
        usable: whether cuFile is ready. Each file system and each range may still be refused.
        why: what is in the way; "" if nothing is.
        fix: what to type, or "".
    """

    usable: bool
    why: str = ""
    fix: str = ""


def read_gpudirect(said: str | None = None) -> GpuDirect:
    """Open cuFile, as the first transfer of a file with a GPU's memory does, and tell whether it is ready.

    Args:
        said: what native code says of this process; None: it is asked now.
    """
    if said is None:
        from zerohop._native import why_no_gpudirect

        said = why_no_gpudirect()
    return GpuDirect(usable=True) if not said else GpuDirect(usable=False, why=said, fix=fix_of(said))


def fix_of(why: str) -> str:
    """Return what to type for a reason."""
    return next((fix for part, fix in _FIXES if part in why), _OTHER)
