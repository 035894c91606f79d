"""Scripts that set up: what they ask for, and that they say what they do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.patience import PATIENCE_S

SCRIPTS = Path(__file__).parent.parent / "scripts"
NO_DOCTEST = """#!/bin/sh
! grep -q doctest
"""


def progressing(log: Path, command: str) -> subprocess.Popen[str]:
    """Of a shell's command, said twice a second."""
    return subprocess.Popen(
        [SCRIPTS / "progress.sh", log, "doing it", "bash", "-c", command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PROGRESS_SECONDS": "0.5"},
    )


def progress(log: Path, command: str) -> subprocess.CompletedProcess[str]:
    with progressing(log, command) as run:
        out, err = run.communicate(timeout=PATIENCE_S)
    return subprocess.CompletedProcess(run.args, run.returncode, out, err)


@pytest.mark.parametrize(
    ("says", "heard"),
    [
        ("[1/9] Building a\n  [57/131] Building b", "57 of 131 steps"),
        ("Collecting numpy\n\n", "Collecting numpy"),
        ("", ""),
    ],
)
def test_progress_is_said_meanwhile(says: str, heard: str, tmp_path: Path) -> None:
    heard_it = tmp_path / "heard it"
    command = f"printf %s '{says}'; until [ -e '{heard_it}' ]; do sleep 0.05; done"
    with progressing(tmp_path / "log", command) as run:
        assert run.stderr is not None
        assert run.stderr.readline() == "zerohop: doing it\n"
        second = run.stderr.readline()
        heard_it.touch()
        out, _ = run.communicate(timeout=PATIENCE_S)
    assert run.returncode == 0
    assert second.startswith("zerohop: doing it, for ")
    assert second.endswith(f" s: {heard}\n")
    assert out == ""


def test_progress_shows_the_end_of_what_failed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    run = progress(log, "echo '[1/2] Building x'; seq 1000; echo error: no; exit 3")
    assert run.returncode == 3
    assert "Building" not in run.stderr
    assert run.stderr.endswith("1000\nerror: no\n")
    assert len(run.stderr.splitlines()) < 100
    assert log.read_text().startswith("[1/2] Building x\n1\n2\n")


def test_progress_leaves_nothing_that_holds_its_output(tmp_path: Path) -> None:
    """Else whoever reads it to its end would wait on."""
    subprocess.run(
        [SCRIPTS / "progress.sh", tmp_path / "log", "doing it", "true"], capture_output=True, timeout=5, check=True
    )


def setup(tmp_path: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """scripts/setup.sh for a user who is not root, where there is apt-get and no doctest."""
    for folder in ("bin", "scripts"):
        (tmp_path / folder).mkdir()
    for script in ("setup.sh", "progress.sh"):
        shutil.copy(SCRIPTS / script, tmp_path / "scripts")
    for name, text in {"c++": NO_DOCTEST, "id": "#!/bin/sh\necho 1000\n", "apt-get": "#!/bin/sh\nexit 1\n"}.items():
        program = tmp_path / "bin" / name
        program.write_text(text)
        program.chmod(0o755)
    env = os.environ | {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"} | environment
    return subprocess.run(
        [tmp_path / "scripts" / "setup.sh", *arguments], capture_output=True, text=True, env=env, check=False
    )


def test_native_tests_need_doctest(tmp_path: Path) -> None:
    run = setup(tmp_path, "--native-tests", "test")
    assert run.returncode == 1
    assert run.stderr.endswith("    sudo apt-get update && sudo apt-get install -y doctest-dev\n")


def test_nothing_else_needs_doctest(tmp_path: Path) -> None:
    """Without an interpreter it goes no further, and says all that it asks for."""
    run = setup(tmp_path, "test", PYTHON="false")
    assert run.returncode == 1
    assert run.stderr.endswith("apt-get install -y python3 python3-venv python3-dev\n")


@pytest.mark.parametrize(
    ("file", "included", "allowed"),
    [
        ("engine/engine.hpp", "base/clock.hpp", True),
        ("base/clock.hpp", "engine/engine.hpp", False),
        ("provider/shm/ring.hpp", "provider/tcp/stream.hpp", False),
        ("group/rank.hpp", "engine/engine.hpp", True),
        ("group/rank.hpp", "provider/shm/ring.hpp", False),
        ("providers.cpp", "provider/shm/ring.hpp", True),
    ],
)
def test_rooms_of_native_code_have_an_order(file: str, included: str, allowed: bool, tmp_path: Path) -> None:
    for name, text in ((included, ""), (file, f'#include "{included}"\n')):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    run = subprocess.run([SCRIPTS / "native_order.py", tmp_path], capture_output=True, text=True, check=False)
    assert run.returncode == (0 if allowed else 1), run.stderr
    assert (f"native/{file} may not include {included}: " in run.stdout) != allowed


@pytest.mark.parametrize(
    ("file", "text", "allowed"),
    [
        ("lanes/a.py", "def use(thing: Thing): return thing._part", True),
        ("memory/a.py", "def use(thing: Thing): return thing._part", False),
        ("memory/a.py", "def use(thing): return thing._part", False),
        ("memory/a.py", "from lanes.thing import _helper", False),
        ("memory/a.py", "class Other:\n    def use(self): return self._part", True),
        # The room has a name like it, but the object is of another room.
        ("memory/a.py", "class Other:\n    _part = 1\ndef use(thing: Thing): return thing._part", False),
        ("memory/a.py", "def use(array): return array._of_another_library", True),
        ("lanes/thing.py", "class Thing:\n    def __init__(self, other: Thing): self._part = other._part", True),
    ],
)
def test_rooms_keep_their_private_names(file: str, text: str, allowed: bool, tmp_path: Path) -> None:
    for name, lines in (("lanes/thing.py", "class Thing:\n    _part = 1\ndef _helper(): pass"), (file, text)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(lines)
    run = subprocess.run([SCRIPTS / "private_names.py", tmp_path], capture_output=True, text=True, check=False)
    assert (run.returncode == 0) is allowed, run.stdout
    assert allowed or f"{file}:" in run.stdout


def test_a_first_write_calls_upward_by_callbacks_alone() -> None:
    """Few calls go to a room above, and all of them to what that room has handed down."""
    pytest.importorskip("tomllib")
    run = subprocess.run([sys.executable, SCRIPTS / "call_order.py"], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "calls between rooms" in run.stdout
