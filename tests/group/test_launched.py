"""Programs of ranks that real launchers start: torchrun, mpirun with PMIx and with mpi4py, and srun."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support import slurm
from support.patience import patience

if TYPE_CHECKING:
    from collections.abc import Mapping

pytestmark = [pytest.mark.slow, pytest.mark.timeout(patience(200))]

# The last of very many ranks begins when the first has waited for a minute.
RING = """
import os
import numpy as np
import zerohop as zh

with zh.Group.from_env() as group:
    right = group.connect((group.rank + 1) % group.size, timeout=160).result()
    received = np.zeros(1, np.int64)
    receiving = group.context.recv(received, timeout=160)
    right.send(np.array([group.rank]), timeout=160).result()
    receiving.result()
    os.write(1, f"{group!r}: {received[0]}\\n".encode())  # in one piece
"""
WITHOUT_PMIX = f"""
import zerohop.group.launchers

zerohop.group.launchers.open_pmix = lambda _: None
{RING}
"""
# The second rank comes late, and the third never makes its Group. A file says that they may end.
MISSING = """
import contextlib
import pathlib
import time
import zerohop as zh
from zerohop.group.launchers import launch_of_process

rank, ended = launch_of_process(60).rank, pathlib.Path("ended")
if rank == 1:
    time.sleep(1)  # the first rank waits for this one meanwhile
with zh.Group.from_env() if rank < 2 else contextlib.nullcontext() as group:
    if rank == 0:
        print(group.connect(1).result(60).alive, flush=True)
        print(group.connect(2, timeout=1.5).exception(60), flush=True)
        ended.touch()
    while not ended.exists():
        time.sleep(0.05)  # the ranks share a folder, and no event
"""
REFUSED = """
import re
import zerohop as zh

try:
    zh.Group.from_env()
except zh.Unsupported as error:
    print(re.search("Fix: srun --mpi=pmix", str(error)).group(), flush=True)
"""


def launch(tmp_path: Path, command: list[str], text: str, environment: Mapping[str, str] = os.environ) -> list[str]:
    """Run a program with a launcher, and return the lines that it has printed."""
    (tmp_path / "program.py").write_text(text)
    environment = {key: value for key, value in environment.items() if not key.startswith("ZEROHOP_")}
    run = subprocess.run(
        [*command, str(tmp_path / "program.py")],
        capture_output=True,
        text=True,
        timeout=patience(170),
        env=environment,
        cwd=tmp_path,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return sorted(run.stdout.splitlines())


def mpirun(ranks: int) -> list[str]:
    """Return the command that starts a Python program with Open MPI."""
    found = shutil.which("mpirun", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if found is None:
        pytest.skip("mpirun is not installed")
    as_root = ["--allow-run-as-root"] if os.getuid() == 0 else []
    return [found, *as_root, "--oversubscribe", "-n", str(ranks), sys.executable]


def expected(ranks: int, launcher: str) -> list[str]:
    return [f"<Group, rank {rank} of {ranks}, by {launcher}>: {(rank - 1) % ranks}" for rank in range(ranks)]


def test_256_ranks_on_one_host(tmp_path: Path) -> None:
    """Each connects with its neighbours alone."""
    command = [sys.executable, "-m", "zerohop.cli", "run", "-n", "256"]
    assert launch(tmp_path, command, RING) == sorted(expected(256, "zerohop run"))


def test_torchrun(tmp_path: Path) -> None:
    pytest.importorskip("torch.distributed")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    assert launch(tmp_path, command, RING) == expected(2, "torchrun")


def test_pmix(tmp_path: Path) -> None:
    assert launch(tmp_path, mpirun(3), RING) == expected(3, "pmix")


def test_pmix_names_who_is_missing(tmp_path: Path) -> None:
    alive, error = launch(tmp_path, mpirun(3), MISSING)
    assert alive == "True"
    assert "rank 2 has not arrived" in error


def test_mpi4py(tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    assert launch(tmp_path, mpirun(2), WITHOUT_PMIX) == expected(2, "mpi4py")


@pytest.mark.skipif(bool(slurm.why_not()), reason=slurm.why_not())
def test_srun(tmp_path: Path) -> None:
    with slurm.cluster(tmp_path) as environment:
        srun = ["srun", "--overcommit", "-n", "3", sys.executable]
        assert launch(tmp_path, [srun[0], "--mpi=pmix", *srun[1:]], RING, environment) == expected(3, "pmix")
        # Without PMIx there are three that cannot find each other, and none takes itself for a group of one.
        [said] = set(launch(tmp_path, [srun[0], "--mpi=none", *srun[1:]], REFUSED, environment))
        assert said == "Fix: srun --mpi=pmix"
