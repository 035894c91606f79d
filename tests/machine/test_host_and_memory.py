"""Processor, kernel, memory and limits, read from the files of this machine and of invented ones."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from zerohop.machine.host import read_cpu, read_kernel, read_limits, read_memory


def put(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_cpu_of_this_machine() -> None:
    cpu = read_cpu(Path("/"))
    assert cpu.architecture == os.uname().machine
    assert 1 <= cpu.usable <= cpu.online
    assert cpu.numa_nodes >= 1


def test_cpu_quota_and_numa_nodes(tmp_path: Path) -> None:
    root = put(
        tmp_path,
        {"proc/cpuinfo": "model name\t: Acme 9000\nmodel name\t: other\n", "sys/fs/cgroup/cpu.max": "150000 100000\n"},
    )
    for node in ("node0", "node1", "power"):
        (root / "sys/devices/system/node" / node).mkdir(parents=True)
    cpu = read_cpu(root)
    assert (cpu.model, cpu.quota, cpu.numa_nodes) == ("Acme 9000", 1.5, 2)


def test_cpu_without_a_quota(tmp_path: Path) -> None:
    assert read_cpu(put(tmp_path, {"sys/fs/cgroup/cpu.max": "max 100000\n"})).quota is None
    assert read_cpu(tmp_path / "nothing").quota is None


def test_kernel(tmp_path: Path) -> None:
    files = {
        "etc/os-release": 'NAME="X"\nPRETTY_NAME="Acme Linux 12 (bookworm)"\n',
        "proc/sys/kernel/osrelease": "6.1.0-9-acme\n",
        "proc/cpuinfo": "flags\t: fpu hypervisor sse\n",
    }
    kernel = read_kernel(put(tmp_path, files))
    assert (kernel.release, kernel.distribution, kernel.virtual) == ("6.1.0-9-acme", "Acme Linux 12 (bookworm)", True)


def test_kernel_of_this_machine_and_of_an_empty_one(tmp_path: Path) -> None:
    assert read_kernel(Path("/")).release == os.uname().release
    assert read_kernel(tmp_path).distribution == "unknown"


def test_memory_of_this_machine() -> None:
    memory = read_memory(Path("/"))
    assert memory.total is not None
    assert memory.available is not None
    assert memory.total == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < memory.available <= memory.total


def test_memory_from_files(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": "MemTotal:       1000 kB\nMemAvailable:    400 kB\n",
        "sys/fs/cgroup/memory.max": "5000000\n",
        "sys/kernel/mm/transparent_hugepage/shmem_enabled": "always within_size [advise] never\n",
        "dev/shm/x": "",
    }
    memory = read_memory(put(tmp_path, files))
    assert (memory.total, memory.available, memory.cgroup_limit) == (1_024_000, 409_600, 5_000_000)
    assert memory.shared_huge_pages == "advise"
    facts = os.statvfs(tmp_path)
    assert memory.shared_total == facts.f_frsize * facts.f_blocks


def test_memory_says_nothing_that_it_does_not_know(tmp_path: Path) -> None:
    memory = read_memory(put(tmp_path, {"sys/fs/cgroup/memory.max": "max\n"}))
    assert memory.total is None
    assert memory.cgroup_limit is None
    assert memory.shared_total is None


def test_limits_follow_the_process() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(soft, 512) if soft != resource.RLIM_INFINITY else 512
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    try:
        assert read_limits().descriptors == wanted
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
