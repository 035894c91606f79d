"""What the doctor reads: configuration space, link modes, this process, its system."""

from __future__ import annotations

import gzip
import ipaddress
import os
import resource
import struct
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.doctor import GPU_ADDRESSES, NIC_ADDRESSES, RELEASE, config_space, healthy, process, read, routes
from support.forking import in_child
from support.nobody import NOBODY
from support.sysfs import Port, Sysfs
from zerohop.machine import files
from zerohop.machine.doctor import system
from zerohop.machine.doctor.pci_functions import ConfigSpace, PciLink, decode, read_config_space, read_nic_functions
from zerohop.machine.doctor.process import fastest, load_library, locks_freely, may_exceed, read_process
from zerohop.machine.doctor.words import size
from zerohop.machine.host import Limit

if TYPE_CHECKING:
    from collections.abc import Callable

ALL_CAPABILITIES, WITHOUT_IPC_LOCK = "CapEff:\t000001ffffffffff", "CapEff:\t00000000a80425fb"  # docker's default
FIRST_NAMESPACE, ROOTLESS = "         0          0 4294967295", "         0       1000          1"


def test_a_configuration_space() -> None:
    assert decode(config_space(acs=0x1D)) == ConfigSpace(True, 0x1D, 4096, True)
    assert decode(config_space(read_request=128, relaxed_ordering=False)) == ConfigSpace(True, None, 128, False)
    assert decode(config_space(read_request=None)) == ConfigSpace(True, None, None, None)


@pytest.mark.parametrize("nbytes", [0, 63, 64])
def test_a_configuration_space_that_only_root_may_read(nbytes: int) -> None:
    assert decode(config_space(acs=0x1D, nbytes=nbytes)) == ConfigSpace(readable=False)


def test_a_configuration_space_without_extended_capabilities() -> None:
    assert decode(config_space(acs=0x1D, nbytes=256)) == ConfigSpace(True, None, 4096, True)


def test_a_list_of_capabilities_that_leads_nowhere_ends() -> None:
    space = bytearray(config_space(read_request=None))
    space[0x49] = 0x48  # the first one is its own successor
    space[0x100:0x104] = (0x100 << 20 | 0x10001).to_bytes(4, "little")
    assert decode(bytes(space)) == ConfigSpace(True, None, None, None)
    space[0x49] = 0x10  # into the header
    assert decode(bytes(space)) == ConfigSpace(True, None, None, None)
    space[0x06] = 0  # no list at all
    assert decode(bytes(space)) == ConfigSpace(True, None, None, None)
    space[0x100:0x104] = (0x10001).to_bytes(4, "little")  # the last extended one; byte 0 is no capability
    space[0:2] = 0x0D, 0x00
    assert decode(bytes(space)) == ConfigSpace(True, None, None, None)
    assert decode(bytes([0xFF] * 4096)) == ConfigSpace(True, None, None, None)  # a function that fell off the bus


def test_a_configuration_space_that_is_cut_off_in_the_middle() -> None:
    for nbytes in range(65, 4096, 7):
        decode(config_space(acs=0x1D, nbytes=nbytes))
    assert decode(config_space(nbytes=0x68)).read_request is None


def test_a_configuration_space_that_is_not_there(tmp_path: Path) -> None:
    assert read_config_space(tmp_path) == ConfigSpace(readable=False)


def kernel(*supported: int, words: int = 4) -> Callable[[str, bytearray], None]:
    """Answers as the kernel does: the first time with the number of words, then with the masks."""

    def answer(_: str, request: bytearray) -> None:
        assert struct.unpack_from("I", request)[0] == 0x4C
        if len(request) == 48:
            struct.pack_into("b", request, 15, -words)
            return
        assert struct.unpack_from("b", request, 15)[0] == words
        mask = sum(1 << bit for bit in supported)
        request[48 : 48 + 4 * words] = mask.to_bytes(4 * words, "little")
        request[48 + 4 * words :] = b"\xff" * (8 * words)  # what is advertised does not count

    return answer


@pytest.mark.parametrize(
    ("supported", "speed"),
    [((5, 12), 10), ((31, 36), 100), ((6, 7, 10, 13), None), ((0, 62, 89), 400), ((93,), 800), ((), None)],
)
def test_the_fastest_link_mode(supported: tuple[int, ...], speed: float | None) -> None:
    assert fastest("eth0", kernel(*supported)) == speed


def test_an_interface_whose_driver_has_no_link_modes() -> None:
    assert fastest("eth0", kernel(words=0)) is None
    assert fastest("lo") is None
    assert fastest("no-such-interface") is None


def test_links() -> None:
    assert (str(PciLink(32.0, 16)), str(PciLink())) == ("32 GT/s x16", "speed not known x?")
    gen5, gen2 = PciLink(32.0, 16).gbit_per_s, PciLink(5.0, 8).gbit_per_s
    assert gen5 is not None
    assert (round(gen5), gen2, PciLink(None, 8).gbit_per_s, PciLink(5.0).gbit_per_s) == (504, 32.0, None, None)


def test_nics_are_recognised_by_their_maker_or_by_their_device(tmp_path: Path) -> None:
    sysfs = Sysfs(tmp_path)
    sysfs.pci("0000:01:00.0", "mlx5_core", vendor="0x15b3", device="0x1021", **{"class": "0x020700"})
    sysfs.pci("0000:02:00.0", "bnxt_en", vendor="0x14e4", device="0x1750", **{"class": "0x020000"})
    broadcom = sysfs.pci("0000:03:00.0", "bnxt_en", vendor="0x14e4", device="0x1750", **{"class": "0x020000"})
    sysfs.rdma("bnxt_re0", broadcom, Port())
    sysfs.pci("0000:06:00.0", "ena", vendor="0x1d0f", device="0xec20", **{"class": "0x020000"})  # Amazon's Ethernet
    sysfs.pci("0000:07:00.0", "other", vendor="0x1234", device="0xefa1", **{"class": "0x020000"})
    sysfs.pci("0000:04:00.0", "nvme", vendor="0x15b3", device="0x6001", **{"class": "0x010802"})  # an emulated disk
    intel = sysfs.pci("0000:05:00.0", "ixgbe", vendor="0x8086", **{"class": "0x020000"})
    sysfs.rdma("rxe0", intel, Port(), parent="eth0")  # a software device over its interface, on older kernels
    found = [(function.address, function.rdma) for function in read_nic_functions(tmp_path)]
    assert found == [("0000:01:00.0", None), ("0000:03:00.0", "bnxt_re0")]


def test_functions_have_their_windows_and_slots(tmp_path: Path) -> None:
    healthy(tmp_path)
    system = read(tmp_path)
    gpu = system.gpus[0].function
    assert (gpu.address, gpu.bars) == (GPU_ADDRESSES[0], (1 << 24, 1 << 37))
    assert (gpu.slot, gpu.iommu) == (PciLink(32.0, 16), None)
    assert [function.address for function in system.hardware] == sorted(NIC_ADDRESSES)


@pytest.mark.parametrize(
    ("status", "uid_map", "free"),
    [
        (ALL_CAPABILITIES, FIRST_NAMESPACE, True),
        (ALL_CAPABILITIES, ROOTLESS, False),
        (WITHOUT_IPC_LOCK, FIRST_NAMESPACE, False),
        ("CapEff:\t0000000000004000", FIRST_NAMESPACE, True),
        ("CapInh:\t0000000000004000\nCapEff:\t0000000000000000", FIRST_NAMESPACE, False),
        ("", "", False),
    ],
)
def test_who_may_lock_memory_beyond_the_limit(status: str, uid_map: str, free: bool) -> None:
    assert locks_freely(status, uid_map) is free


def test_without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel is asked itself, and says the same as its texts."""
    told = read_process()
    monkeypatch.setattr(files, "text", lambda _: None)
    limited = in_child(lambda: _limited_to(8 << 20))
    assert limited == repr(told.locks_freely)


def _limited_to(nbytes: int) -> str:
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (nbytes, nbytes))
    return repr(read_process().locks_freely)


@pytest.mark.parametrize("nbytes", [0, 8 << 20])
def test_a_user_without_the_right_to_lock(nbytes: int) -> None:
    """The limit holds for a user who is not root, whether or not something may be locked at all."""

    def told() -> str:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (nbytes, nbytes))
        if os.geteuid() == 0:
            os.setuid(int(NOBODY))
        return repr([may_exceed(Limit(soft, None)) for soft in (nbytes, None, 1 << 62)])

    assert in_child(told) == repr([False, False, False])


def test_the_limits_of_this_process() -> None:
    def limited() -> str:
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (4096, 8192))
        resource.setrlimit(resource.RLIMIT_NOFILE, (300, 400))
        found = read_process()
        return repr((found.memlock, found.descriptors))

    assert in_child(limited) == repr((Limit(4096, 8192), Limit(300, 400)))


def test_what_this_process_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZEROHOP_NICS", "mlx5_0")
    monkeypatch.setenv("RDMAV_FORK_SAFE", "1")
    found = read_process()
    assert found.environment["ZEROHOP_NICS"] == "mlx5_0"
    assert found.environment["RDMAV_FORK_SAFE"] == "1"
    assert "PATH" not in found.environment
    assert None not in found.fastest.values()
    texts = [Path(f"/proc/self/{name}").read_text("ascii") for name in ("status", "uid_map")]
    assert found.locks_freely is locks_freely(*texts)
    assert "tcp" in [provider[0] for provider in found.providers]
    assert ("verbs", True) not in [provider[:2] for provider in found.providers] or found.verbs


def test_a_library_is_loaded_as_the_native_module_does_it() -> None:
    there = load_library(("libc.so.6",))
    assert there.path.startswith("/")
    assert "libc" in there.path
    assert (there.why_not, there.dma_buf) == ("", False)
    missing = load_library(("libnothing.so.1", "libnothing.so"))
    assert (missing.path, missing.why_not[:16]) == ("", "libnothing.so.1:")
    assert load_library(("libnothing.so.1", "libc.so.6")).path == there.path


@pytest.mark.parametrize(
    ("files", "mounts", "environment", "container"),
    [
        ((), "", {}, ""),
        ((".dockerenv",), "proc /proc proc rw 0 0\n/dev/sda1 /etc/hostname ext4 rw 0 0", {}, "docker"),
        ((".dockerenv",), "proc /proc proc rw 0 0\nrun /etc/hosts tmpfs rw 0 0", {}, ""),  # a disk image made of one
        (("run/.containerenv",), "", {"container": "podman"}, "podman"),
        ((), "", {"KUBERNETES_SERVICE_HOST": "10.96.0.1"}, "kubernetes"),
        (("var/run/secrets/kubernetes.io/token",), "", {}, "kubernetes"),
        ((), "", {"container": "lxc"}, "lxc"),
    ],
)
def test_containers(
    tmp_path: Path, files: tuple[str, ...], mounts: str, environment: dict[str, str], container: str
) -> None:
    Sysfs(tmp_path).put("proc", mounts=mounts)
    for file in files:
        folder, _, name = file.rpartition("/")
        Sysfs(tmp_path).put(folder, **{name: ""})
    assert system.read_container(tmp_path, environment) == container


def test_modules_are_those_that_are_loaded_and_those_that_are_built_in(tmp_path: Path) -> None:
    sysfs = Sysfs(tmp_path)
    sysfs.put("proc", modules="rdma_rxe 135168 0 - Live 0x0\nib_core 442368 6 - Live 0x0")
    sysfs.put("sys/module/nvidia", version="580.95.05")
    sysfs.put("sys/module/ib_core")
    assert system.read_modules(tmp_path) == {"rdma_rxe": "", "ib_core": "", "nvidia": "580.95.05"}
    assert system.read_modules(tmp_path / "nothing") == {}


def test_the_kernels_configuration(tmp_path: Path) -> None:
    assert system.read_config(tmp_path, RELEASE) is None
    text = "CONFIG_HSA_AMD_P2P=y\n# CONFIG_PCI_P2PDMA is not set\nCONFIG_OTHER=m\n"
    sysfs = Sysfs(tmp_path)
    sysfs.put("proc", **{"config.gz": "not compressed"})
    assert system.read_config(tmp_path, RELEASE) is None
    (tmp_path / "proc/config.gz").write_bytes(gzip.compress(text.encode()))
    assert system.read_config(tmp_path, RELEASE) == {"CONFIG_HSA_AMD_P2P": "y"}
    sysfs.put("boot", **{f"config-{RELEASE}": text.replace("=y", "=m")})
    assert system.read_config(tmp_path, RELEASE) == {"CONFIG_HSA_AMD_P2P": "m"}


def test_networks_of_interfaces(tmp_path: Path) -> None:
    routes(Sysfs(tmp_path), {"eth1": "10.9.0.0/24", "eth2": "192.168.128.0/17"})
    assert system.read_subnets(tmp_path) == {
        "eth1": (ipaddress.IPv4Network("10.9.0.0/24"),),
        "eth2": (ipaddress.IPv4Network("192.168.128.0/17"),),
    }
    assert system.read_subnets(tmp_path / "nothing") == {}


def test_arp_settings_are_the_greater_of_all_and_the_interfaces(tmp_path: Path) -> None:
    sysfs = Sysfs(tmp_path)
    sysfs.put("proc/sys/net/ipv4/conf/all", arp_ignore=0, arp_announce=2, rp_filter=2)
    sysfs.put("proc/sys/net/ipv4/conf/eth1", arp_ignore=1, arp_announce=0, rp_filter=1)
    found = system.read_arp_settings(tmp_path, ("eth1", "eth2"))
    assert found["eth1"] == {"arp_ignore": 1, "arp_announce": 2, "rp_filter": 2}
    assert found["eth2"] == {"arp_ignore": 0, "arp_announce": 2, "rp_filter": 2}


def test_distributions(tmp_path: Path) -> None:
    Sysfs(tmp_path).put("etc", **{"os-release": 'ID="rocky"\nID_LIKE="rhel centos fedora"'})
    assert system.read_distribution(tmp_path) == ("rocky", "rhel", "centos", "fedora")
    assert system.read_distribution(tmp_path / "nothing") == ()


def test_an_empty_machine_can_be_read(tmp_path: Path) -> None:
    system = read(tmp_path, process(environment={"ZEROHOP_NICS": "mlx5_0,", "ZEROHOP_VERBS": "mtu=1"}))
    assert (system.hcas, system.gpus, system.nic_functions, system.open_nvidia) == ((), (), (), None)
    assert [error.partition(":")[0] for error in system.setting_errors] == ["ZEROHOP_NICS", "ZEROHOP_VERBS"]


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 KiB"), (65536, "64 KiB"), (8 << 20, "8 MiB"), ((47 << 30) // 2, "23.5 GiB"), (2 << 40, "2 TiB")],
)
def test_sizes(nbytes: int, text: str) -> None:
    assert size(nbytes) == text
