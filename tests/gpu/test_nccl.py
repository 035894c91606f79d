"""NCCL and zerohop in the same processes, on the same GPUs, at the same time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.buffers import GPUS
from support.patience import PATIENCE_S, patience

torch: Any = pytest.importorskip("torch")
RANK = Path(__file__).parent / "nccl.py"
LIMIT_S = patience(90.0)


@pytest.mark.timeout(120)
@pytest.mark.skipif(GPUS < 2, reason="NCCL wants a GPU for each of two ranks")
def test_both_at_once(tmp_path: Path) -> None:
    """Every value that NCCL reduced and every byte that was written is right, and the bytes went directly."""
    command = [sys.executable, str(RANK)]
    ranks = [
        subprocess.Popen([*command, str(rank), str(tmp_path / "store")], stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    try:
        said = [json.loads(rank.communicate(timeout=LIMIT_S)[0].splitlines()[-1]) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait(PATIENCE_S)
    assert [each["failures"] for each in said] == [[], []]
    assert all(each["path"].startswith("p2p (nvlink)") or "direct" in each["path"] for each in said)
