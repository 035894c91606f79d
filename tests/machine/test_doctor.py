"""The doctor as a whole: servers on which all is well, verdicts on several devices, choice of checks, the page."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from support.doctor import check, facts, guest, healthy, process, read, states
from support.sysfs import Sysfs
from zerohop.machine.doctor import CHECKS, State, diagnose, read_system
from zerohop.machine.doctor.check import Verdict, combined, fail, not_here, ok, shortened, warn

PAGE = Path(__file__).parents[2] / "docs/doctor.md"
NAMES = [check.name for check in CHECKS]


def test_an_infiniband_server_that_has_everything(tmp_path: Path) -> None:
    healthy(tmp_path)
    expected = dict.fromkeys(NAMES, "OK") | dict.fromkeys(("soft-roce", "settings", "subnets", "gds"), "n/a")
    assert states(diagnose(read(tmp_path))) == expected


def test_a_roce_server_that_has_everything(tmp_path: Path) -> None:
    healthy(tmp_path, roce=True)
    expected = dict.fromkeys(NAMES, "OK") | dict.fromkeys(("soft-roce", "settings", "gds"), "n/a")
    assert states(diagnose(read(tmp_path))) == expected


def test_a_machine_with_a_software_device(tmp_path: Path) -> None:
    guest(tmp_path)
    found = states(diagnose(read(tmp_path, process(verbs=(facts("rxe0"),)))))
    not_there = {"settings", "link-speed", "link-errors", "gds"}
    not_there |= {check.name for check in CHECKS if check.family in ("gpu", "pcie")}
    assert found == dict.fromkeys(NAMES, "OK") | dict.fromkeys(not_there, "n/a") | {"soft-roce": "WARN"}


def test_a_machine_without_any_of_it_says_why_each_check_does_not_apply(tmp_path: Path) -> None:
    Sysfs(tmp_path).put("proc/sys/kernel", osrelease="6.1.0")
    checks = diagnose(read(tmp_path, process(verbs=())))
    at_home = {"versions", "proc", "libibverbs", "descriptors", "shared-memory", "address-space"}
    at_home |= {"io-uring", "iov-memory", "served-files"}
    assert states(checks) == dict.fromkeys(NAMES, "n/a") | dict.fromkeys(at_home, "OK")
    for each in checks:
        assert each.found, each.name
        assert each.fix == (), each.name


def test_this_machine_can_be_looked_at() -> None:
    checks = diagnose(read_system())
    assert [each.name for each in checks] == NAMES
    for each in checks:
        assert bool(each.fix) or each.state in (State.OK, State.NOT_HERE) or each.name == "rdma-device", each


def test_a_card_without_a_device_is_told_by_the_checks_that_can(tmp_path: Path) -> None:
    """The rest says that there is no device yet, and not that the machine has no NIC."""
    sysfs = Sysfs(tmp_path)
    sysfs.pci("0000:3b:00.0", "mlx5_core", vendor="0x15b3", device="0x101d", **{"class": "0x020000"})
    checks = diagnose(read(tmp_path, process(verbs=())))
    failed = [each.name for each in checks if each.state is State.FAIL]
    assert failed == ["rdma-device", "kernel-modules"]
    assert {each.found for each in checks if each.family in ("port", "address")} == {
        "no RDMA device yet: see rdma-device"
    }


def test_the_worst_state_counts_and_what_is_fine_is_counted() -> None:
    verdict = combined([("a", ok("x")), ("b", warn("slow", "faster")), ("c", ok("x")), ("d", fail("gone", "come"))])
    assert verdict == Verdict(State.FAIL, "d: gone; b: slow; the other 2 are fine", ("come", "faster"))
    verdict = combined([("a", ok("x")), ("b", warn("slow", "faster"))])
    assert verdict.found == "b: slow; the other 1 is fine"


def test_where_one_is_enough_the_others_are_a_warning() -> None:
    pairs = [("a", ok("x")), ("b", fail("down", "up"))]
    assert combined(pairs, one_is_enough=True) == warn("b: down; the other 1 is fine", "up")
    assert combined(pairs[1:], one_is_enough=True) == fail("b: down", "up")
    assert combined([("a", not_here("away")), *pairs[1:]], one_is_enough=True).state is State.FAIL


def test_alike_ones_are_told_together_and_fixes_once() -> None:
    pairs = [(f"n{number}", fail("gone", f"bring {number % 2}")) for number in range(4)]
    assert combined(pairs) == fail("n0, n1, n2, n3: gone", "bring 0", "bring 1")
    assert combined((name, ok("here")) for name, _ in pairs) == ok("n0 … n3 (4): here")
    assert combined([("a", not_here("away")), ("b", ok("here"))]) == ok("b: here")
    assert combined([("a", not_here("away")), ("b", not_here("far"))]) == not_here("a: away; b: far")


def test_many_names_are_shortened() -> None:
    assert shortened(["a", "b", "c"]) == "a, b, c"
    assert shortened(["a", "b", "c", "d"]) == "a … d (4)"


def test_checks_can_be_chosen(tmp_path: Path) -> None:
    system = read(tmp_path)
    assert [each.name for each in diagnose(system, ["mtu", "memlock"])] == ["mtu", "memlock"]
    assert {each.family for each in diagnose(system, (), ["gpu"])} == {"gpu"}
    both = [each.name for each in diagnose(system, ["memlock"], ["address"])]
    assert both == ["gid", "subnets", "pkey", "memlock"]
    with pytest.raises(ValueError, match=r"no check 'memloc'; there are rdma-device, .*memlock"):
        diagnose(system, ["memloc"])
    with pytest.raises(ValueError, match="no family 'nic'; there are device, software"):
        diagnose(system, (), ["nic"])


def test_a_check_as_json(tmp_path: Path) -> None:
    found = check("memlock", tmp_path).to_json()
    assert json.loads(json.dumps(found)) == found
    assert set(found) == {"name", "family", "state", "found", "why", "fix"}
    assert (found["name"], found["family"], found["state"], found["fix"]) == ("memlock", "limits", "n/a", [])


def test_the_page_has_every_check_once_in_its_family() -> None:
    text = PAGE.read_text("utf-8")
    rows = re.findall(r"^\| `([a-z-]+)` \|", text, re.MULTILINE)
    assert sorted(rows) == sorted(NAMES)
    for family in dict.fromkeys(each.family for each in CHECKS):
        section = text.partition(f"## {family}\n")[2].partition("\n## ")[0]
        assert re.findall(r"^\| `([a-z-]+)` \|", section, re.MULTILINE) == [
            each.name for each in CHECKS if each.family == family
        ]
