"""fastsafetensor-3fs-reader, a program that was written for 3FS, runs unchanged on a folder, and on a server."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from support.patience import ANSWER_S

if TYPE_CHECKING:
    from pathlib import Path

# In a process of its own: the reader looks for its back end when it is imported.
PROGRAM = """
import ctypes, json, struct, sys
import numpy as np
from zerohop.compat import hf3fs

hf3fs.install()
calls = {"prepare": 0, "submit": 0, "register_fd": 0}
import hf3fs_fuse.io as io
for name in ("prepare", "submit"):
    def counted(ring, *arguments, name=name, usual=getattr(io.ioring, name)):
        calls[name] += 1
        return usual(ring, *arguments)
    setattr(io.ioring, name, counted)
def register_fd(fd, usual=io.register_fd):
    calls["register_fd"] += 1
    usual(fd)
io.register_fd = register_fd

import fastsafetensor_3fs_reader as program
assert program.get_backend() == "python", program.get_backend()
assert program.extract_mount_point is hf3fs.extract_mount_point
folder, depth, served = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "served"
if served:
    from zerohop import storage
    server = storage.Server(folder)
    hf3fs.mount(folder, server.url)
rng = np.random.default_rng(7)
paths, contents = [], {}
for number in range(3):
    shapes = {f"layer.{k}": [int(n) for n in rng.integers(1, 90, 2)] for k in range(5)}
    header, at = {}, 0
    for name, shape in shapes.items():
        nbytes = 4 * shape[0] * shape[1]
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + nbytes]}
        at += nbytes
    text = json.dumps(header).encode()
    path = f"{folder}/model-{number}.safetensors"
    contents[path] = struct.pack("<Q", len(text)) + text + rng.bytes(at)
    with open(path, "wb") as file:
        file.write(contents[path])
    paths.append(path)

reader = program.ThreeFSFileReader(mount_point=folder, entries=16, io_depth=depth, buffer_size=1 << 20)
headers = reader.read_headers_batch(paths)
for path in paths:
    text, start, size = headers[path]
    assert size == len(contents[path])
    for name, facts in json.loads(text).items():
        first, behind = (start + offset for offset in facts["data_offsets"])
        ctypes.memset(reader.iov_base, 0xEE, reader.iov_length)
        assert reader.read_chunked(path, reader.iov_base, first, behind - first) == behind - first
        assert ctypes.string_at(reader.iov_base, behind - first) == contents[path][first:behind], (path, name)
    # All of it, and less than was asked for where the file ends.
    assert reader.read_chunked(path, reader.iov_base, 0, 1 << 20) == size
    assert ctypes.string_at(reader.iov_base, size) == contents[path]
reader.close()
assert calls["register_fd"] == 3 and calls["submit"] == 18 and calls["prepare"] > 30, calls
if served:
    assert server.statistics().bytes_read > sum(map(len, contents.values()))
    server.close()
print("every byte verified")
"""


@pytest.mark.timeout(60)
@pytest.mark.parametrize("how", ["local", "served"])
@pytest.mark.parametrize("depth", [0, 4, -4])
def test_every_byte(tmp_path: Path, depth: int, how: str) -> None:
    pytest.importorskip("fastsafetensor_3fs_reader")
    environment = os.environ | {"FASTSAFETENSORS_BACKEND": "python"}
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), str(depth), how]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_S, env=environment)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "every byte verified\n"
