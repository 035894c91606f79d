#!/bin/bash
# stubs.sh write|check: what is generated from the package as built: the type stubs of the native modules and
# docs/settings.md. `check` fails when the ones in the tree differ.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/.venv/bin:$PATH"

fresh=build/stubs
mkdir -p "$fresh"
for module in _native _floors; do
    python -m nanobind.stubgen --quiet --exclude-docstrings --pattern-file scripts/native_stub.pat \
        --module "zerohop.$module" --output-file "$fresh/$module.pyi"
done
ruff check --quiet --config pyproject.toml --select I,F401 --fix-only "$fresh"/*.pyi
# One line for each value of an enumeration.
sed -i '/^    [A-Z_]* = [0-9]*$/{n;/^$/d}' "$fresh"/*.pyi
ruff format --quiet --config pyproject.toml "$fresh"/*.pyi

stale=0
for module in _native _floors; do
    if [ "$1" = write ]; then
        cp "$fresh/$module.pyi" "src/zerohop/$module.pyi"
    elif ! diff -u "src/zerohop/$module.pyi" "$fresh/$module.pyi"; then
        stale=1
    fi
done
python scripts/settings_page.py "$1" || stale=1
[ $stale = 0 ] || { echo "generated files differ from the package: make stubs" >&2; exit 1; }
