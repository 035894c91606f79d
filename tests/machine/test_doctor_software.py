"""The doctor's family "software", each check in its states."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from support.doctor import check, facts, guest, healthy, look, process, read
from support.sysfs import Port, Sysfs, dual_port_roce, soft_roce
from zerohop.machine.doctor import State
from zerohop.machine.doctor.process import Library
from zerohop.machine.host import why_no_context

if TYPE_CHECKING:
    from pathlib import Path

MISSING = Library("", "libibverbs.so.1: cannot open shared object file: No such file or directory")


def test_versions_are_told(tmp_path: Path) -> None:
    healthy(tmp_path)
    found = check("versions", tmp_path).found
    told = "Linux 6.8.0-45-generic (Ubuntu 24.04.1 LTS), mlx5_core 24.10-1.1.4, nvidia 550.127, firmware 28.43.1014 on"
    assert told in found
    assert found.startswith("zerohop ")


def test_without_proc(tmp_path: Path) -> None:
    why = "/proc is not mounted, and doorbells are opened through /proc/self/fd"
    assert why_no_context(tmp_path) == (why, "mount -t proc proc /proc")
    found = check("proc", tmp_path, process(no_context=why_no_context(tmp_path)))
    assert (found.state, found.found) == (State.FAIL, f"no Context can be opened: {why}")
    assert found.fix == ("mount -t proc proc /proc",)
    assert check("proc", tmp_path, process()).state is State.OK


def test_versions_that_nobody_tells_are_left_out(tmp_path: Path) -> None:
    soft_roce(dual_port_roce(tmp_path), "rxe0", "d0", "10.9.0.1")
    found = check("versions", tmp_path)
    assert (found.state, "firmware" in found.found) == (State.OK, False)


def test_cards_of_one_kind_with_different_firmware(tmp_path: Path) -> None:
    sysfs = healthy(tmp_path)
    sysfs.put("sys/class/infiniband/mlx5_4", fw_ver="28.39.1002")
    found = check("versions", tmp_path)
    assert found.state is State.WARN
    assert found.found.startswith("NICs of one kind (MT_0000000838) have different firmware: 28.43.1014 on mlx5_0, ")
    assert found.found.endswith("; 28.39.1002 on mlx5_4")
    sysfs.put("sys/class/infiniband/mlx5_4", board_id="MT_0000000437")
    assert check("versions", tmp_path).state is State.OK


@pytest.mark.parametrize(
    ("release", "fix"),
    [
        ("ID=ubuntu\nID_LIKE=debian", "apt-get install -y libibverbs1 ibverbs-providers"),
        ('ID="rocky"\nID_LIKE="rhel centos fedora"', "dnf install -y libibverbs"),
        ('ID="opensuse-leap"\nID_LIKE="suse opensuse"', "zypper install -y libibverbs libibverbs1"),
        ("ID=nixos", "# install rdma-core: libibverbs with its providers"),
    ],
)
def test_libibverbs_is_missing(tmp_path: Path, release: str, fix: str) -> None:
    guest(tmp_path).put("etc", **{"os-release": release})
    found = check("libibverbs", tmp_path, process(ibverbs=MISSING))
    assert (found.state, found.fix) == (State.FAIL, (fix,))
    assert found.found == f"it cannot be loaded: {MISSING.why_not}"


def test_libibverbs_is_not_needed_without_a_device(tmp_path: Path) -> None:
    assert check("libibverbs", tmp_path, process(ibverbs=MISSING)).state is State.NOT_HERE
    assert check("libibverbs", tmp_path).state is State.OK


def test_the_library_of_a_driver_is_missing(tmp_path: Path) -> None:
    sysfs = healthy(tmp_path)
    folder = tmp_path / "usr/lib/x86_64-linux-gnu/libibverbs"
    (folder / "libmlx5-rdmav34.so").unlink()
    sysfs.put("usr/lib/x86_64-linux-gnu/libibverbs", **{"libmlx4-rdmav34.so": ""})
    found = check("provider-library", tmp_path)
    assert found.state is State.FAIL
    assert found.found.endswith("mlx5_4: libmlx5-rdmav*.so is not installed")
    assert found.fix == ("apt-get install -y libibverbs1 ibverbs-providers",)


def test_one_device_with_its_library_is_enough(tmp_path: Path) -> None:
    soft_roce(healthy(tmp_path), "rxe0", "d0", "10.9.0.1")
    found = check("provider-library", tmp_path)
    assert found.state is State.WARN
    assert found.found == "rxe0: librxe-rdmav*.so is not installed; the other 3 are fine"


def test_the_library_is_looked_for_beside_libibverbs_too(tmp_path: Path) -> None:
    sysfs = guest(tmp_path)
    (tmp_path / "usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so").unlink()
    sysfs.put("opt/conda/lib/libibverbs", **{"librxe-rdmav57.so": ""})
    assert check("provider-library", tmp_path).state is State.FAIL
    found = check("provider-library", tmp_path, process(ibverbs=Library("/opt/conda/lib/libibverbs.so.1")))
    assert found.found == "rxe0: /opt/conda/lib/libibverbs/librxe-rdmav57.so"


def test_an_iwarp_device_in_software_has_another_library(tmp_path: Path) -> None:
    guest(tmp_path).put("sys/class/infiniband/rxe0", node_type="4: RNIC")
    found = check("provider-library", tmp_path)
    assert found.found == "rxe0: libsiw-rdmav*.so is not installed"


def test_a_device_of_a_platform_is_no_software(tmp_path: Path) -> None:
    """It is not on PCI, and has a driver all the same."""
    sysfs = Sysfs(tmp_path)
    folder = sysfs.put("sys/devices/platform/HISI00D1")
    sysfs.link("sys/devices/platform/HISI00D1/driver", sysfs.put("sys/bus/platform/drivers/hns3"))
    sysfs.rdma("hns_0", folder, Port())
    assert check("provider-library", tmp_path).found == "hns_0: libhns-rdmav*.so is not installed"
    assert check("soft-roce", tmp_path).state is State.NOT_HERE
    assert check("kernel-modules", tmp_path).found == "ib_uverbs is not loaded"
    sysfs.put("sys/class/infiniband_verbs")
    assert check("kernel-modules", tmp_path).found == "hns_0: served by hns_roce_hw_v2"


def test_a_driver_that_is_not_known(tmp_path: Path) -> None:
    sysfs = Sysfs(tmp_path)
    sysfs.rdma("new_0", sysfs.pci("0000:3b:00.0", "new_core"), Port())
    found = check("provider-library", tmp_path)
    assert found.state is State.NOT_HERE
    assert found.found == "new_0: the library for its driver new_core is not known to zerohop"


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"providers": (("verbs", False, "no rights", "ask for them"),)}, "no rights"),
        ({"providers": (("shm", True, "", ""),)}, "this build of zerohop has no verbs"),
        ({"verbs": ()}, "rxe0: libibverbs does not list it: see provider-library"),
        ({"verbs": (facts("rxe0", why_not="cannot open it"),)}, "rxe0: cannot open it: see device-node"),
    ],
)
def test_verbs_cannot_be_used(tmp_path: Path, changes: dict[str, Any], found: str) -> None:
    guest(tmp_path)
    result = check("verbs", tmp_path, process(**changes))
    assert result.state is State.FAIL
    assert result.found.startswith(found)
    assert result.fix


def test_verbs_that_could_not_be_asked(tmp_path: Path) -> None:
    guest(tmp_path)
    found = check("verbs", tmp_path, process(verbs=None))
    assert (found.state, found.found) == (State.OK, "usable; its devices could not be asked")


def test_one_device_that_opens_is_enough(tmp_path: Path) -> None:
    healthy(tmp_path)
    found = check("verbs", tmp_path, process(verbs=(facts("mlx5_0"),)))
    assert found.state is State.WARN
    assert found.found.endswith("libibverbs does not list it: see provider-library; the other 1 is fine")


def test_without_a_device_verbs_does_not_apply(tmp_path: Path) -> None:
    assert check("verbs", tmp_path).found == "this machine has no RDMA device"
    found = check("verbs", tmp_path, process(providers=(("shm", True, "", ""),)))
    assert (found.state, found.found[:36]) == (State.NOT_HERE, "this build of zerohop has no verbs: ")


@pytest.mark.parametrize(
    ("release", "environment", "state"),
    [
        ("5.12.0", {}, State.OK),
        ("6.1.0-56-amd64", {}, State.OK),
        ("5.11.22-generic", {}, State.WARN),
        ("4.18.0-553.el8.x86_64", {}, State.WARN),
        ("5.4.0", {"RDMAV_FORK_SAFE": "1"}, State.OK),
        ("5.4.0", {"IBV_FORK_SAFE": "1"}, State.OK),
    ],
)
def test_fork(tmp_path: Path, release: str, environment: dict[str, str], state: State) -> None:
    guest(tmp_path).put("proc/sys/kernel", osrelease=release)
    found = check("fork", tmp_path, process(environment=environment))
    assert found.state is state
    assert release in found.found
    assert (found.fix[:1] == ("export RDMAV_FORK_SAFE=1",)) is (state is State.WARN)


def test_a_kernel_of_unknown_release_counts_as_old(tmp_path: Path) -> None:
    guest(tmp_path)
    system = read(tmp_path)
    assert look("fork", replace(system, kernel=replace(system.kernel, release="next"))).state is State.WARN
