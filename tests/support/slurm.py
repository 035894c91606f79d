"""A cluster of Slurm with one node, this machine, for as long as a test needs it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from support.patience import patience

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
AuthInfo=socket={folder}/munge.socket
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SlurmUser=root
StateSaveLocation={folder}
SlurmdSpoolDir={folder}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
NodeName={host} NodeAddr=127.0.0.1 CPUs={processors}
PartitionName=all Nodes={host} Default=YES State=UP OverSubscribe=YES:8
"""
_PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sinfo")
_PATH = f"{os.environ['PATH']}:/usr/sbin"


def why_not() -> str:
    """Say why there can be no cluster here; nothing if there can."""
    missing = [name for name in _PROGRAMS if shutil.which(name, path=_PATH) is None]
    if missing:
        return f"not installed: {', '.join(missing)} (slurm-wlm, munge)"
    return "" if os.getuid() == 0 else "slurmd wants root"


@contextmanager
def cluster(folder: Path) -> Iterator[dict[str, str]]:
    """Yield the environment for `srun` as soon as the node is idle, and end the daemons at the end."""
    folder.chmod(0o755)  # munged checks who may write to the folders of its socket
    key = folder / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(os.urandom(128))
    configuration = folder / "slurm.conf"
    with socket.create_server(("127.0.0.1", 0)) as first, socket.create_server(("127.0.0.1", 0)) as second:
        ports = [first.getsockname()[1], second.getsockname()[1]]
    host = socket.gethostname().partition(".")[0]
    configuration.write_text(
        _CONFIGURATION.format(host=host, ports=ports, folder=folder, processors=os.cpu_count() or 1)
    )
    environment = {**os.environ, "PATH": _PATH, "SLURM_CONF": str(configuration)}
    files = [f"--{name}-file={folder}/munge.{name}" for name in ("key", "pid", "log", "seed")]
    munged = ["munged", "-F", "-f", f"--socket={folder}/munge.socket", *files]
    with ExitStack() as daemons, (folder / "log").open("wb") as log:
        for command in (munged, ["slurmctld", "-D"], ["slurmd", "-D"]):
            process = daemons.enter_context(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
            daemons.callback(process.terminate)
        _wait_for_node(environment, folder / "log")
        yield environment


def _wait_for_node(environment: dict[str, str], log: Path) -> None:
    """Ask until the node is idle; a cluster has no event for that."""
    until = time.monotonic() + patience(30)
    while True:
        asked = subprocess.run(
            ["sinfo", "-h", "-o", "%t"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=patience(20),
            check=False,
        )
        if asked.stdout.strip() == "idle":
            return
        if time.monotonic() > until:
            raise AssertionError(
                f"the node is {asked.stdout or asked.stderr}: {log.read_text(errors='replace')[-3000:]}"
            )
        time.sleep(0.2)
