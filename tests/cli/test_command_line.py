"""The command line itself: help that is quick, options that are checked."""

from __future__ import annotations

import subprocess
import sys

from cli.command import zerohop


def test_help_names_the_commands() -> None:
    run = zerohop("--help")
    assert run.returncode == 0
    for command in ("info", "demo", "bench"):
        assert command in run.stdout
    assert "inject" not in zerohop("demo", "--help").stdout


def test_help_imports_neither_the_native_module_nor_numpy_of_its_own() -> None:
    """Whatever `import zerohop` needs is imported; the commands' own modules are not."""
    code = (
        "import sys, zerohop.cli.app\n"
        "heavy = {'zerohop._floors', 'zerohop.cli.demo', 'zerohop.cli.bench', 'zerohop.cli.info', 'matplotlib'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert run.stdout.strip() == "[]"


def test_version() -> None:
    run = zerohop("--version")
    assert run.returncode == 0
    assert run.stdout.startswith("zerohop ")


def test_wrong_options_are_refused() -> None:
    assert zerohop("bench", "--src", "moon").returncode == 2
    assert zerohop("demo", "--input", "/does/not/exist").returncode == 2
    assert zerohop("nothing").returncode == 2
    run = zerohop("bench", "wirte")
    assert run.returncode == 2
    assert "unknown name 'wirte'; there are write, read" in run.stderr
