"""The names of RDMA ports that a user gives: those of no port of the machine are told at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import zerohop as zh
from support.sysfs import dual_port_roce
from zerohop.config.nic_filter import parse_nic_filter
from zerohop.core.lanes.nic_choice import check_names

if TYPE_CHECKING:
    from pathlib import Path

NOBODYS = "no_such_nic"


@pytest.mark.parametrize("nics", [NOBODYS, [NOBODYS, f"{NOBODYS}:1"]])
def test_a_context_with_a_nic_that_is_not_there(nics: str | list[str]) -> None:
    """On any machine, with RDMA NICs or without."""
    with pytest.raises(zh.Unsupported, match=rf"nics='{NOBODYS}.*' means no RDMA port of this machine; there is"):
        zh.Context(nics=nics, providers=["shm"])


def test_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZEROHOP_NICS", NOBODYS)
    with pytest.raises(zh.Unsupported, match=r"Fix: correct nics= \(ZEROHOP_NICS\)"):
        zh.Context()


@pytest.mark.parametrize("nics", [f"^{NOBODYS}", f"{NOBODYS}*"])
def test_what_may_mean_no_port(nics: str) -> None:
    zh.Context(nics=nics, providers=["shm"]).close()


@pytest.mark.parametrize("nics", ["mlx5_9", "mlx5_0:2", "mlx5", "mlx5_9,mlx5_8"])
def test_no_port_of_these(tmp_path: Path, nics: str) -> None:
    dual_port_roce(tmp_path)
    with pytest.raises(zh.Unsupported, match="there is mlx5_0:1, mlx5_1:1"):
        check_names(parse_nic_filter(nics), tmp_path)
    with pytest.raises(zh.Unsupported, match="there is none at all"):
        check_names(parse_nic_filter(nics), tmp_path / "empty")


@pytest.mark.parametrize("nics", ["mlx5_0", "mlx5_1:1", "mlx5_0,mlx5_9", "mlx5_[7-9]", "*", "^mlx5_9"])
def test_ports_of_these_or_none_needed(tmp_path: Path, nics: str) -> None:
    """mlx5_1 is down, and there all the same."""
    dual_port_roce(tmp_path)
    check_names(parse_nic_filter(nics), tmp_path)
