"""Puts modules of 3FS's names where ``import`` finds them."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

from zerohop.compat.hf3fs import io
from zerohop.compat.hf3fs.descriptors import deregister_fd, register_fd
from zerohop.compat.hf3fs.iovec import iovec
from zerohop.compat.hf3fs.mounts import extract_mount_point
from zerohop.compat.hf3fs.rings import IorPriority, ioring

_LOWER: Final[dict[str, Any]] = {
    "deregister_fd": deregister_fd,
    "extract_mount_point": extract_mount_point,
    "force_fsync": io.force_fsync,
    "hardlink": io.hardlink,
    "ioring": ioring,
    "iovec": iovec,
    "punch_hole": io.punch_hole,
    "register_fd": register_fd,
}
_UPPER: Final[dict[str, Any]] = {
    **_LOWER,
    "IorPriority": IorPriority,
    "make_ioring": io.make_ioring,
    "make_iovec": io.make_iovec,
    "read_file": io.read_file,
}

# The modules that had the names before, None where there was none; empty while nothing is installed.
_before: dict[str, ModuleType | None] = {}


def install() -> None:
    """Make ``import hf3fs_fuse.io`` and ``import hf3fs_py_usrbio`` find this module's names. Idempotent.

    Call it before the program imports them: names that it has already stay what they are.
    """
    if _before:
        return
    package = _module("hf3fs_fuse", {}, is_package=True)
    upper = _module("hf3fs_fuse.io", _UPPER)
    package.__dict__["io"] = upper
    for module in (package, upper, _module("hf3fs_py_usrbio", _LOWER)):
        _before[module.__name__] = sys.modules.get(module.__name__)
        sys.modules[module.__name__] = module


def uninstall() -> None:
    """Undo ``install``: modules that had the names before have them again. Idempotent."""
    for name, module in _before.items():
        if module is None:
            sys.modules.pop(name, None)
        else:
            sys.modules[name] = module
    _before.clear()


def _module(name: str, names: dict[str, Any], *, is_package: bool = False) -> ModuleType:
    module = ModuleType(name, "Offers names of 3FS, by zerohop.compat.hf3fs.")
    # importlib.util.find_spec, which programs ask whether there is a 3FS, wants one.
    module.__spec__ = ModuleSpec(name, None, is_package=is_package)
    if is_package:
        module.__path__ = []
    module.__dict__.update(names)
    return module
