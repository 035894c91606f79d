"""Loads tensors of safetensors files: plans what to read first, and reads it within a budget."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any, Final, Literal

from zerohop.config.checks import check_int
from zerohop.integrations.safetensors.frameworks import framework_of
from zerohop.integrations.safetensors.layout import SafetensorsError
from zerohop.integrations.safetensors.making import Tensors
from zerohop.integrations.safetensors.plan import PAGE, Wanted, plan
from zerohop.integrations.safetensors.progress import shown_progress
from zerohop.integrations.safetensors.reading import SLOTS, Reader
from zerohop.integrations.safetensors.selection import part_of, whole
from zerohop.integrations.safetensors.sources import opened, paths_of, store_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from zerohop.integrations.safetensors.layout import TensorEntry
    from zerohop.integrations.safetensors.sources import Source, Where
    from zerohop.storage import Store

    Names = Iterable[str] | Callable[[str], bool]
    Slices = Mapping[str, Sequence[slice] | slice]

_MIB: Final = 1 << 20
_BUDGET: Final = 64 * _MIB
_MOST_BUDGET: Final = 1 << 40


def load(
    paths: Where | Iterable[Where],
    device: Any = "cpu",
    store: Store | Where | None = None,
    names: Names | None = None,
    slices: Slices | None = None,
    *,
    budget: int = _BUDGET,
    framework: Literal["torch", "numpy"] = "torch",
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
        framework: what the tensors are: ``"torch"`` or ``"numpy"``.
        progress: whether to show a bar with the rate on the standard error; None: if that is a terminal.
        timeout: seconds for each read of at most 16 MiB; None: the Store's.

    Raises:
        SafetensorsError: a file breaks the format, or two files have a tensor of the same name.
        ValueError, TypeError: an argument makes no sense; there is no tensor of a name.
        Unsupported: the framework has no such dtype, or is not installed.
        OSError: a file cannot be opened or read; StorageError, which is one, where the Store refuses it.
        EndOfFile: a file became shorter meanwhile.
        PeerLost, DeadlineExceeded, LimitReached, RegistrationFailed, Closed: as for ``File.read_into``.
    """
    check_int("budget", budget, _MIB, _MOST_BUDGET)
    makes = framework_of(framework, device)
    files = paths_of(paths)
    with (
        store_of(store, budget, files) as reads_by,
        opened(reads_by, files, within=store is not None) as sources,
    ):
        chosen = _chosen(sources, names, slices or {})
        for entry, _ in chosen:
            makes.check(entry.dtype)
        wanted = [each for _, each in chosen]
        slot = budget // SLOTS // PAGE * PAGE
        tensors = Tensors(makes, chosen, slot)
        reads = plan(wanted, [source.layout.nbytes for source in sources], slot)
        with shown_progress("loading", sum(read.nbytes for read in reads), progress) as done:
            Reader(reads_by, [source.file for source in sources], tensors, timeout, done).run(reads)
    return {entry.name: tensor for (entry, _), tensor in zip(chosen, tensors.made, strict=True)}


def _chosen(sources: list[Source], names: Names | None, slices: Slices) -> list[tuple[TensorEntry, Wanted]]:
    """Return the tensors to load, and where their bytes are."""
    found: dict[str, tuple[int, TensorEntry]] = {}
    for number, source in enumerate(sources):
        for entry in source.layout.tensors:
            if entry.name in found:
                first = sources[found[entry.name][0]].file.path
                raise SafetensorsError(f"tensor {entry.name!r} is in {first} and in {source.file.path}")
            found[entry.name] = number, entry
    _check_known(slices, found, "slices")
    if names is None:
        taken = set(found)
    elif callable(names):
        taken = {name for name in found if names(name)}
    else:
        taken = set([names] if isinstance(names, str) else names)
        _check_known(taken, found, "names")
    return [
        (entry, Wanted(number, sources[number].layout.data_start + entry.offset, _part(entry, slices)))
        for name, (number, entry) in found.items()
        if name in taken
    ]


def _part(entry: TensorEntry, slices: Slices) -> Any:
    return part_of(entry, slices[entry.name]) if entry.name in slices else whole(entry)


def _check_known(given: Iterable[str], found: Mapping[str, object], what: str) -> None:
    for name in given:
        if name not in found:
            near = difflib.get_close_matches(str(name), list(found), 3)
            raise ValueError(f"{what}: no tensor {name!r} is in these files{f'; there is {near}' if near else ''}")
