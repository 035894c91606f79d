"""Notices environment variables that are named like a setting and are none: a misspelt one has no effect otherwise."""

from __future__ import annotations

import difflib
import warnings
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_PREFIX: Final = "ZEROHOP_"
# Read by other parts than a Context: the log, the build, a Group that `zerohop run` has started, and the project's own
# tests.
_OTHERS: Final = frozenset({"ZEROHOP_LOG", "ZEROHOP_WERROR", "ZEROHOP_RANK", "ZEROHOP_SIZE", "ZEROHOP_STORE"})
_OTHER_PREFIXES: Final = ("ZEROHOP_TEST_", "ZEROHOP_LAB")
# Variables that this process was warned of. A program may open many Contexts.
_warned: Final[set[str]] = set()


def warn_of_unknown(environment: Mapping[str, str], known: Collection[str]) -> None:
    """Warn once of each variable that begins with ``ZEROHOP_`` and is not in ``known``; name the most similar one."""
    for name in environment:
        if (
            name.startswith(_PREFIX)
            and name not in known
            and name not in _OTHERS
            and not name.startswith(_OTHER_PREFIXES)
            and name not in _warned
        ):
            _warned.add(name)
            words = [each.removeprefix(_PREFIX) for each in (*known, *_OTHERS)]
            similar = difflib.get_close_matches(name.removeprefix(_PREFIX), words, n=1)
            fix = f"did you mean {_PREFIX}{similar[0]}?" if similar else f"there are {', '.join(sorted(known))}"
            warnings.warn(f"{name} is no setting of zerohop and has no effect; {fix}", RuntimeWarning, stacklevel=4)
