"""3FS's C interface, given what is none of its structures."""

from __future__ import annotations

import inspect

import pytest

from zerohop.compat import hf3fs
from zerohop.compat.hf3fs import hf3fs_cqe, hf3fs_gpu_ipc_handle_t, hf3fs_ior, hf3fs_iov


def test_what_is_no_structure() -> None:
    """The error says which argument it is, and what it is to be."""
    functions = {
        name: getattr(hf3fs, name)
        for name in hf3fs.__all__
        if inspect.isfunction(getattr(hf3fs, name)) and name.startswith("hf3fs_")
    }
    structures = ("ior", "iov", "handle")
    checked = 0
    for name, function in functions.items():
        parameters = inspect.signature(function).parameters
        for wrong in structures:
            if wrong in parameters:
                good = {"ior": hf3fs_ior(), "iov": hf3fs_iov(), "handle": hf3fs_gpu_ipc_handle_t()}
                given = {each: good.get(each, 0) for each in parameters}
                for value in (None, 7, hf3fs_cqe()):
                    checked += 1
                    with pytest.raises(TypeError, match=rf"^{name}: {wrong} must be an hf3fs_"):
                        function(**{**given, wrong: value})
                    with pytest.raises(TypeError, match=rf"^{name}: {wrong} must be an hf3fs_"):
                        function(*{**given, wrong: value}.values())
    assert checked >= 30
