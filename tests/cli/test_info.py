"""`zerohop info`: the facts as JSON, and the same for people."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from cli.command import zerohop
from support.sysfs import Port, dual_port_roce
from zerohop.cli.info import show
from zerohop.machine import Accelerator, Machine, ProviderFacts, RdmaDevice, RdmaPort
from zerohop.machine.facts import describe_listening
from zerohop.machine.gpudirect import read_gpudirect
from zerohop.machine.host import read_cpu, read_kernel, read_limits, read_memory
from zerohop.machine.io_uring import IoUring
from zerohop.machine.nics import read_rdma_devices


def machine() -> Machine:
    nothing = Path("/nonexistent")
    return Machine(
        zerohop="1.2.3",
        cpu=read_cpu(nothing),
        kernel=read_kernel(nothing),
        memory=read_memory(nothing),
        limits=read_limits(),
        accelerators=(),
        nics=(),
        rdma_devices=(),
        providers=(ProviderFacts("shm", True, "", "", "x86_64", ""),),
        listening=describe_listening("127.0.0.1:0", secret=False, insecure=False),
    )


def shown(facts: Machine, *, colour: bool = False) -> str:
    output = io.StringIO()
    show(facts, Console(file=output, width=180, color_system="standard" if colour else None, force_terminal=colour))
    return output.getvalue()


def test_an_empty_machine_is_shown() -> None:
    text = shown(machine())
    assert "zerohop 1.2.3" in text
    assert "none (--sim-devices N simulates some)" in text
    assert "127.0.0.1, a free port (this host only)" in text


def test_why_not_and_the_fix_are_shown() -> None:
    provider = ProviderFacts("verbs", False, "no RDMA device", "modprobe rdma_rxe", "", "not verified on hardware")
    gpu = Accelerator("0000:17:00.0", "cuda", "NVIDIA [H200]", False, "no driver", "install it", False)
    device = RdmaDevice("mlx5_0", "mlx5_core", "0000:3b:00.0", (RdmaPort(1, "ACTIVE", "400 Gb/sec", "Ethernet"),))
    text = shown(replace(machine(), providers=(provider,), accelerators=(gpu,), rdma_devices=(device,)))
    for words in ("not usable: no RDMA device", "fix: modprobe rdma_rxe", "not verified on hardware", "NVIDIA [H200]"):
        assert words in text
    assert "port 1 ACTIVE" in text


def test_rdma_ports_show_their_gid_or_why_they_have_none(tmp_path: Path) -> None:
    sysfs = dual_port_roce(tmp_path)
    sysfs.rdma("mlx5_2", sysfs.pci("0000:40:00.0", "mlx5_core"), Port(link_layer="Ethernet"))
    text = shown(replace(machine(), rdma_devices=read_rdma_devices(tmp_path)))
    lines = [line.strip() for line in text.partition("RDMA devices\n")[2].splitlines()]
    assert lines[0].endswith("mlx5_core, PCI 0000:3b:00.0, NUMA node 1, on ens1f0np0")
    assert lines[1] == "GID 3: RoCE v2 192.168.7.21 (IPv4) on ens1f0np0"
    assert lines[2].startswith("mlx5_1    port 1 DOWN")  # and no GID
    assert lines[3].startswith("mlx5_2    port 1 ACTIVE")
    assert lines[4] == "no usable GID: its GID table is empty"
    assert lines[5] == "fix: give the interface an address: ip address add ADDRESS/PREFIX dev INTERFACE"


def test_how_files_are_read() -> None:
    assert "files" not in shown(machine())
    text = shown(replace(machine(), io_uring=IoUring(usable=True)))
    assert " ".join(next(line for line in text.splitlines() if "files" in line).split()).endswith("by io_uring")
    refused = IoUring(usable=False, cause="disabled", why="the kernel [has] turned it off", fix="sysctl -w …")
    lines = [line.strip() for line in shown(replace(machine(), io_uring=refused)).splitlines()]
    first = next(number for number, line in enumerate(lines) if line.startswith("files"))
    assert lines[first].endswith("read and written by threads; no io_uring: the kernel [has] turned it off")
    assert lines[first + 1] == "fix: sysctl -w …"


def test_how_files_go_to_gpus() -> None:
    assert "files and GPUs" not in shown(machine())
    text = shown(replace(machine(), gpudirect_storage=read_gpudirect("")))
    assert "GPUDirect Storage, not verified on hardware" in text
    text = shown(
        replace(machine(), gpudirect_storage=read_gpudirect("cuFileDriverOpen: CU_FILE_DRIVER_NOT_INITIALIZED"))
    )
    assert "through host buffers; no GPUDirect Storage: cuFileDriverOpen" in text
    assert "fix: modprobe nvidia-fs" in text


def test_insecure_listening_is_red() -> None:
    facts = replace(machine(), listening=describe_listening("0.0.0.0:7000", secret=False, insecure=True))
    text = shown(facts, colour=True)
    assert "\x1b[1;31m0.0.0.0:7000 INSECURE" in text
    assert "ZEROHOP_SECRET" in text


@pytest.mark.parametrize(
    ("encryption", "said"),
    [
        ("none", "nothing is encrypted"),
        ("control", "control channels go through TLS, bytes on lanes are not encrypted"),
        ("all", "control channels and tcp lanes go through TLS"),
    ],
)
def test_what_is_encrypted_is_shown(encryption: str, said: str) -> None:
    listening = describe_listening("0.0.0.0:7000", secret=True, insecure=False, encryption=encryption)
    assert said in shown(replace(machine(), listening=listening))
    lacking = describe_listening(
        "0.0.0.0:7000", secret=True, insecure=False, encryption=encryption, no_tls="no OpenSSL"
    )
    assert "no OpenSSL" in shown(replace(machine(), listening=lacking))
    assert "zerohop[tls]" in shown(replace(machine(), listening=lacking))


def test_json() -> None:
    run = zerohop("info", "--json")
    assert run.returncode == 0, run.stderr
    facts = json.loads(run.stdout)
    # Of this machine, whatever it has.
    assert all(each["kind"] != "sim" and each["name"] for each in facts["accelerators"])
    assert {"shm", "tcp", "verbs", "p2p"} <= {provider["name"] for provider in facts["providers"]}
    for provider in facts["providers"]:
        assert provider["usable"] or provider["why"]
    assert facts["listening"]["loopback"] is True


@pytest.mark.parametrize("how", ["option", "environment"])
def test_simulated_devices_exist_only_when_asked_for(how: str) -> None:
    run = zerohop("info", "--sim-devices", 2) if how == "option" else zerohop("info", ZEROHOP_SIM_DEVICES="2")
    assert run.returncode == 0, run.stderr
    assert "sim:0" in run.stdout
    assert "sim:1" in run.stdout
    assert "simulated in host memory; not a GPU" in run.stdout
    assert "sim:" not in zerohop("info").stdout


def test_settings_of_the_environment_are_shown_and_checked() -> None:
    run = zerohop("info", ZEROHOP_LISTEN="0.0.0.0:0")
    assert run.returncode == 0
    assert "listening on 0.0.0.0:0 without a secret is refused" in run.stdout
    run = zerohop("info", ZEROHOP_LISTEN="0.0.0.0:0", ZEROHOP_INSECURE="1")
    assert "INSECURE" in run.stdout
    run = zerohop("info", ZEROHOP_SIM_DEVICES="many")
    assert run.returncode == 1
    assert "ZEROHOP_SIM_DEVICES" in run.stderr
