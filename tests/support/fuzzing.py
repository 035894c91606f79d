"""What the fuzzers of tests/fuzz share: seeds for an empty corpus, and the loop itself."""

from __future__ import annotations

import gc
import hashlib
import sys
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING

import atheris

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def fuzz(one_input: Callable[[bytes], None], seeds: Iterable[bytes]) -> None:
    """Run the target on libFuzzer's command line; never returns. An exception, a crash and a hang each end it with an
    exit code other than 0. The seeds go into the corpus folder, where one is given."""
    folders = [Path(argument) for argument in sys.argv[1:] if not argument.startswith("-") and Path(argument).is_dir()]
    if folders:
        for seed in seeds:
            (folders[0] / hashlib.sha256(seed).hexdigest()[:40]).write_bytes(seed)
    # Here, and not by atheris.instrument_imports(), which does not see through the loader of an editable installation.
    for known in gc.get_objects():
        if isinstance(known, FunctionType) and (known.__module__ or "").partition(".")[0] == "zerohop":
            atheris.instrument_func(known)
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
