"""The doctor's family "device", each check in its states."""

from __future__ import annotations

import errno
import os
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from support.doctor import check, facts, guest, healthy, look, process, read
from support.forking import in_child
from support.sysfs import Port, Sysfs, soft_roce
from zerohop.machine.doctor import State, System
from zerohop.machine.doctor.hcas import Node

NO_PORT = "ZEROHOP_NICS: mlx5_9 means no port of this machine; its devices: mlx5_0, mlx5_1, mlx5_4"
MELLANOX = {"vendor": "0x15b3", "device": "0x101d", "class": "0x020000"}


def with_nodes(system: System, *errors: int) -> System:
    """Opening the device file of each RDMA device gives these errors."""
    hcas = [
        replace(hca, nodes=(Node(f"/dev/infiniband/uverbs{at}", error),))
        for at, (hca, error) in enumerate(zip(system.hcas, errors, strict=True))
    ]
    return replace(system, hcas=tuple(hcas))


def test_devices_are_named_with_driver_and_place(tmp_path: Path) -> None:
    soft_roce(healthy(tmp_path), "rxe0", "d0", "10.9.0.1")
    found = check("rdma-device", tmp_path).found
    assert found.startswith("mlx5_0 (mlx5_core, 0000:18:00.0), mlx5_1 (mlx5_core, 0000:40:00.0)")
    assert found.endswith("rxe0 (software)")


def test_no_device_in_a_container_may_be_in_another_namespace(tmp_path: Path) -> None:
    sysfs = Sysfs(tmp_path)
    sysfs.pci("0000:3b:00.0", "mlx5_core", **MELLANOX)
    sysfs.put("sys/module/ib_core")
    sysfs.put("sys/module/mlx5_ib")
    sysfs.put("run", **{".containerenv": ""})
    found = check("rdma-device", tmp_path)
    assert found.state is State.FAIL
    assert "0000:3b:00.0; the devices may be in the host's network namespace" in found.found
    assert found.fix == (
        "podman run --network=host --device=/dev/infiniband …",
        "# on the host, not in this container:",
        "rdma system set netns shared",
    )
    assert check("kernel-modules", tmp_path).state is State.NOT_HERE
    (tmp_path / "run/.containerenv").unlink()  # not in a container it is another reason
    assert check("rdma-device", tmp_path).found.endswith("0000:3b:00.0: see kernel-modules")


def test_no_device_in_a_container_whose_host_has_not_loaded_the_modules(tmp_path: Path) -> None:
    sysfs = Sysfs(tmp_path)
    sysfs.pci("0000:3b:00.0", "mlx5_core", **MELLANOX)
    sysfs.put("run", **{".containerenv": ""})
    assert check("rdma-device", tmp_path).found.endswith("0000:3b:00.0: see kernel-modules")
    assert check("kernel-modules", tmp_path).fix[-1] == "modprobe mlx5_ib"


def test_a_card_whose_rdma_module_is_missing(tmp_path: Path) -> None:
    Sysfs(tmp_path).pci("0000:3b:00.0", "mlx5_core", **MELLANOX)
    found = check("kernel-modules", tmp_path)
    assert (found.state, found.found) == (State.FAIL, "0000:3b:00.0: mlx5_ib is not loaded")
    assert found.fix == ("modprobe mlx5_ib",)
    assert check("rdma-device", tmp_path).state is State.FAIL


@pytest.mark.parametrize(
    ("card", "module"),
    [
        (MELLANOX, "mlx5_core"),
        ({**MELLANOX, "device": "0x1007"}, "mlx4_core"),
        ({"vendor": "0x1d0f", "device": "0xefa2", "class": "0x020000"}, "efa"),
    ],
)
def test_a_card_without_a_driver(tmp_path: Path, card: dict[str, str], module: str) -> None:
    Sysfs(tmp_path).pci("0000:3b:00.0", **card)
    found = check("kernel-modules", tmp_path)
    assert (found.state, found.found) == (State.FAIL, "0000:3b:00.0: no driver serves this NIC")
    assert found.fix == (f"modprobe {module}",)


def test_a_card_whose_module_made_no_device(tmp_path: Path) -> None:
    sysfs = Sysfs(tmp_path)
    sysfs.pci("0000:3b:00.0", "mlx5_core", **MELLANOX)
    sysfs.put("sys/module/mlx5_ib")
    found = check("kernel-modules", tmp_path)
    assert found.state is State.FAIL
    assert found.found == "0000:3b:00.0: mlx5_ib is loaded and made no RDMA device of it"
    assert "devlink dev param set pci/0000:3b:00.0 name enable_roce value true cmode driverinit" in found.fix


def test_a_card_that_a_virtual_machine_has(tmp_path: Path) -> None:
    Sysfs(tmp_path).pci("0000:3b:00.0", "vfio-pci", **MELLANOX)
    found = check("kernel-modules", tmp_path)
    assert (found.state, found.found) == (State.NOT_HERE, "0000:3b:00.0: given away to vfio-pci")


def test_a_second_card_that_is_no_device_is_a_warning(tmp_path: Path) -> None:
    healthy(tmp_path).pci("0000:3b:00.0", None, **MELLANOX)
    found = check("kernel-modules", tmp_path)
    assert (found.state, found.fix) == (State.WARN, ("modprobe mlx5_core",))
    assert found.found == "0000:3b:00.0: no driver serves this NIC; the other 3 are fine"


def test_devices_without_ib_uverbs(tmp_path: Path) -> None:
    sysfs = Sysfs(tmp_path)
    soft_roce(sysfs, "rxe0", "d0", "10.9.0.1")
    found = check("kernel-modules", tmp_path)
    assert (found.state, found.found) == (State.FAIL, "ib_uverbs is not loaded")
    assert found.fix[0] == "modprobe ib_uverbs"
    assert check("device-node", tmp_path).state is State.NOT_HERE
    sysfs.put("sys/class/infiniband_verbs/uverbs0", ibdev="rxe0")
    assert check("kernel-modules", tmp_path).state is State.OK


def test_in_a_container_modules_are_loaded_on_the_host(tmp_path: Path) -> None:
    Sysfs(tmp_path).pci("0000:3b:00.0", None, **MELLANOX)
    found = check("kernel-modules", tmp_path, process(environment={"container": "lxc"}))
    assert found.fix == ("# on the host, not in this container:", "modprobe mlx5_core")


def test_a_device_file_that_is_missing(tmp_path: Path) -> None:
    guest(tmp_path)
    assert check("device-node", tmp_path).state is State.OK
    (tmp_path / "dev/infiniband/uverbs0").unlink()
    found = check("device-node", tmp_path)
    assert (found.state, found.found) == (State.FAIL, "rxe0: /dev/infiniband/uverbs0 is missing")
    assert found.fix[0] == "udevadm trigger --subsystem-match=infiniband_verbs"


@pytest.mark.parametrize(
    ("container", "fix"),
    [
        ("docker", "docker run --device=/dev/infiniband …"),
        ("podman", "podman run --device=/dev/infiniband …"),
        ("lxc", "# start this container with what Docker calls --device=/dev/infiniband"),
        (
            "kubernetes",
            "# in the pod: resources: limits: {rdma/hca: 1}, or the name that your RDMA device plugin gives",
        ),
    ],
)
def test_a_container_without_the_device_is_told_what_to_type(tmp_path: Path, container: str, fix: str) -> None:
    guest(tmp_path)
    (tmp_path / "dev/infiniband/uverbs0").unlink()
    found = look("device-node", replace(read(tmp_path), container=container))
    assert found.state is State.FAIL
    assert found.found == "rxe0: /dev/infiniband/uverbs0 is not in this container"
    assert found.fix == (fix,)


def test_a_device_file_that_the_containers_rules_forbid(tmp_path: Path) -> None:
    guest(tmp_path)
    found = look("device-node", with_nodes(replace(read(tmp_path), container="docker"), errno.EPERM))
    assert found.state is State.FAIL
    assert found.found == "rxe0: the rules of this container forbid /dev/infiniband/uverbs0"
    assert found.fix == ("docker run --device=/dev/infiniband/uverbs0 …",)


@pytest.mark.parametrize("error", [errno.EACCES, errno.EPERM])
def test_a_device_file_that_this_user_may_not_open(tmp_path: Path, error: int) -> None:
    guest(tmp_path)
    found = look("device-node", with_nodes(read(tmp_path), error))
    assert (found.state, found.found) == (State.FAIL, "rxe0: this user may not open /dev/infiniband/uverbs0")
    assert found.fix[0] == "chmod 0666 /dev/infiniband/uverbs0"


def test_a_device_file_that_fails_in_another_way(tmp_path: Path) -> None:
    guest(tmp_path)
    found = look("device-node", with_nodes(read(tmp_path), errno.EIO))
    assert found.state is State.FAIL
    assert found.found == "rxe0: /dev/infiniband/uverbs0 cannot be opened: Input/output error"
    assert found.fix == ("dmesg | grep uverbs0",)


def test_permissions_are_found_out_by_opening() -> None:
    def as_nobody() -> str:
        if os.geteuid() == 0:
            os.setgid(65534)
            os.setuid(65534)
        return check("device-node", root).found

    with tempfile.TemporaryDirectory() as folder:  # not tmp_path, which is below a folder of this user's own
        root = Path(folder)
        guest(root)
        root.chmod(0o755)
        (root / "dev/infiniband/uverbs0").chmod(0)
        assert in_child(as_nobody) == "rxe0: this user may not open /dev/infiniband/uverbs0"
        (root / "dev/infiniband/uverbs0").chmod(0o666)
        assert in_child(as_nobody) == "rxe0: may be opened"


def test_one_device_of_several_is_enough(tmp_path: Path) -> None:
    healthy(tmp_path)
    found = look("device-node", with_nodes(read(tmp_path), errno.ENOENT, errno.ENOENT, 0))
    assert found.state is State.WARN
    assert found.found.endswith("; the other 1 is fine")


@pytest.mark.parametrize(
    ("driver", "kind", "state", "found"),
    [
        ("mlx5_core", "1: CA", State.OK, "mlx5_0: RoCE"),
        ("cxgb4", "4: RNIC", State.FAIL, "mlx5_0: iWARP: connections need its own connection manager"),
        ("efa", "7: unspecified", State.FAIL, "mlx5_0: EFA has no reliable connected queue pairs"),
        ("usnic", "5: usNIC", State.WARN, "mlx5_0: its kind (usNIC) is not one that zerohop has been tried with"),
    ],
)
def test_what_the_devices_speak(tmp_path: Path, driver: str, kind: str, state: State, found: str) -> None:
    sysfs = Sysfs(tmp_path)
    sysfs.rdma("mlx5_0", sysfs.pci("0000:3b:00.0", driver), Port(link_layer="Ethernet"), node_type=kind)
    result = check("transport", tmp_path)
    assert result.state is state
    assert result.found.startswith(found)


def test_a_device_that_speaks_something_else_beside_one_that_is_right(tmp_path: Path) -> None:
    sysfs = Sysfs(tmp_path)
    sysfs.rdma("mlx5_0", sysfs.pci("0000:3b:00.0", "mlx5_core"), Port(), node_type="1: CA")
    sysfs.rdma("iw0", sysfs.pci("0000:3c:00.0", "cxgb4"), Port(link_layer="Ethernet"), node_type="4: RNIC")
    found = check("transport", tmp_path)
    assert (found.state, found.found[:10]) == (State.WARN, "iw0: iWARP")


def test_a_software_device_says_that_it_is_one(tmp_path: Path) -> None:
    guest(tmp_path)
    found = check("soft-roce", tmp_path)
    assert found.state is State.WARN
    assert found.found.startswith("rxe0 (rdma_rxe on d0): made in software, and there is no other")
    assert found.fix == ("# to remove it: rdma link delete rxe0",)


def test_a_software_device_beside_a_real_one(tmp_path: Path) -> None:
    soft_roce(healthy(tmp_path), "rxe0", "d0", "10.9.0.1")
    found = check("soft-roce", tmp_path)
    assert (found.state, found.found) == (
        State.OK,
        "rxe0 (rdma_rxe on d0): made in software; chosen after all others",
    )


@pytest.mark.parametrize(
    ("changes", "lacks"),
    [
        ({"atomics": "none"}, "no atomics"),
        ({"read_credit": 1}, "1 reads in flight instead of 16"),
        ({"max_region": 1 << 30}, "at most 1 GiB in one registration"),
    ],
)
def test_what_a_device_cannot_do(tmp_path: Path, changes: dict[str, object], lacks: str) -> None:
    healthy(tmp_path)
    devices = (facts("mlx5_0", **changes), facts("mlx5_1"), facts("mlx5_4"))
    found = check("capabilities", tmp_path, process(verbs=devices))
    assert found.state is State.WARN
    assert found.found.startswith(f"mlx5_0: {lacks}")
    assert found.found.endswith("the other 2 are fine")


@pytest.mark.parametrize("verbs", [None, (), (facts("rxe0", why_not="cannot open the RDMA device"),)])
def test_devices_that_cannot_be_asked(tmp_path: Path, verbs: tuple[dict[str, object], ...] | None) -> None:
    guest(tmp_path)
    found = check("capabilities", tmp_path, process(verbs=verbs))
    assert (found.state, found.found) == (State.NOT_HERE, "no device could be opened and asked: see verbs")


@pytest.mark.parametrize(
    ("variable", "value", "state", "found"),
    [
        ("ZEROHOP_NICS", "mlx5_0,mlx5_4:1", State.OK, "ZEROHOP_NICS=mlx5_0,mlx5_4:1"),
        ("ZEROHOP_NICS", "mlx5_0,mlx5_9", State.WARN, NO_PORT),
        ("ZEROHOP_NICS", "mlx5_0,,", State.FAIL, "ZEROHOP_NICS: 'mlx5_0,,' has an empty name"),
        ("ZEROHOP_NICS", " None ", State.NOT_HERE, "neither ZEROHOP_NICS nor ZEROHOP_VERBS is set"),
        ("ZEROHOP_VERBS", "", State.NOT_HERE, "neither ZEROHOP_NICS nor ZEROHOP_VERBS is set"),
        ("ZEROHOP_VERBS", "traffic_class=106", State.OK, "ZEROHOP_VERBS=traffic_class=106"),
        ("ZEROHOP_VERBS", "trafic_class=106", State.FAIL, "ZEROHOP_VERBS: there is no verbs option 'trafic_class'"),
    ],
)
def test_settings(tmp_path: Path, variable: str, value: str, state: State, found: str) -> None:
    healthy(tmp_path)
    result = check("settings", tmp_path, process(environment={variable: value}))
    assert result.state is state
    assert result.found.startswith(found)
