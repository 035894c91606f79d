"""`zerohop info --topology`: the drawing of recorded trees, and the same as JSON."""

from __future__ import annotations

import io
import json
import re
from typing import TYPE_CHECKING

from rich.console import Console

from cli.command import zerohop
from support.sysfs import Port, Sysfs, dual_port_roce, hgx_h100, infiniband_port, soft_roce
from zerohop.cli.topology import show
from zerohop.config.nic_filter import parse_nic_filter
from zerohop.machine.layout import read_layout

if TYPE_CHECKING:
    from pathlib import Path


def drawn(root: Path, nics: str | None = None, *, width: int = 160) -> str:
    output = io.StringIO()
    layout = read_layout(root, parse_nic_filter(nics) if nics is not None else None)
    show(layout, Console(file=output, width=width))
    return output.getvalue()


def row(text: str, name: str) -> list[str]:
    """The cells of the matrix in the row `name`."""
    matrix = text.partition("distances\n")[2].partition("chosen\n")[0]
    found = re.search(rf"^  ?{name}  +(.+)$", matrix, re.MULTILINE)
    assert found is not None, matrix
    return found[1].split()


def test_a_gpu_server(tmp_path: Path) -> None:
    hgx_h100(tmp_path)
    text = drawn(tmp_path)
    assert (
        """
├── pci0000:3d host bridge
│   └── 0000:3e:00.0 PCIe switch
│       ├── 0000:40:00.0 mlx5_1 on ibp64s0: InfiniBand 400 Gb/s ACTIVE
│       └── 0000:43:00.0 GPU1 NVIDIA H100 80GB HBM3
"""
        in text
    )
    assert text.index("NUMA node 0") < text.index("pci0000:5b") < text.index("NUMA node 1") < text.index("pci0000:97")
    assert row(text, "GPU0") == ["PIX*", "NODE", "NODE", "NODE", "SYS", "SYS", "SYS", "SYS"]
    assert row(text, "GPU6") == ["SYS", "SYS", "SYS", "SYS", "NODE", "NODE", "PIX*", "NODE"]
    assert row(text, "NUMA 1") == [*["remote"] * 4, "local*", *["local"] * 3]
    assert "PIX to 0000:d1:00.0 (behind the same PCIe switch), 400 Gb/s, NUMA node 1, GID 0" in text
    assert "then mlx5_4:1, mlx5_5:1, mlx5_7:1, mlx5_0:1" in text
    assert "not used" not in text
    assert not [line for line in text.splitlines() if line != line.rstrip()]


def test_the_matrix_of_a_gpu_server_fits_a_narrow_terminal(tmp_path: Path) -> None:
    hgx_h100(tmp_path)
    text = drawn(tmp_path, width=80)
    assert row(text, "NUMA 0") == ["local*", *["local"] * 3, *["remote"] * 4]
    assert re.search("mlx5_0 +mlx5_1 .*mlx5_7\n", text)


def test_what_a_filter_leaves_out_is_in_brackets_and_explained(tmp_path: Path) -> None:
    hgx_h100(tmp_path)
    text = drawn(tmp_path, "^mlx5_2,mlx5_9")
    assert row(text, "GPU2") == ["NODE*", "NODE", "(PIX)", "NODE", "SYS", "SYS", "SYS", "SYS"]
    assert "mlx5_2:1    left out by the filter: mlx5_2 is excluded" in text
    assert "the filter's mlx5_9 means no port of this machine" in text


def test_switches_below_switches(tmp_path: Path) -> None:
    sysfs = Sysfs(tmp_path)
    below = "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0"
    sysfs.gpu("0000:1b:00.0", below=below, numa_node=-1)
    function = sysfs.pci("0000:1e:00.0", "mlx5_core", below=f"{below}/0000:1c:00.0/0000:1d:00.0")
    sysfs.rdma("mlx5_0", function, infiniband_port(1))
    text = drawn(tmp_path)
    assert (
        """
└── pci0000:15 host bridge
    └── 0000:16:00.0 PCIe switch
        ├── 0000:1b:00.0 GPU0 NVIDIA H100 80GB HBM3
        └── 0000:1c:00.0 PCIe switch
            └── 0000:1e:00.0 mlx5_0: InfiniBand 400 Gb/s ACTIVE
"""
        in text
    )
    assert text.startswith("NUMA node not known\n")
    assert row(text, "GPU0") == ["PXB*"]
    assert row(text, "host") == ["–*"]


def test_nics_without_gpus_and_one_in_software(tmp_path: Path) -> None:
    soft_roce(dual_port_roce(tmp_path), "rxe0", "d0", "10.9.0.1")
    text = drawn(tmp_path)
    assert text.startswith("NUMA node 0 (no GPU, no RDMA NIC)\nNUMA node 1\n")
    assert "0000:3b:00.1 mlx5_1 on ens1f1np1: Ethernet 40 Gb/s DOWN" in text
    assert "not on PCI\n└── rxe0 on d0: Ethernet 2.5 Gb/s ACTIVE" in text
    assert row(text, "NUMA 1") == ["local*", "(local)", "–"]
    assert "mlx5_1:1    the port is DOWN (physical state Disabled)\n" in text
    assert "fix: ip link set ens1f1np1 up" in text
    assert "PIX" not in text  # no GPU, nothing to explain


def test_when_no_nic_can_be_used_the_reason_is_told_once(tmp_path: Path) -> None:
    dual_port_roce(tmp_path)
    text = drawn(tmp_path, "mlx5_1")
    assert text.count("none: no RDMA port can be used: mlx5_1:1: the port is DOWN") == 1
    assert row(text, "NUMA 0") == ["(remote)", "(remote)"]


def test_gpus_without_nics(tmp_path: Path) -> None:
    Sysfs(tmp_path).gpu("0000:00:05.0", below="pci0000:00", numa_node=0)
    text = drawn(tmp_path)
    assert "0000:00:05.0 GPU0 NVIDIA H100 80GB HBM3" in text
    assert "none: this machine has no RDMA device" in text
    assert "distances" not in text


def test_ports_of_one_device_have_a_column_each(tmp_path: Path) -> None:
    sysfs = Sysfs(tmp_path)
    sysfs.nodes("0", "1")
    function = sysfs.pci("0000:05:00.0", "mlx4_core", numa_node=1)
    down = Port(2, state="1: DOWN", phys_state="2: Polling", rate=None, gid_entries=0)
    sysfs.rdma("mlx4_0", function, infiniband_port(1), down)
    text = drawn(tmp_path)
    assert "mlx4_0: port 1 InfiniBand 400 Gb/s ACTIVE; port 2 InfiniBand speed not known DOWN" in text
    assert re.search("mlx4_0:1 +mlx4_0:2\n", text)
    assert row(text, "NUMA 0") == ["remote*", "(remote)"]
    assert row(text, "NUMA 1") == ["local*", "(local)"]


def test_nothing_is_said_plainly(tmp_path: Path) -> None:
    assert drawn(tmp_path) == "no GPU and no RDMA NIC on this machine (1 NUMA node)\n"
    Sysfs(tmp_path).nodes("0", "1")
    assert drawn(tmp_path) == "no GPU and no RDMA NIC on this machine (2 NUMA nodes)\n"


def test_what_comes_from_the_machine_is_not_taken_as_markup(tmp_path: Path) -> None:
    sysfs = Sysfs(tmp_path)
    sysfs.gpu("0000:00:05.0", below="pci0000:00", numa_node=0)
    sysfs.put("proc/driver/nvidia/gpus/0000:00:05.0", information="Model: NVIDIA [red]H100[/]")
    assert "NVIDIA [red]H100[/]" in drawn(tmp_path)


def test_the_command() -> None:
    run = zerohop("info", "--topology")
    assert run.returncode == 0, run.stderr
    assert "NUMA node" in run.stdout
    assert "zerohop" not in run.stdout  # the other facts are not printed
    run = zerohop("info", "--topology", "--json")
    assert run.returncode == 0, run.stderr
    facts = json.loads(run.stdout)
    assert set(facts) == {"numa_nodes", "accelerators", "nics", "served"}
    assert len(facts["served"]) == len(facts["accelerators"]) + max(1, len(facts["numa_nodes"]))


def test_the_filter_of_the_command_comes_from_the_option_or_the_environment() -> None:
    for run in (
        zerohop("info", "--topology", "--nics", "no_0,,"),
        zerohop("info", "--topology", ZEROHOP_NICS="no_0,,"),
    ):
        assert run.returncode == 1
        assert "ZEROHOP_NICS" in run.stderr
        assert "'no_0,,' has an empty name between its commas" in run.stderr
    run = zerohop("info", "--topology", "--json", ZEROHOP_NICS="no_0")
    assert json.loads(run.stdout)["served"][0]["unmatched"] == ["no_0"]
