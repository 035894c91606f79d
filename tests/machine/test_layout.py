"""The whole picture: what sits where, and what serves what, on recorded trees."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from support.sysfs import Sysfs, dual_port_roce, hgx_h100, soft_roce
from zerohop.config.nic_filter import NicFilter
from zerohop.machine.accelerators import read_accelerators
from zerohop.machine.layout import read_layout
from zerohop.machine.pci import Distance

if TYPE_CHECKING:
    from pathlib import Path


def test_gpus_and_memory_nodes_are_served(tmp_path: Path) -> None:
    hgx_h100(tmp_path)
    layout = read_layout(tmp_path)
    assert layout.numa_nodes == (0, 1)
    assert [gpu.name for gpu in layout.gpus] == [f"GPU{number}" for number in range(8)]
    assert [gpu.place.address for gpu in layout.gpus] == sorted(gpu.place.address for gpu in layout.gpus)
    assert [served.name for served in layout.served] == [*(gpu.name for gpu in layout.gpus), "NUMA 0", "NUMA 1"]
    firsts = [served.selection.chosen[0].device for served in layout.served]
    assert firsts == [f"mlx5_{number}" for number in (0, 1, 2, 3, 4, 5, 6, 7, 0, 4)]
    assert layout.served[1].distances == (Distance.NODE, Distance.PIX, *[Distance.NODE] * 2, *[Distance.SYS] * 4)
    assert set(layout.served[-1].distances) == {None}


def test_the_filter_chooses(tmp_path: Path) -> None:
    hgx_h100(tmp_path)
    layout = read_layout(tmp_path, NicFilter(exclude=("mlx5_0",)))
    assert layout.served[0].selection.chosen[0].name == "mlx5_1:1"
    assert len(layout.nics) == 8  # what is left out is still there


def test_a_single_node_has_one_host(tmp_path: Path) -> None:
    sysfs = Sysfs(tmp_path)
    sysfs.nodes("0-1")
    soft_roce(sysfs, "rxe0", "d0", "10.9.0.1")
    (served,) = read_layout(tmp_path).served
    assert (served.name, served.gpu, served.numa_node) == ("host", None, None)
    assert served.selection.chosen[0].name == "rxe0:1"


def test_as_json(tmp_path: Path) -> None:
    hgx_h100(tmp_path, roce=True)
    facts = json.loads(json.dumps(read_layout(tmp_path).to_json()))
    assert facts["numa_nodes"] == [0, 1]
    assert facts["accelerators"][7] == {
        "name": "GPU7",
        "model": "NVIDIA H100 80GB HBM3",
        "pci_address": "0000:df:00.0",
        "numa_node": 1,
        "host_bridge": "pci0000:d9",
        "switches": ["0000:da:00.0"],
    }
    assert facts["nics"][7]["switches"] == ["0000:da:00.0"]
    assert facts["nics"][7]["ports"] == [{"number": 1, "state": "ACTIVE", "link_layer": "Ethernet", "gbps": 400.0}]
    served = facts["served"][7]
    assert (served["name"], served["pci_address"], served["numa_node"]) == ("GPU7", "0000:df:00.0", 1)
    assert served["distances"] == {f"mlx5_{n}": "SYS" if n < 4 else "PIX" if n == 7 else "NODE" for n in range(8)}
    first = served["chosen"][0]
    assert (first["name"], first["distance"], first["gid_index"]) == ("mlx5_7:1", "PIX", 3)
    assert first["gid"] == "0000:0000:0000:0000:0000:ffff:0a00:0701"
    assert facts["served"][8]["chosen"][0]["distance"] is None


def test_as_json_what_is_not_used_and_what_is_nowhere(tmp_path: Path) -> None:
    soft_roce(dual_port_roce(tmp_path), "rxe0", "d0", "10.9.0.1")
    facts = read_layout(tmp_path, NicFilter(include=("mlx5_1", "mlx5_9"))).to_json()
    assert facts["nics"][2]["pci_address"] is None
    served = facts["served"][0]
    assert served["chosen"] == []
    assert served["unmatched"] == ["mlx5_9"]
    assert {port["name"] for port in served["rejected"]} == {"mlx5_0:1", "mlx5_1:1", "rxe0:1"}
    assert "DOWN" in served["why"]
    assert served["fix"] == "ip link set ens1f1np1 up"


def test_nothing_at_all(tmp_path: Path) -> None:
    layout = read_layout(tmp_path)
    assert (layout.numa_nodes, layout.gpus, layout.nics) == ((), (), ())
    assert layout.served[0].selection.why == "this machine has no RDMA device"


def test_accelerators_know_where_they_are(tmp_path: Path) -> None:
    hgx_h100(tmp_path)
    found = read_accelerators(tmp_path)
    assert [(gpu.pci_address, gpu.numa_node) for gpu in found][3:5] == [("0000:61:00.0", 0), ("0000:9d:00.0", 1)]
