"""Writes docs/settings.md from the table in zerohop/config/settings.py, or checks that it agrees with the table.

settings_page.py write|check
"""

from __future__ import annotations

import sys
from pathlib import Path

from zerohop.config.settings import SETTINGS, Setting
from zerohop.core.base import log

PAGE = Path(__file__).parent.parent / "docs" / "settings.md"

HEAD = """# Settings

Every default of a `Context`. An argument in the call wins over the environment variable, which wins over the default.
A value that makes no sense is a `ValueError` that names where it came from.

| argument | variable | default | meaning |
|---|---|---|---|
"""

TAIL = f"""
`{log.VARIABLE}` is the whole process's: {", ".join(log.LEVELS)}. It prints to stderr what goes to Python's logger
`zerohop` from that level on: warnings of what costs speed or is to be mended; with `info` also peers and lanes that
come and go; with `debug` also the path of each pair of memories, as `explain()` has it. Without it, the program's own
logging decides.
"""


def _default(row: Setting) -> str:
    text = str(row.default)
    return f"`{text}`" if text else "none"


def page() -> str:
    rows = [f"| `{row.name}` | `{row.variable}` | {_default(row)} | {row.help} |\n" for row in SETTINGS]
    return HEAD + "".join(rows) + TAIL


def main() -> int:
    if sys.argv[1:] == ["write"]:
        PAGE.write_text(page(), encoding="utf-8")
        return 0
    if PAGE.read_text(encoding="utf-8") == page():
        return 0
    print("docs/settings.md differs from zerohop/config/settings.py: make stubs", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
