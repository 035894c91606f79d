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
python scripts/check_wheel.py "$wheel"
