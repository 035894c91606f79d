"""`zerohop run`: the ranks find each other, and all of them end when one fails, or when a signal comes."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cli.command import zerohop, zerohop_started
from support.patience import PATIENCE_S

RING = """
import os
import numpy as np
import zerohop as zh

with zh.Group.from_env() as group:
    right = group.connect((group.rank + 1) % group.size).result()
    received = np.zeros(1, np.int64)
    receiving = group.context.recv(received)
    right.send(np.array([group.rank])).result()
    receiving.result()
    os.write(1, f"{group!r}: {received[0]}\\n".encode())  # in one piece
"""
# It says that it is there, by its process id, and waits for a signal.
WAITS = """
import os, signal, sys
os.write(1, f"{os.getpid()}\\n".encode())  # in one piece
signal.pause()
"""


def script(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "script.py"
    path.write_text(text)
    return path


def is_gone(pid: int) -> bool:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    os.close(descriptor)
    return False


def test_a_ring(tmp_path: Path) -> None:
    run = zerohop("run", "-n", 3, script(tmp_path, RING))
    assert (run.returncode, run.stderr) == (0, "")
    assert sorted(run.stdout.splitlines()) == [
        f"<Group, rank {rank} of 3, by zerohop run>: {(rank - 1) % 3}" for rank in range(3)
    ]


def test_arguments_are_the_commands_own(tmp_path: Path) -> None:
    run = zerohop("run", "--ranks", 1, script(tmp_path, "import sys; print(sys.argv[1:])"), "-n", "5", "--help", "")
    assert (run.returncode, run.stdout) == (0, "['-n', '5', '--help', '']\n")


def test_any_program(tmp_path: Path) -> None:
    run = zerohop("run", "-n", 2, "sh", "-c", "test -d $ZEROHOP_STORE && echo $ZEROHOP_RANK/$ZEROHOP_SIZE")
    assert (run.returncode, sorted(run.stdout.splitlines())) == (0, ["0/2", "1/2"])


def test_the_first_rank_has_the_standard_input() -> None:
    command = [sys.executable, "-m", "zerohop.cli", "run", "-n", "2", "sh", "-c", 'echo "$ZEROHOP_RANK: $(cat)"']
    run = subprocess.run(command, input="typed", capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert sorted(run.stdout.splitlines()) == ["0: typed", "1: "]


def test_one_that_fails(tmp_path: Path) -> None:
    text = f"import os, sys\nif os.environ['ZEROHOP_RANK'] == '1': sys.exit(7)\n{WAITS}"
    run = zerohop("run", "-n", 3, script(tmp_path, text))
    assert run.returncode == 7
    assert "zerohop run: rank 1 has ended with status 7; the others are ended now" in run.stderr
    assert all(is_gone(int(line)) for line in run.stdout.split())


def test_one_that_is_killed(tmp_path: Path) -> None:
    text = f"import os, signal\nif os.environ['ZEROHOP_RANK'] == '1': os.kill(os.getpid(), signal.SIGKILL)\n{WAITS}"
    run = zerohop("run", "-n", 2, script(tmp_path, text))
    assert run.returncode == 128 + signal.SIGKILL
    assert "rank 1 has ended by SIGKILL" in run.stderr


def test_a_signal_without_a_name() -> None:
    run = zerohop("run", "-n", 1, "bash", "-c", "kill -40 $$")
    assert (run.returncode, run.stderr) == (168, "zerohop run: rank 0 has ended by signal 40\n")


def test_errors_that_nobody_can_read() -> None:
    command = [sys.executable, "-m", "zerohop.cli", "run", "-n", "1", "sh", "-c", "exit 7"]
    with Path("/dev/full").open("w") as full:
        assert subprocess.run(command, stderr=full, timeout=PATIENCE_S, check=False).returncode == 7


def test_too_few_descriptors(tmp_path: Path) -> None:
    """The launcher ends the ranks that it has started, and removes its folder."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (30, 30))

    run = zerohop("run", "-n", 100, "sleep", 60, preexec=limit, TMPDIR=str(tmp_path))
    assert run.returncode == 2
    assert re.search(r"error: rank \d\d? cannot be started: Too many open files", run.stderr), run.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_signal_while_ranks_are_started() -> None:
    text = "[ $ZEROHOP_RANK != 0 ] || kill -TERM $PPID; exec sleep 60"
    run = zerohop("run", "-n", 30, "sh", "-c", text)
    assert (run.returncode, run.stderr) == (128 + signal.SIGTERM, "")


def test_a_signal_that_is_ignored() -> None:
    """As nohup has it."""

    def ignore() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    assert zerohop("run", "-n", 1, "sh", "-c", "kill -HUP $PPID; exit 3", preexec=ignore).returncode == 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    """SIGINT comes from a terminal to the ranks, too; here it comes to all of them one after the other."""
    with zerohop_started("run", "-n", 2, script(tmp_path, WAITS)) as process:
        assert process.stdout is not None
        ranks = [int(process.stdout.readline()) for _ in range(2)]
        process.send_signal(number)
        if number == signal.SIGINT:
            for pid in ranks:
                os.kill(pid, number)
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 128 + number
    assert all(map(is_gone, ranks))
    assert "zerohop run" not in err


def test_a_launcher_that_is_killed(tmp_path: Path) -> None:
    text = f"import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n{WAITS}"
    with zerohop_started("run", "-n", 2, script(tmp_path, text)) as process:
        assert process.stdout is not None
        for _ in range(2):
            process.stdout.readline()
        process.kill()
        # The pipe ends when nobody has it any more: the ranks, which wait for a signal, were killed.
        assert process.stdout.read() == ""


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["missing.py"], "there is no file missing.py"),
        (["no-such-command"], "no-such-command is no command that can be executed"),
        ([""], "is no command"),
    ],
)
def test_no_command(command: list[str], says: str) -> None:
    run = zerohop("run", "-n", 2, *command)
    assert run.returncode == 2
    assert says in run.stderr


def test_how_many() -> None:
    assert "Missing option '-n'" in zerohop("run", "true").stderr
    assert zerohop("run", "-n", 0, "true").returncode == 2
