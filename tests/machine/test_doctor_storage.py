"""The doctor's family "storage", each check in its states."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from support.doctor import UNLIMITED, check, healthy, look, process, read
from support.patience import PATIENCE_S
from zerohop import storage
from zerohop.machine.descriptors import OF_CLIENT, OF_FILE, OF_SERVER
from zerohop.machine.doctor import Check, State
from zerohop.machine.gpudirect import read_gpudirect
from zerohop.machine.host import Limit
from zerohop.machine.io_uring import IoUring

if TYPE_CHECKING:
    from pathlib import Path

MIB = 1 << 20
RAISE = "sysctl -w kernel.io_uring_disabled=0"


def in_container(root: Path, name: str, container: str, **changes: Any) -> Check:
    """The result of a check in a container, or outside of one."""
    return look(name, replace(read(root, process(**changes)), container=container))


@pytest.mark.parametrize(
    ("cause", "container", "fix"),
    [
        ("build", "", "apt-get install -y liburing-dev"),
        ("build", "docker", "apt-get install -y liburing-dev"),
        ("disabled", "", RAISE),
        ("disabled", "docker", "# on the host, not in this container:"),
        ("restricted", "", RAISE),
        ("filter", "", "# of a service: systemctl edit NAME, with SystemCallFilter=@io-uring under [Service]"),
        ("filter", "docker", "docker run --security-opt seccomp=PROFILE.json …"),
        ("filter", "podman", "podman run --security-opt seccomp=PROFILE.json …"),
        (
            "filter",
            "kubernetes",
            "# in the pod: securityContext: {seccompProfile: {type: Localhost, localhostProfile: PROFILE.json}}",
        ),
        ("kernel", "", "# what to type"),
        ("memlock", "", "ulimit -l unlimited"),
        ("descriptors", "", "ulimit -n 65536"),
        ("other", "", RAISE),
        ("other", "podman", "# on the host, not in this container:"),
    ],
)
def test_without_io_uring(tmp_path: Path, cause: Any, container: str, fix: str) -> None:
    told = "what to type" if cause == "kernel" else RAISE
    refused = IoUring(usable=False, cause=cause, why="the reason", fix=told)
    found = in_container(tmp_path, "io-uring", container, io_uring=refused)
    assert (found.state, found.found) == (State.WARN, "the reason: threads read and write files")
    assert found.fix[0] == fix
    if cause == "filter" and container:
        assert "io_uring_setup, io_uring_enter and io_uring_register" in found.fix[1]
    if cause in ("disabled", "restricted"):
        assert RAISE in found.fix
        assert found.fix[-1].startswith("echo kernel.io_uring_disabled=0 >/etc/sysctl.d/")


def test_with_io_uring(tmp_path: Path) -> None:
    assert check("io-uring", tmp_path).found == "usable"
    assert check("io-uring", tmp_path, process(io_uring=None)).state is State.NOT_HERE


@pytest.mark.parametrize(
    ("soft", "state", "found"),
    [
        (
            8 * MIB,
            State.WARN,
            "8 MiB may be locked, all Iovs of this user together: transfers of the others are slower",
        ),
        (256 * MIB - 1, State.WARN, "256 MiB may be locked, all Iovs of this user together: "),
        (256 * MIB, State.OK, "256 MiB may be locked, all Iovs of this user together"),
    ],
)
def test_memory_of_iovs(tmp_path: Path, soft: int, state: State, found: str) -> None:
    result = check("iov-memory", tmp_path, process(memlock=Limit(soft, None)))
    assert result.state is state
    assert result.found.startswith(found)
    assert result.fix[:1] == (("ulimit -l unlimited",) if state is State.WARN else ())


def test_memory_of_iovs_without_a_limit_that_holds(tmp_path: Path) -> None:
    assert check("iov-memory", tmp_path, process(memlock=UNLIMITED)).found == "unlimited"
    free = check("iov-memory", tmp_path, process(memlock=Limit(MIB, MIB), locks_freely=True))
    assert free.found == "1 MiB may be locked, and this process may exceed it (CAP_IPC_LOCK)"
    threads = process(memlock=Limit(0, 0), io_uring=IoUring(usable=False, cause="kernel", why="the reason", fix="it"))
    assert check("iov-memory", tmp_path, threads).state is State.NOT_HERE


@pytest.mark.parametrize(
    ("limit", "container", "state", "fix"),
    [
        (UNLIMITED, "", State.OK, ()),
        (Limit(4161, 4161), "", State.OK, ()),
        (Limit(4160, None), "", State.WARN, ("ulimit -n 65536",)),
        (Limit(66, None), "", State.WARN, ("ulimit -n 65536",)),
        (Limit(1024, 8192), "docker", State.WARN, ("ulimit -n 8192",)),
        (Limit(1024, 1024), "docker", State.WARN, ("docker run --ulimit nofile=65536 …",)),
    ],
)
def test_files_of_a_servers_clients(
    tmp_path: Path, limit: Limit, container: str, state: State, fix: tuple[str, ...]
) -> None:
    found = in_container(tmp_path, "served-files", container, descriptors=limit)
    assert (found.state, found.fix) == (state, fix)
    if limit.soft == 66:
        assert found.found == "66 descriptors: too few for a server with 8 clients"
    elif limit.soft is not None:
        files = (limit.soft - 65) // 2  # a server has some for itself, and takes some for each client
        told = f"{limit.soft} descriptors: a server with 8 clients may have {files} of their files open at most"
        assert found.found == told


def test_the_descriptors_of_a_server(tmp_path: Path) -> None:
    """What the check counts is what a server's process takes."""
    (tmp_path / "data").write_bytes(b"there")
    code = (
        "import sys; from zerohop import storage; from zerohop.machine.descriptors import open_descriptors\n"
        "server = storage.Server(sys.argv[1], providers=('shm', 'tcp'))\n"
        "print(server.url, flush=True)\n"
        "for line in sys.stdin: print(open_descriptors(), flush=True)\n"
    )
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}  # drivers of GPUs take more
    pipe, command = subprocess.PIPE, [sys.executable, "-c", code, str(tmp_path)]
    with (
        subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment) as process,
        contextlib.ExitStack() as stores,
    ):
        stores.callback(process.kill)
        assert process.stdin is not None
        assert process.stdout is not None
        url = process.stdout.readline().strip()

        def taken() -> int:
            assert process.stdin is not None
            assert process.stdout is not None
            print(file=process.stdin, flush=True)
            return int(process.stdout.readline())

        idle = taken()
        assert OF_SERVER - 10 <= idle <= OF_SERVER
        found = [stores.enter_context(storage.open_store(url)) for _ in range(3)]
        clients = taken()
        assert clients - idle <= 3 * OF_CLIENT
        files = [stores.enter_context(store.open("data").result(PATIENCE_S)) for store in found for _ in range(4)]
        assert taken() - clients == OF_FILE * len(files)


@pytest.mark.parametrize(("version", "found"), [(None, "not loaded"), ("", "loaded"), ("2.20.6", "loaded (2.20.6)")])
def test_the_state_of_gpudirect_storage(tmp_path: Path, version: str | None, found: str) -> None:
    sysfs = healthy(tmp_path)
    if version is not None:
        sysfs.put("sys/module/nvidia_fs", **({"version": version} if version else {}))
    result = check("gds", tmp_path)
    assert (result.state, result.fix) == (State.NOT_HERE, ())
    assert result.found.startswith("not used: bytes between files and GPUs pass through host buffers")
    assert result.found.endswith(f"nvidia_fs is {found}")


@pytest.mark.parametrize(
    ("said", "loaded", "state", "fix"),
    [
        ("", True, State.OK, ""),
        ("", False, State.OK, ""),  # cuFile has another way than that driver
        ("cuFileDriverOpen: CU_FILE_DRIVER_VERSION_MISMATCH", True, State.WARN, "install cuFile and nvidia-fs of one"),
        ("libcufile.so.0: cannot open shared object file", True, State.WARN, "install cuFile: apt-get install"),
        ("libcufile.so.0 has no cuFileSetParameterBool: it is too old", True, State.WARN, "install a newer cuFile"),
        ("with its compatibility mode", True, State.WARN, "start the program with CUFILE_ALLOW_COMPAT_MODE=false"),
        ("cuFileDriverOpen: CU_FILE_DRIVER_NOT_INITIALIZED", False, State.NOT_HERE, ""),
    ],
)
def test_gpudirect_storage(tmp_path: Path, said: str, loaded: bool, state: State, fix: str) -> None:
    sysfs = healthy(tmp_path)
    if loaded:
        sysfs.put("sys/module/nvidia_fs")
    result = in_container(tmp_path, "gds", "", gpudirect=read_gpudirect(said))
    assert result.state == state
    assert ("".join(result.fix).removeprefix("# ").startswith(fix)) if fix else result.fix == ()
    assert said in result.found
    assert ("not verified on hardware" in result.found) == (not said)


def test_gpudirect_storage_without_a_gpu(tmp_path: Path) -> None:
    assert check("gds", tmp_path).found == "this machine has no NVIDIA GPU"
