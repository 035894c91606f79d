"""`zerohop doctor`: what it prints, as JSON and for people, and how it ends."""

from __future__ import annotations

import io
import json
import re
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from cli.command import zerohop
from support.doctor import facts, guest, healthy, process, read
from zerohop.cli.doctor import run, show
from zerohop.machine.doctor import CHECKS, diagnose
from zerohop.machine.host import Limit

if TYPE_CHECKING:
    from pathlib import Path

    from zerohop.machine.doctor import System


def shown(system: System, *, width: int = 160, colour: bool = False) -> str:
    output = io.StringIO()
    console = Console(
        file=output, width=width, color_system="standard" if colour else None, force_terminal=colour, highlight=False
    )
    show(diagnose(system), console)
    return output.getvalue()


def broken(root: Path) -> System:
    """The guest with a device file that is missing, and little memory to lock."""
    guest(root)
    (root / "dev/infiniband/uverbs0").unlink()
    verbs = (facts("rxe0", why_not="cannot open the RDMA device rxe0"),)
    return read(root, process(verbs=verbs, memlock=Limit(65536, 65536)))


def test_a_server_on_which_all_is_well(tmp_path: Path) -> None:
    healthy(tmp_path)
    text = shown(read(tmp_path))
    assert text.startswith("device\n OK    rdma-device       mlx5_0 (mlx5_core, 0000:18:00.0), ")
    assert "\n OK    memlock           unlimited\n" in text
    assert text.endswith("\n\n40 OK, 4 n/a\n")
    assert "why:" not in text
    assert not [line for line in text.splitlines() if line != line.rstrip()]


def test_what_fails_is_told_again_at_the_end_with_what_to_type(tmp_path: Path) -> None:
    text = shown(broken(tmp_path))
    table, _, end = text.partition("FAIL: 3 of 44 checks; to be typed as root:\n")
    assert " FAIL  device-node       rxe0: /dev/infiniband/uverbs0 is missing\n" in table
    assert "why: a program opens /dev/infiniband/uverbsN to use a device\n" in table
    assert "  device-node: rxe0: /dev/infiniband/uverbs0 is missing\n    udevadm trigger --subsystem" in end
    assert "  memlock: 64 KiB may be locked: not enough to register anything of use\n    printf '* soft" in end
    assert "soft-roce" not in end  # a WARN: told above
    assert end.endswith("\n\n18 OK, 2 WARN, 3 FAIL, 21 n/a\n")


def test_what_is_no_command_is_marked_only_where_commands_are_copied_from(tmp_path: Path) -> None:
    table, _, end = shown(broken(tmp_path)).partition("to be typed as root:\n")
    (row,) = re.findall(r"^ FAIL  memlock.*(?:\n {20}.*)+", table, re.MULTILINE)
    assert row.count("fix: ") == 1
    assert re.search(r"^ {25}fix: printf .*\n {30}then log in again\n", row, re.MULTILINE)
    assert "    # then log in again\n" in end


def test_what_does_not_apply_is_told_once_for_all_checks(tmp_path: Path) -> None:
    text = shown(read(tmp_path, process(verbs=())))
    assert " n/a                     gid, subnets, pkey: this machine has no RDMA device\n" in text
    assert " n/a   soft-roce         no software device\n" in text


def test_a_narrow_terminal_folds_what_is_long(tmp_path: Path) -> None:
    lines = shown(broken(tmp_path), width=70, colour=True).splitlines()
    assert any("\x1b[1;31mFAIL" in line for line in lines)
    assert any("\x1b[33mWARN" in line for line in lines)


def test_what_comes_from_the_machine_is_not_taken_as_markup(tmp_path: Path) -> None:
    guest(tmp_path)
    verbs = (facts("rxe0", why_not="[red]no[/]"),)
    assert "rxe0: [red]no[/]: see device-node" in shown(read(tmp_path, process(verbs=verbs)))


@pytest.mark.parametrize("as_json", [False, True])
def test_the_exit_status_tells_of_failures_only(
    tmp_path: Path, as_json: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(as_json=as_json, system=broken(tmp_path)) == 1
    warned = read(tmp_path, process(verbs=(facts("rxe0"),)))
    assert run(as_json=as_json, names=["soft-roce"], system=warned) == 0
    assert "WARN" in capsys.readouterr().out


def test_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(as_json=True, system=broken(tmp_path))
    told = json.loads(capsys.readouterr().out)
    assert set(told) == {"checks", "counts"}
    assert [check["name"] for check in told["checks"]] == [check.name for check in CHECKS]
    assert sum(told["counts"].values()) == len(CHECKS)
    assert told["counts"]["FAIL"] == 3
    node = next(check for check in told["checks"] if check["name"] == "device-node")
    assert (node["family"], node["state"]) == ("device", "FAIL")
    assert node["fix"] == ["udevadm trigger --subsystem-match=infiniband_verbs", "ls -l /dev/infiniband/uverbs0"]


def test_the_command() -> None:
    ended = zerohop("doctor", "--json")
    told = json.loads(ended.stdout)
    assert ended.returncode == (1 if told["counts"]["FAIL"] else 0), ended.stderr
    assert "versions" in [check["name"] for check in told["checks"]]


def test_checks_are_chosen_on_the_command_line() -> None:
    ended = zerohop("doctor", "--only", "versions", "--only", "descriptors", "--family", "gpu")
    assert ended.returncode in (0, 1), ended.stderr
    assert [line for line in ended.stdout.splitlines() if line and line[0].isalpha()][:3] == [
        "software",
        "limits",
        "gpu",
    ]
    assert " versions " in ended.stdout
    assert "fork" not in ended.stdout


def test_a_check_that_there_is_not() -> None:
    ended = zerohop("doctor", "--only", "memloc")
    assert ended.returncode == 2
    assert "there is no check 'memloc'; there are rdma-device, " in ended.stderr


def test_help_names_the_families_and_the_exit_status() -> None:
    told = " ".join(zerohop("doctor", "--help", COLUMNS="200").stdout.split())
    assert "The exit status is 1 when a check FAILs and 0 otherwise, also when there are WARNs." in told
    families = list(dict.fromkeys(check.family for check in CHECKS))
    assert f"Only {', '.join(families[:-1])} or {families[-1]}; may be repeated." in told
