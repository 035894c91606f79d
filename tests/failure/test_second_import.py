"""Importing the library a second time, as programs do that reload modules."""

from __future__ import annotations

import subprocess
import sys

import pytest

from support.patience import ANSWER_S

pytestmark = pytest.mark.unprivileged

TWICE = """
import sys, zerohop
context = zerohop.Context()
for name in [name for name in sys.modules if name.partition(".")[0] == "zerohop"]:
    del sys.modules[name]
try:
    import zerohop
except ImportError as error:
    print(error)
context.close()
"""


def test_the_process_lives() -> None:
    ran = subprocess.run([sys.executable, "-c", TWICE], capture_output=True, text=True, timeout=ANSWER_S, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "cannot be loaded again" in ran.stdout
