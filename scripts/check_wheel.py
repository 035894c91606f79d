"""Holds a wheel to its limits: at most 3 MiB, with the stubs and the typing marker.

python scripts/check_wheel.py WHEEL
"""

from __future__ import annotations

import pathlib
import sys
import zipfile

_WANTED = ("zerohop/py.typed", "zerohop/_native.pyi", "zerohop/_native.", "zerohop/_floors.")
_MOST_BYTES = 3 << 20


def main() -> None:
    """Check the wheel that is named."""
    wheel = pathlib.Path(sys.argv[1])
    nbytes, names = wheel.stat().st_size, zipfile.ZipFile(wheel).namelist()
    for wanted in _WANTED:
        if not any(name.startswith(wanted) for name in names):
            sys.exit(f"{wheel.name} holds no {wanted}")
    if nbytes > _MOST_BYTES:
        sys.exit(f"{wheel.name}: {nbytes / 2**20:.2f} MiB, the limit is 3 MiB")
    print(f"{wheel}: {nbytes / 2**20:.2f} MiB of 3 MiB")


if __name__ == "__main__":
    main()
