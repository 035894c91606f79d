"""Prints the requirements of pyproject.toml, one per line: the package's own, then those of the named extras.

The project cannot be installed before its build tools are, so that pip cannot be asked for `.[extra]` first.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    from pip._vendor import tomli as tomllib


def expand(names: list[str], extras: dict[str, list[str]]) -> list[str]:
    """Return the requirements of the extras, with `zerohop[a,b]` replaced by the requirements of a and b."""
    found: list[str] = []
    for name in names:
        for requirement in extras[name]:
            own = re.fullmatch(r"zerohop\[([a-z0-9,]+)\]", requirement)
            found += expand(own[1].split(","), extras) if own else [requirement]
    return found


def main() -> None:
    project: dict[str, Any] = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = project["dependencies"] + expand(sys.argv[1:], project["optional-dependencies"])
    print("\n".join(dict.fromkeys(wanted)))


if __name__ == "__main__":
    main()
