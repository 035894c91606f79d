"""Loads tensors of safetensors files: plans what to read first, and reads it within a budget."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

from zerohop.integrations.safetensors.arguments import check_numbers, check_slices, chosen, paths_of
from zerohop.integrations.safetensors.frameworks import framework_of
from zerohop.integrations.safetensors.layout import SafetensorsError
from zerohop.integrations.safetensors.making import Tensors
from zerohop.integrations.safetensors.plan import PAGE, Wanted, plan
from zerohop.integrations.safetensors.progress import shown_progress
from zerohop.integrations.safetensors.reading import SLOTS, Reader
from zerohop.integrations.safetensors.selection import part_of, whole
from zerohop.integrations.safetensors.sources import opened, store_of
from zerohop.shown import shown

if TYPE_CHECKING:
    from collections.abc import Iterable

    from zerohop.integrations.safetensors.arguments import Names, Slices, Where
    from zerohop.integrations.safetensors.layout import TensorEntry
    from zerohop.integrations.safetensors.sources import Source
    from zerohop.storage import Store

_BUDGET: Final = 64 << 20


def load(
    paths: Where | Iterable[Where],
    device: Any = "cpu",
    store: Store | Where | None = None,
    names: Names | None = None,
    slices: Slices | None = None,
    *,
    budget: int = _BUDGET,
    framework: Literal["torch", "numpy", "pt", "np"] = "torch",
    progress: bool | None = None,
    timeout: float | None = None,
) -> dict[str, Any]:
    """Load tensors of safetensors files, and return them by name, in the order of the files and of their bytes.

    Each tensor has memory of its own, and shares it with no other, no buffer and no file. Either all are returned and
    hold what the files say, or an error is raised.

    Large tensors are read straight into their memory. What is small, or cut into short runs by ``slices``, is read
    together and copied from there.

    Args:
        paths: a file or several; a folder stands for its files whose names end with ``.safetensors``.
        device: where the tensors are to be, ``"cpu"`` or ``"cuda:0"``.
        store: a Store, or the folder or URL of one, in which the paths are; None: they are those of this process.
        names: the tensors to load, or a function that says so of each name; None: all.
        slices: parts of tensors, by name: one ``slice`` for each of the first dimensions. Bytes of other parts are
            read only where they lie less than 16 KiB apart. Tensors that ``names`` leaves out are not loaded.
        budget: bytes of memory beside the tensors that data passes through, at least 1 MiB. More waits. A GPU's take
            as many on the GPU again; those on the host are ``staging_bytes`` of a Store that the caller has opened.
        framework: what the tensors are: ``"torch"`` or ``"numpy"``; ``"pt"`` and ``"np"`` are the same.
        progress: whether to show a bar with the rate on the standard error; None: if that is a terminal.
        timeout: seconds for each read of at most 16 MiB, of headers, too, and for each other answer of a server; None:
            the Store's. Files of this machine are opened within no time limit.

    Raises:
        SafetensorsError: a file breaks the format, or two files have a tensor of the same name.
        ValueError, TypeError: an argument makes no sense; there is no tensor of a name.
        Unsupported: the framework has no such dtype, or is not installed.
        MemoryError: there is no memory for a tensor; on a GPU, torch.OutOfMemoryError.
        OSError: a file cannot be opened or read; StorageError, which is one, where the Store refuses it.
        EndOfFile: a file became shorter meanwhile.
        PeerLost, DeadlineExceeded, LimitReached, RegistrationFailed, Closed: as for ``File.read_into``.
    """
    check_numbers(budget, progress, timeout)
    makes = framework_of(framework, device)
    files = paths_of(paths, within=store is not None)
    with (
        store_of(store, budget, files, timeout) as reads_by,
        opened(reads_by, files, timeout, within=store is not None) as sources,
    ):
        taken = _taken(sources, names, slices)
        for entry, part in taken:
            makes.check(entry.name, entry.dtype, part.part.shape)
        wanted = [each for _, each in taken]
        slot = budget // SLOTS // PAGE * PAGE
        tensors = Tensors(makes, taken, slot)
        reads = plan(wanted, [source.layout.nbytes for source in sources], slot)
        with shown_progress("loading", sum(read.nbytes for read in reads), progress) as done:
            Reader(reads_by, [source.file for source in sources], tensors, timeout, done).run(reads)
    return {entry.name: tensor for (entry, _), tensor in zip(taken, tensors.made, strict=True)}


def _taken(sources: list[Source], names: Names | None, slices: Slices | None) -> list[tuple[TensorEntry, Wanted]]:
    """Return the tensors to load, and where their bytes are."""
    found: dict[str, tuple[int, TensorEntry]] = {}
    for number, source in enumerate(sources):
        for entry in source.layout.tensors:
            if entry.name in found:
                first = sources[found[entry.name][0]].file.path
                if first == source.file.path:
                    raise ValueError(f"paths names {first} twice")
                raise SafetensorsError(f"tensor {shown(entry.name)} is in {first} and in {source.file.path}")
            found[entry.name] = number, entry
    check_slices(slices, found)
    names_taken = chosen(names, found)
    parts = slices or {}
    return [
        (
            entry,
            Wanted(
                number,
                sources[number].layout.data_start + entry.offset,
                part_of(entry, parts[name]) if name in parts else whole(entry),
            ),
        )
        for name, (number, entry) in found.items()
        if name in names_taken
    ]
