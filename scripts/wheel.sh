#!/bin/bash
# wheel.sh: build the wheel into dist/ and hold it to its limits: at most 3 MiB, with the stubs and the typing marker.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/.venv/bin:$PATH"

rm -rf dist
mkdir -p build
scripts/progress.sh build/wheel.log "building the wheel" \
    python -m pip wheel -v --no-build-isolation --no-deps --wheel-dir dist .
wheel=$(echo dist/*.whl)
python - "$wheel" <<'CHECK'
import pathlib
import sys
import zipfile

wheel = pathlib.Path(sys.argv[1])
nbytes, names = wheel.stat().st_size, zipfile.ZipFile(wheel).namelist()
for wanted in ("zerohop/py.typed", "zerohop/_native.pyi", "zerohop/_native.", "zerohop/_floors."):
    if not any(name.startswith(wanted) for name in names):
        sys.exit(f"{wheel.name} holds no {wanted}")
if nbytes > 3 << 20:
    sys.exit(f"{wheel.name}: {nbytes / 2**20:.2f} MiB, the limit is 3 MiB")
print(f"{wheel}: {nbytes / 2**20:.2f} MiB of 3 MiB")
CHECK
