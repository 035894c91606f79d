"""`zerohop serve`: what it prints is what a client needs, a signal ends it, and what cannot be served is said."""

from __future__ import annotations

import re
import resource
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import zerohop as zh
from cli.command import zerohop, zerohop_started
from support.patience import PATIENCE_S
from support.pattern import pattern
from zerohop import storage

if TYPE_CHECKING:
    from pathlib import Path


def url_of(process: subprocess.Popen[str]) -> str:
    """The URL that the server prints, for ``open_store``."""
    assert process.stdout is not None
    said = process.stdout.readline()
    assert said.startswith("serving "), said
    found = re.fullmatch(r"from zerohop.storage .* = open_store\('(zerohop://.*)'\)\n", process.stdout.readline())
    assert found is not None
    return found.group(1)


@pytest.mark.parametrize("ends", [signal.SIGINT, signal.SIGTERM])
def test_files_are_served_until_a_signal(tmp_path: Path, ends: signal.Signals) -> None:
    there = pattern(3, 100_000)
    (tmp_path / "data").write_bytes(there.tobytes())
    with zerohop_started("serve", tmp_path) as process:
        target = there * 0
        with storage.open_store(url_of(process)) as store, store.open("data", "r+").result(PATIENCE_S) as file:
            assert file.read_into(target).result(PATIENCE_S) == 100_000
            assert (target == there).all()
            file.write_from(target[:10], 90).result(PATIENCE_S)
        process.send_signal(ends)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, err) == (0, "")
    assert "97.7 KiB were read, 10 B written" in out


def test_what_it_prints_can_be_pasted(tmp_path: Path) -> None:
    """The second line is a program of its own, whatever the folder is called."""
    folder = tmp_path / "[red]data :smile: 'of' a \"user\""
    folder.mkdir()
    (folder / "data").write_bytes(b"there")
    with zerohop_started("serve", folder) as process:
        assert process.stdout is not None
        first, line = process.stdout.readline(), process.stdout.readline()
        assert first.startswith(f"serving {folder} by ")
        run = subprocess.run(
            [sys.executable, "-c", f"{line}print(store.listdir().result({PATIENCE_S}), flush=True); store.close()"],
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE_S,
            check=False,
        )
    assert (run.stdout, run.stderr, run.returncode) == ("['data']\n", "", 0)


@pytest.mark.parametrize("most", [16, 24, 32, 40])
def test_too_few_descriptors(tmp_path: Path, most: int) -> None:
    """It ends at once and says what to type, and does not first take clients that cannot open anything."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    run = zerohop("serve", tmp_path, preexec=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard)))
    assert run.returncode == 2, run.stdout + run.stderr
    assert run.stdout == ""
    assert f"RLIMIT_NOFILE is {most}" in run.stderr
    assert re.search(r"Fix: raise the limit: ulimit -n \d+\n", run.stderr)
    assert "Traceback" not in run.stderr


def test_few_descriptors_for_good(tmp_path: Path) -> None:
    """The advice asks for no more descriptors than the user may have."""
    run = zerohop("serve", tmp_path, preexec=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (40, 1000)))
    assert run.stderr.endswith("Fix: raise the limit: ulimit -n 1000\n")


def test_read_only(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"kept")
    with (
        zerohop_started("serve", tmp_path, "--read-only", "--memory", "8Mi", "--threads", 2) as process,
        storage.open_store(url_of(process)) as store,
    ):
        for refused in (lambda: store.open("data", "r+"), lambda: store.unlink("data")):
            with pytest.raises(zh.StorageError, match="--read-only"):
                refused().result(PATIENCE_S)
    assert (tmp_path / "data").read_bytes() == b"kept"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([""], "No such file or directory"),
        (
            ["/no/such/folder"],
            "serve: No such file or directory: '/no/such/folder'. Fix: name a folder that is",
        ),
        (["/etc/passwd"], "Not a directory"),
        (["/tmp", "--memory", "1"], "memory must be from"),
        (["/tmp", "--memory", "much"], "--memory is one size such as 64Mi or 1Gi, not 'much'"),
        (["/tmp", "--memory", "1Mi,2Mi"], "--memory is one size such as 64Mi or 1Gi, not '1Mi,2Mi'"),
        (["/tmp", "--memory", "2Ti"], "memory must be from"),
        (["/tmp", "--listen", "nonsense"], "nonsense"),
        (["/tmp", "--listen", "0.0.0.0:0"], "secret"),
    ],
)
def test_what_cannot_be_served(arguments: list[str], said: str) -> None:
    run = zerohop("serve", *arguments)
    assert run.returncode == 2, run.stdout + run.stderr
    assert said in run.stderr
    assert "Traceback" not in run.stderr


def test_where_it_listens_by_the_environment(tmp_path: Path) -> None:
    run = zerohop("serve", tmp_path, ZEROHOP_LISTEN="0.0.0.0:0")
    assert run.returncode == 2, run.stdout + run.stderr
    assert "secret" in run.stderr
