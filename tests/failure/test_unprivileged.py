"""The tests of permissions and limits once more without root, who passes many of them for the wrong reason."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from support.nobody import NOBODY, as_nobody

ROOT = Path(__file__).resolve().parents[2]


def _run(command: list[str], home: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if key not in ("XDG_RUNTIME_DIR", "PYTEST_ADDOPTS")}
    environment |= {"HOME": home, "TMPDIR": home, "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_as_nobody() -> None:
    """Every test marked `unprivileged` passes as a user without any right to write, signal or raise limits."""
    if os.geteuid() != 0:
        pytest.skip("not root: the tests marked `unprivileged` run as such a user in this session itself")
    home = tempfile.mkdtemp(prefix="zh-nobody-")
    try:
        os.chown(home, int(NOBODY), int(NOBODY))
        prefix = as_nobody()
        who = _run([*prefix, sys.executable, "-c", "import os; print(os.getuid(), os.access('/', os.W_OK))"], home)
        assert who.stdout.split() == [NOBODY, "False"], who.stderr
        options = ["-q", "-p", "no:cacheprovider", "-m", "unprivileged and not slow", f"--basetemp={home}/t"]
        ran = _run([*prefix, sys.executable, "-m", "pytest", *options, str(ROOT / "tests" / "failure")], home)
        said = f"{ran.stdout[-6000:]}\n{ran.stderr[-2000:]}"
        assert ran.returncode == 0, said
        passed = re.search(r"(\d+) passed", ran.stdout)
        assert passed is not None, said
        assert int(passed[1]) > 100, said
        assert "skipped" not in ran.stdout, said
    finally:
        shutil.rmtree(home)
