"""Checks the arguments of load and save, and says what to type in place of the wrong ones."""

from __future__ import annotations

import difflib
import itertools
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from zerohop.config.checks import check_encodable, check_flag, check_int
from zerohop.core.face import seconds_of
from zerohop.shown import shown
from zerohop.storage import Store
from zerohop.storage.store import check_characters

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    Where = str | os.PathLike[str]
    Names = Iterable[str] | Callable[[str], bool]
    Slices = Mapping[str, Sequence[slice] | slice]

_MIB: Final = 1 << 20
_MOST_BUDGET: Final = 1 << 40
_SCHEME: Final = "zerohop://"
_INDEX: Final = ".safetensors.index.json"
# Names that are looked through for one like a wrong one, and their length: the comparison takes long.
_MOST_NAMES: Final = 10_000
_LONGEST_NAME: Final = 200


def check_numbers(budget: Any, progress: Any, timeout: Any) -> None:
    """Check what load and save have in common."""
    check_int("budget", budget, _MIB, _MOST_BUDGET)
    if progress is not None:
        check_flag("progress", progress)
    if timeout is not None:
        seconds_of(timeout)


def paths_of(paths: Any, *, within: bool) -> list[str]:
    """Return the paths of files and folders that an argument means.

    Args:
        paths: the argument.
        within: whether they are paths of a Store.

    Raises:
        TypeError: it is no path, and nothing that has paths in it.
        ValueError: there is none, or one of them is a URL or the index of a checkpoint.
    """
    if isinstance(paths, (str, os.PathLike)):
        return [_path(paths, within=within)]
    if hasattr(paths, "read"):
        raise TypeError("paths are paths, and not open files: pass the file's name")
    if isinstance(paths, (bytes, bytearray, Mapping)) or not isinstance(paths, Iterable):
        raise TypeError(f"paths is a file, several, or a folder, each a string or a Path, not {shown(paths)}")
    found = [_path(each, within=within) for each in paths]
    if not found:
        raise ValueError("paths is empty: name a file, several, or a folder that has some")
    return found


def _path(path: Any, *, within: bool) -> str:
    text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else None
    if not isinstance(text, str):
        raise TypeError(f"a path is a string or a Path, not {shown(path)}")
    _check_path(text, "load")
    if text.endswith(_INDEX):
        raise ValueError(f"{shown(text)} only says which file has which tensor: load its folder, or the files")
    if not text and not within:
        raise ValueError('a path is empty: name a file or a folder, such as "." for the current one')
    return text


def _check_path(path: str, verb: str) -> None:
    """Raise ValueError for text that is no path: the URL of a server, or one with a null character."""
    check_characters("a path", path)
    if path.startswith(_SCHEME):
        given = "tensors, " if verb == "save" else ""
        raise ValueError(
            f"{shown(path)} is the URL of a server, and not a path: "
            f'{verb}({given}"FOLDER/model.safetensors", store="{_SCHEME}HOST:PORT")'
        )


def check_store(store: Any) -> None:
    """Check what stands for a Store; ``open_store`` looks at the rest."""
    if not isinstance(store, (Store, str, os.PathLike)):
        fix = "; metadata of save goes by its name, metadata=" if isinstance(store, Mapping) else ""
        raise TypeError(f"store is a Store, a folder, or the URL of a server, {_not(store)}{fix}")
    if not isinstance(store, Store) and not os.fspath(store):
        raise ValueError('store is empty: name a folder, such as ".", or the URL of a server')


def check_tensors(tensors: Any, path: Any) -> str:
    """Check what is saved, and return the path of the file."""
    if not isinstance(tensors, Mapping):
        if hasattr(tensors, "state_dict"):
            raise TypeError(f"tensors is a mapping, and not a {type(tensors).__name__}: pass its state_dict()")
        if isinstance(tensors, (str, os.PathLike)):
            raise TypeError("the tensors come first, and then the path: save(tensors, path)")
        raise TypeError('tensors is a mapping from names to tensors, such as {"weight": tensor}, ' + _not(tensors))
    text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else None
    if not isinstance(text, str):
        raise TypeError(f"path is a string or a Path, {_not(path)}")
    _check_path(text, "save")
    for name in tensors:
        if not isinstance(name, str):
            raise TypeError(f"a tensor's name is a string, not {shown(name)}")
        check_encodable("the name of a tensor", name)
    return text


def check_metadata(metadata: Any) -> None:
    """Check that metadata are texts alone."""
    if metadata is None:
        return
    if not isinstance(metadata, Mapping):
        raise TypeError('metadata is a mapping from texts to texts, such as {"format": "pt"}, ' + _not(metadata))
    for text in itertools.chain.from_iterable(metadata.items()):
        if not isinstance(text, str):
            raise TypeError(f"metadata has texts alone, not {shown(text)}: pass str() or json.dumps() of it")
        check_encodable("metadata", text)


def chosen(names: Names | None, found: Collection[str]) -> Collection[str]:
    """Return those of the names found that ``names`` of load chooses.

    Raises:
        TypeError: it is neither names nor a function.
        ValueError: there is no tensor of a name.
    """
    if names is None:
        return found
    if callable(names):
        return {name for name in found if names(name)}
    given: Any = names
    if isinstance(given, (bytes, bytearray)) or not isinstance(given, Iterable):
        raise TypeError(f"names are names of tensors, or a function that says so of each name, not {shown(names)}")
    taken = [names] if isinstance(names, str) else list(names)
    _check_known(taken, found, "names")
    return set(taken)


def check_slices(slices: Any, found: Collection[str]) -> None:
    """Check that slices are a mapping from names of tensors; ``part_of`` checks the slices themselves."""
    if slices is None:
        return
    if not isinstance(slices, Mapping):
        raise TypeError('slices is a mapping from names of tensors, such as {"weight": slice(0, 10)}, ' + _not(slices))
    _check_known(slices, found, "slices")


def _check_known(given: Iterable[Any], found: Collection[str], what: str) -> None:
    for name in given:
        if not isinstance(name, str):
            raise TypeError(f"{what}: the name of a tensor is a string, not {shown(name)}")
        if name not in found:
            short = (each for each in found if len(each) <= _LONGEST_NAME)
            some = list(itertools.islice(short, _MOST_NAMES))
            near = difflib.get_close_matches(name[:_LONGEST_NAME], some, 3)
            there = f"; there is {near}" if near else ""
            raise ValueError(f"{what}: no tensor {shown(name)} is in these files{there}")


def _not(value: object) -> str:
    """Return what was given instead, by its type: the value itself may be large."""
    return f"not {type(value).__name__}"
