"""Measures NIXL by its Python API, with its UCX backend."""

from __future__ import annotations

import importlib
import importlib.metadata
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from bench.peers import workload
from bench.peers.tensors import TensorHalf

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from bench.peers.workload import Case, Pages, Side

# The wheels for CUDA 13 and 12, and the wheel that chooses between them.
_PACKAGES = ("nixl_cu13", "nixl", "nixl_cu12")
_BACKENDS = ["UCX"]
_HERE = "NIXL_INIT_AGENT"


class _Half(TensorHalf):
    """Holds an agent with its defaults, and the tensor registered with it."""

    names: ClassVar[frozenset[str]] = frozenset({"write", "read", "write_pages", "write_pages_reposted", workload.LIST})

    def __init__(self, side: Side, package: ModuleType) -> None:
        """Register the tensor, and exchange the metadata."""
        super().__init__(side)
        config = package.nixl_agent_config(backends=_BACKENDS)
        self.agent: Any = package.nixl_agent(f"bench-{side.rank}", config)
        if "UCX" not in self.agent.backends:
            raise RuntimeError(f"NIXL has no UCX plugin here, only {', '.join(self.agent.get_plugin_list())}")
        self.agent.register_memory(self.tensor, backends=_BACKENDS)
        self.memory_type = "VRAM" if self.on_gpu else "DRAM"
        self.place = (self.tensor.data_ptr(), self.device.index or 0)
        if side.rank:
            side.link.send((self.agent.get_agent_metadata(), self.place))
        else:
            metadata, self.remote_place = side.link.recv()
            name = self.agent.add_remote_agent(metadata)
            self.remote_name = name.decode() if isinstance(name, bytes) else name

    def once(self, case: Case, sources: Pages, targets: Pages) -> Callable[[], object]:
        operation = "READ" if case.name == "read" else "WRITE"
        if case.batch == 1:
            self.note = "the handle of initialize_xfer is made before, and posted again"
            here, there = (self._descriptors(place, case.bytes, 1) for place in (self.place, self.remote_place))
            handle = self.agent.initialize_xfer(operation, here, there, self.remote_name, backends=_BACKENDS)
            return lambda: self._transfer(handle)
        if case.name == workload.LIST:
            self.note = "initialize_xfer with the descriptors of both sides, transfer and release"
            lengths = case.lengths()

            def ranges() -> None:
                here = self._ranges(self.place, sources, lengths)
                there = self._ranges(self.remote_place, targets, lengths)
                handle = self.agent.initialize_xfer(operation, here, there, self.remote_name, backends=_BACKENDS)
                self._transfer(handle)
                handle.release()

            return ranges
        # A list of all pages is prepared once, as NIXL's users do; each call says which of them to transfer.
        count = case.span // case.bytes
        lists = [
            self.agent.prep_xfer_dlist(who, self._descriptors(place, case.bytes, count), backends=_BACKENDS)
            for who, place in ((_HERE, self.place), (self.remote_name, self.remote_place))
        ]
        order = (lists[0], sources.astype(np.int32), lists[1], targets.astype(np.int32))
        if case.name == "write_pages_reposted":
            self.note = "the handle of make_prepped_xfer is made before, and posted again"
            prepared = self.agent.make_prepped_xfer(operation, *order, backends=_BACKENDS)
            return lambda: self._transfer(prepared)
        self.note = "make_prepped_xfer, transfer and release; the lists of all pages are prepared before"

        def pages() -> None:
            handle = self.agent.make_prepped_xfer(operation, *order, backends=_BACKENDS)
            self._transfer(handle)
            handle.release()

        return pages

    def _descriptors(self, place: tuple[int, int], nbytes: int, count: int) -> Any:
        address, device = place
        table = np.empty((count, 3), np.uint64)
        table[:, 0] = np.arange(count, dtype=np.uint64) * np.uint64(nbytes) + np.uint64(address)
        table[:, 1], table[:, 2] = nbytes, device
        return self.agent.get_xfer_descs(table, self.memory_type)

    def _ranges(self, place: tuple[int, int], offsets: Pages, lengths: Pages) -> Any:
        address, device = place
        table = np.empty((lengths.size, 3), np.uint64)
        table[:, 0] = offsets.astype(np.uint64) + np.uint64(address)
        table[:, 1], table[:, 2] = lengths, device
        return self.agent.get_xfer_descs(table, self.memory_type)

    def _transfer(self, handle: Any) -> None:
        agent = self.agent
        state = agent.transfer(handle)
        while state == "PROC":
            state = agent.check_xfer_state(handle)
        if state != "DONE":
            raise RuntimeError(f"a transfer of NIXL ended as {state}")


def find() -> tuple[ModuleType, str]:
    """Return the package and its version.

    Raises:
        ImportError: none of the wheels is installed, or the first installed one does not load.
    """
    reason = ImportError(f"none of the packages {', '.join(_PACKAGES)} is installed")
    for name in _PACKAGES:
        try:
            return importlib.import_module(name), importlib.metadata.version(name.replace("_", "-"))
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
        except importlib.metadata.PackageNotFoundError:
            return importlib.import_module(name), "unknown"
    raise reason


def run(side: Side) -> None:
    """Run one process's half."""
    package, number = find()
    side.results.send(("version", number))
    workload.run(_Half(side, package), side)
