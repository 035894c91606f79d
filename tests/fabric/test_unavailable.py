"""On machines without RDMA: every reason is the true one, and says what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

import zerohop as zh
from support.patience import ANSWER_S
from zerohop import fabric
from zerohop._native import NativeError, Status
from zerohop.fabric import context

if TYPE_CHECKING:
    from collections.abc import Callable

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
UNUSABLE = "libibverbs is not usable: libibverbs.so.1: cannot open shared object file: No such file or directory"
LIMITS = {
    "max_queue_pairs": 1, "max_requests": 256, "max_sge": 1, "max_completions": 1024, "max_regions": 1,
    "max_region": 1, "read_credit": 1, "atomics": "none",
}  # fmt: skip
PORT = {
    "number": 1, "state": "ACTIVE", "link_layer": "Ethernet", "lid": 0, "max_mtu": 4096, "active_mtu": 1024,
    "max_message": 1 << 30, "gid_entries": 4,
}  # fmt: skip


def device(name: str, why_not: str = "") -> dict[str, Any]:
    if why_not:
        nothing = dict.fromkeys(LIMITS, 0) | {"atomics": ""}
        return {
            "name": name,
            "why_not": why_not,
            "guid": "",
            "firmware": "",
            "vendor": 0,
            "part": 0,
            "ports": [],
        } | nothing
    facts = {"name": name, "why_not": "", "guid": "0:1:2:3", "firmware": "1", "vendor": 0x2C9, "part": 1}
    return facts | LIMITS | {"ports": [PORT, PORT | {"number": 2, "state": "DOWN"}]}


def raise_unusable() -> NoReturn:
    raise NativeError(Status.UNSUPPORTED.value, 0, UNUSABLE)


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets what verbs finds; sysfs shows nothing."""

    def found(*facts: dict[str, Any]) -> None:
        monkeypatch.setattr(context, "fabric_devices", lambda: list(facts))
        monkeypatch.setattr(context, "read_rdma_devices", lambda: ())

    return found


def test_no_libibverbs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "fabric_devices", raise_unusable)
    with pytest.raises(zh.Unsupported) as caught:
        fabric.Context()
    assert UNUSABLE in caught.value.reason


def test_direct_says_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    for reason in ("libmlx5 is not usable: no such file", "no RDMA device here is driven by mlx5; there is rxe0"):
        monkeypatch.setattr(context, "fabric_why_not_direct", lambda reason=reason: reason)
        with pytest.raises(zh.Unsupported, match="verbs") as caught:
            fabric.Context("direct")
        assert caught.value.reason == reason
    monkeypatch.setattr(context, "fabric_why_not_direct", raise_unusable)
    with pytest.raises(zh.Unsupported) as caught:
        fabric.Context("direct")
    assert UNUSABLE in caught.value.reason


def test_direct_on_this_machine() -> None:
    with pytest.raises(zh.Unsupported) as caught:
        fabric.Context("direct")
    assert caught.value.reason


@pytest.mark.parametrize("backend", ["verbs", "direct"])
def test_what_is_not_usable_says_what_to_do(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "providers", lambda: [("verbs", False, UNUSABLE, "apt-get install -y libibverbs1")])
    for asked in ("fabric_devices", "fabric_why_not_direct"):
        monkeypatch.setattr(context, asked, raise_unusable)
    with pytest.raises(zh.Unsupported) as caught:
        fabric.Context(backend)
    assert UNUSABLE in caught.value.reason
    assert caught.value.fix == "apt-get install -y libibverbs1"


def test_verbs_on_this_machine() -> None:
    """It works, or says what to do, in whatever way zerohop was built."""
    refusals = []
    try:
        fabric.Context().close()
    except zh.Unsupported as error:
        refusals.append(error)
    assert all("apt-get install" in error.fix for error in refusals)


@pytest.mark.parametrize("backend", ["", "ucx", None, 2])
def test_no_such_backend(backend: Any) -> None:
    with pytest.raises(ValueError, match="backend"):
        fabric.Context(backend)


def test_no_device(devices: Callable[..., None]) -> None:
    devices()
    with fabric.Context() as rdma:
        assert rdma.devices() == ()
        assert rdma.active_ports() == ()
        with pytest.raises(zh.Unsupported, match="no RDMA device") as caught:
            rdma.choose_port()
        assert caught.value.fix
        with pytest.raises(zh.Unsupported, match="none at all"):
            rdma.open("mlx5_0")


@pytest.mark.parametrize("name", ["nics", "near"])
def test_ports_are_chosen_by_names(devices: Callable[..., None], name: str) -> None:
    devices(device("mlx5_0"))
    with fabric.Context() as rdma, pytest.raises(TypeError, match=f"{name} must be a string or None, not int"):
        rdma.choose_port(**{name: 5})  # type: ignore[arg-type]


def test_devices_as_values(devices: Callable[..., None]) -> None:
    devices(device("mlx5_0"), device("mlx5_1", "cannot open the RDMA device mlx5_1: Permission denied"))
    with fabric.Context() as rdma:
        first, second = rdma.devices()
        assert (first.limits.requests, first.limits.atomics, second.limits.atomics) == (256, "none", "none")
        assert "Permission denied" in second.why_not
        assert [port.name for port in rdma.active_ports()] == ["mlx5_0:1"]
        for port in (0, 3):
            with pytest.raises(zh.Unsupported, match=f"no port {port}"):
                rdma.open("mlx5_0", port)
        for wrong in (None, 5, b"mlx5_0"):
            with pytest.raises(TypeError):
                rdma.open(wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            rdma.open("mlx5_0", "1")  # type: ignore[arg-type]
        for closed in (second, "mlx5_1"):
            with pytest.raises(zh.Unsupported, match="Permission denied") as caught:
                rdma.open(closed)
            assert "/dev/infiniband" in caught.value.fix
        with pytest.raises(zh.Unsupported, match="mlx5_0, mlx5_1"):
            rdma.open("mlx5_2")


def test_closed(devices: Callable[..., None]) -> None:
    devices(device("mlx5_0"))
    rdma = fabric.Context()
    rdma.close()
    rdma.close()
    for use in (rdma.devices, rdma.active_ports, rdma.choose_port, lambda: rdma.open("mlx5_0")):
        with pytest.raises(zh.Closed):
            use()
    assert "closed" in repr(rdma)


def test_a_device_that_vanishes(devices: Callable[..., None]) -> None:
    """It was listed, and is not there any more when it is opened: libibverbs itself says so, or is missing here."""
    devices(device("mlx5_vanished"))
    with fabric.Context() as rdma, pytest.raises(zh.Unsupported):
        rdma.open("mlx5_vanished")


def test_import_needs_nothing() -> None:
    """No RDMA library is opened before somebody asks for a Context."""
    code = (
        "import zerohop.fabric, pathlib; maps = pathlib.Path('/proc/self/maps').read_text(); "
        "print('libibverbs' in maps, 'libmlx5' in maps)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False", "False"]


OF_FABRIC = [path for path in sorted(EXAMPLES.glob("*.py")) if "import fabric" in path.read_text("utf-8")]


@pytest.mark.parametrize("example", OF_FABRIC, ids=lambda path: path.stem)
def test_examples_without_a_device_say_what_to_do(example: Path) -> None:
    # So that there is none on this machine, whatever it has.
    environment = os.environ | {"ZEROHOP_NICS": "no_such_nic"}
    run = subprocess.run(
        [sys.executable, str(example)], capture_output=True, text=True, env=environment, timeout=ANSWER_S
    )
    assert run.returncode == 1
    assert run.stderr.startswith("Error: ")
    assert "Fix: " in run.stderr
    assert "Traceback" not in run.stderr
    assert "verified" not in run.stdout
