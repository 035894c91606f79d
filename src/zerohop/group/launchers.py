"""Finds out which launcher has started this process, its rank, and the store by which the ranks find each other.

A process that belongs to several, and whose launcher leaves it no store, is refused: it never becomes a group of one.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from zerohop.errors import PeerLost, Unsupported
from zerohop.group.pmix import LIBRARY, NAMESPACE, open_pmix
from zerohop.group.stores import Exchanged, folder_store
from zerohop.shown import shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zerohop.group.stores import Store

# The variables by which `zerohop run` tells each rank its place.
RANK: Final = "ZEROHOP_RANK"
SIZE: Final = "ZEROHOP_SIZE"
STORE: Final = "ZEROHOP_STORE"
# Launchers of MPI programs tell each rank its number, and how many there are, by one of these pairs. A batch script of
# Slurm has the variables of its job, too, and is no rank; only srun numbers its step.
_MPI: Final = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)
_BY_HAND: Final = "pass Group(rank, size, store) with a store that all ranks reach, such as a folder"


class Launch(NamedTuple):
    """Says what a launcher has told this process: its rank, how many there are, a store, and who says so.

    ``store`` may be a communicator of mpi4py.
    """

    rank: int
    size: int
    store: Store | Any
    launcher: str


def find_launch(environment: Mapping[str, str], timeout_s: float) -> Launch:
    """Return what the environment of this process says.

    Args:
        environment: variables, as in ``os.environ``.
        timeout_s: seconds in which a store must answer.

    Raises:
        Unsupported: there are other ranks, and no way to find them; the error says what to install or to type.
        PeerLost: the store does not answer.
        ValueError: a variable has no number, or one out of range.
    """
    if any(name in environment for name in (RANK, SIZE, STORE)):
        return _of_zerohop(environment)
    if "WORLD_SIZE" in environment or "RANK" in environment:
        return _of_torchrun(environment, timeout_s)
    for rank, size in _MPI:
        if rank in environment and size in environment:
            return _of_mpi(environment, rank, size)
    if NAMESPACE in environment:
        service = open_pmix(environment)
        if service is None:
            why, fix = _without_pmix(environment)
            raise Unsupported(f"{NAMESPACE} is set: there may be other ranks, and {why}", fix=fix)
        return Launch(service.rank, service.size, service, "pmix")
    return Launch(0, 1, Exchanged({}), "none")


def _of_zerohop(environment: Mapping[str, str]) -> Launch:
    rank, size = _numbers(environment, RANK, SIZE, "zerohop run")
    folder = environment.get(STORE)
    if not folder:
        raise Unsupported(f"{RANK} is set and {STORE} is not", fix=f"zerohop run sets both; or {_BY_HAND}")
    return Launch(rank, size, folder_store(folder), "zerohop run")


def _of_torchrun(environment: Mapping[str, str], timeout_s: float) -> Launch:
    rank, size = _numbers(environment, "RANK", "WORLD_SIZE", "torchrun")
    host, port = environment.get("MASTER_ADDR"), environment.get("MASTER_PORT")
    if size == 1 and not (host and port):
        return Launch(0, 1, Exchanged({}), "none")
    if not host or not port:
        raise Unsupported(
            f"WORLD_SIZE is {size}, and there is no MASTER_ADDR and MASTER_PORT to find the other ranks by",
            fix=f"start the program with torchrun; or {_BY_HAND}",
        )
    if not (port.isascii() and port.isdigit() and 0 < int(port[:9]) < 1 << 16):
        raise ValueError(f"MASTER_PORT is {shown(port)}, which is no port; torchrun sets it")
    if importlib.util.find_spec("torch") is None:
        raise Unsupported(
            f"torchrun's store at {host}:{port} is reached with torch, which is not installed here",
            fix=f"pip install torch; or {_BY_HAND}",
        )
    # Workers that torchrun has started again find the keys of those before them in its store.
    run = f"zerohop-{environment.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    key = host, port, run
    if key not in _torch_stores:
        _torch_stores[key] = _torch_store(*key, timeout_s)
    return Launch(rank, size, _torch_stores[key], "torchrun")


# One client for all Groups of this process, which count how many of them use it; by address, port and run.
_torch_stores: Final[dict[tuple[str, str, str], Any]] = {}


def _torch_store(host: str, port: str, run: str, timeout_s: float) -> Any:
    """Return a client of the store of torchrun, or of the rank 0 that has called init_process_group."""
    distributed = importlib.import_module("torch.distributed")
    try:
        store = distributed.TCPStore(host, int(port), is_master=False, timeout=timedelta(seconds=timeout_s))
    except (RuntimeError, ValueError) as error:  # torch's errors derive from RuntimeError
        said = str(error).splitlines()[0].rstrip(". ")
        raise PeerLost(
            f"nobody answers as torch's store at MASTER_ADDR {host}, MASTER_PORT {port}: {said}",
            fix="start the program with torchrun, or call torch.distributed.init_process_group first",
            operation="group",
        ) from None
    return distributed.PrefixStore(run, store)


def _of_mpi(environment: Mapping[str, str], rank_name: str, size_name: str) -> Launch:
    rank, size = _numbers(environment, rank_name, size_name, "the launcher of MPI programs")
    if size == 1:
        return Launch(0, 1, Exchanged({}), "none")
    service = open_pmix(environment)
    if service is not None:
        return Launch(service.rank, service.size, service, "pmix")
    why, fix = _without_pmix(environment)
    if importlib.util.find_spec("mpi4py") is None:
        raise Unsupported(f"{size_name} is {size}, {why}, and mpi4py is not installed", fix=fix)
    try:
        world = importlib.import_module("mpi4py.MPI").COMM_WORLD
    except (ImportError, RuntimeError) as error:
        raise Unsupported(f"{size_name} is {size}, {why}, and mpi4py cannot be used: {error}", fix=fix) from None
    there = world.Get_rank(), world.Get_size()
    if there != (rank, size):
        raise Unsupported(
            f"{rank_name} says rank {rank} of {size}, {why}, and mpi4py says rank {there[0]} of {there[1]}: its MPI is "
            "not the launcher's",
            fix=fix,
        )
    return Launch(rank, size, world, "mpi4py")


def _without_pmix(environment: Mapping[str, str]) -> tuple[str, str]:
    """Return why the ranks cannot be found through PMIx, and what to type."""
    if NAMESPACE in environment:
        return f"{LIBRARY} is not installed", f"apt-get install libpmix2; or {_BY_HAND}"
    if "SLURM_PROCID" in environment:
        return "srun has given no PMIx", f"srun --mpi=pmix; or install mpi4py for the cluster's MPI; or {_BY_HAND}"
    return "the launcher has no PMIx", f"install mpi4py for the launcher's MPI; or {_BY_HAND}"


def _numbers(environment: Mapping[str, str], rank_name: str, size_name: str, launcher: str) -> tuple[int, int]:
    """Return the rank and the size that two variables say; raise ValueError if they say none."""
    values = []
    for name in (rank_name, size_name):
        text = environment.get(name)
        if text is None:
            raise ValueError(f"{name} is not set: both {rank_name} and {size_name} are needed; {launcher} sets them")
        if not (text.isascii() and text.isdigit() and len(text) <= 9):
            raise ValueError(f"{name} is {shown(text)}, which is no number; {launcher} sets it")
        values.append(int(text))
    rank, size = values
    if size == 0:
        raise ValueError(f"{size_name} is 0; {launcher} sets it to the number of ranks")
    if not rank < size:
        raise ValueError(f"{rank_name} is {rank} and {size_name} is {size}; ranks are from 0 to {size - 1}")
    return rank, size


def launch_of_process(timeout_s: float) -> Launch:
    """Return what the environment of this process says, as ``find_launch``."""
    return find_launch(os.environ, timeout_s)
