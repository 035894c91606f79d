#!/bin/bash
# wheels.sh: build a wheel for PyPI into dist/, and try it in an environment of its own that has no compiler.
# It is for the version of Python in .venv, and runs on every Linux with glibc 2.28 or later (manylinux_2_28). zig brings
# a compiler and the symbols of that glibc; nothing of this machine's is linked but liburing, which is static.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/.venv/bin:$PATH"

glibc=2.28
platform=manylinux_${glibc/./_}_x86_64
root=$PWD/build/wheels
fail() {
    echo "zerohop: $*" >&2
    exit 1
}
[ "$(uname -m)" = x86_64 ] || fail "wheels for PyPI are built, and tried, on x86-64 alone. Fix: make wheel"
rm -rf "$root"
mkdir -p "$root/bin" "$root/include" "$root/raw"
for language in cc c++; do
    printf '#!/bin/sh\nexec "%s" -m ziglang %s -target x86_64-linux-gnu.%s -isystem "%s" "$@"\n' \
        "$PWD/.venv/bin/python" "$language" "$glibc" "$root/include" >"$root/bin/zig-$language"
    chmod +x "$root/bin/zig-$language"
done
# The headers of these libraries alone: those of the system's glibc are others than zig's.
for header in infiniband rdma liburing liburing.h; do
    [ -e "/usr/include/$header" ] ||
        fail "/usr/include/$header is missing. Fix: apt-get install -y libibverbs-dev liburing-dev"
    ln -s "/usr/include/$header" "$root/include/$header"
done
# Debian's Python.h includes one of these by its folder below /usr/include.
for folder in /usr/include/x86_64-linux-gnu/python*; do
    [ -e "$folder" ] && mkdir -p "$root/include/x86_64-linux-gnu" && ln -s "$folder" "$root/include/x86_64-linux-gnu/"
done
uring=$(c++ -print-file-name=liburing.a)
[ -e "$uring" ] || fail "liburing.a is missing. Fix: apt-get install -y liburing-dev"

CC=$root/bin/zig-cc CXX=$root/bin/zig-c++ scripts/progress.sh "$root/build.log" "building a wheel for $platform" \
    python -m pip wheel -v --no-build-isolation --no-deps --wheel-dir "$root/raw" \
    --config-settings=build-dir="$root/build" \
    --config-settings=cmake.define.VERBS_INCLUDE_DIR="$root/include" \
    --config-settings=cmake.define.URING_INCLUDE_DIR="$root/include" \
    --config-settings=cmake.define.URING_LIBRARY="$uring" .
scripts/progress.sh "$root/repair.log" "checking what it needs" auditwheel repair --plat "$platform" -w "$root/fixed" "$root"/raw/*.whl
wheel=$(echo "$root"/fixed/*.whl)
python scripts/check_wheel.py "$wheel"

# PATH has no compiler here, and nothing of this checkout.
python -m venv "$root/venv"
scripts/progress.sh "$root/install.log" "installing it in an environment of its own" \
    "$root/venv/bin/python" -m pip install "$wheel"
cd "$root"
for command in info doctor demo; do
    echo "zerohop: zerohop $command" >&2
    env -i HOME="$HOME" PATH="$root/venv/bin" zerohop "$command" >"$root/$command.log" 2>&1 || {
        tail -20 "$root/$command.log" >&2
        fail "zerohop $command failed, see $root/$command.log"
    }
done
if grep "this build of zerohop has no" info.log >&2; then
    fail "the wheel lacks that"
fi
cd - >/dev/null
mkdir -p dist
cp "$wheel" dist/
