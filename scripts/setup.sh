#!/bin/bash
# setup.sh [EXTRA…]: make .venv, install the package's requirements and those of the extras, build the package in it.
# Does nothing, in a few milliseconds, when all that is there already. Only root's apt-get is used, and only when
# something is missing; anyone else is told what to type. PYTHON=… picks the interpreter that .venv is made with,
# ZEROHOP_WERROR=ON makes compiler warnings errors.
set -euo pipefail
cd "$(dirname "$0")/.."
say() { echo "zerohop: $*" >&2; }

python=${PYTHON:-python3}
mkdir -p build/stamps
# Two targets at once would install over each other.
exec 9>build/stamps/lock
flock 9

missing=()
need() { # PACKAGE COMMAND…: the package is missing unless the command succeeds
    local package=$1
    shift
    "$@" >/dev/null 2>&1 || missing+=("$package")
}
if [ ! -e .venv/.complete ] || [ ! -e build/stamps/system ]; then
    need g++ c++ --version
    need doctest-dev test -e /usr/include/doctest/doctest.h -o -e /usr/local/include/doctest/doctest.h
    need python3 "$python" --version
    need python3-venv "$python" -c 'import ensurepip, venv'
    need python3-dev "$python" -c 'import pathlib, sysconfig; (pathlib.Path(sysconfig.get_path("include")) / "Python.h").stat()'
    # RDMA is built where this is; without it the rest is.
    if ! test -e /usr/include/infiniband/verbs.h; then
        if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
            missing+=(libibverbs-dev)
        else
            say "building without RDMA; for it: sudo apt-get install -y libibverbs-dev, then make clean build"
        fi
    fi
    if [ ${#missing[@]} -gt 0 ]; then
        if ! command -v apt-get >/dev/null; then
            say "missing: ${missing[*]} (Debian's names). Install them with your system's package manager."
            exit 1
        elif [ "$(id -u)" != 0 ]; then
            say "missing: ${missing[*]}. Type:"
            echo "    sudo apt-get update && sudo apt-get install -y ${missing[*]}" >&2
            exit 1
        fi
        say "apt-get install ${missing[*]}"
        export DEBIAN_FRONTEND=noninteractive
        log=build/stamps/apt.log
        { apt-get update -q && apt-get install -y -q --no-install-recommends "${missing[@]}"; } >"$log" 2>&1 </dev/null ||
            { tail -20 "$log" >&2; exit 1; }
    fi
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
        { say "Python 3.10 or later is needed, $python is $("$python" --version)"; exit 1; }
    touch build/stamps/system
fi

if [ ! -e .venv/.complete ]; then
    say "making .venv with $("$python" --version)"
    rm -rf .venv build/stamps/requirements-* build/stamps/package
    "$python" -m venv .venv
    touch .venv/.complete
fi
export PATH="$PWD/.venv/bin:$PATH" PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
unset PYTHONPATH PYTHONHOME

# A list that was installed is remembered as a file, so that `make demo` after `make lint` asks the index for nothing.
pip_install() { .venv/bin/python -m pip install -qq --no-warn-script-location "$@"; }
for extra in build "$@"; do
    stamp=build/stamps/requirements-$extra
    .venv/bin/python scripts/requirements.py "$extra" >"$stamp.new"
    if ! cmp -s "$stamp.new" "$stamp"; then
        say "installing what '$extra' needs"
        pip_install -r "$stamp.new"
        mv "$stamp.new" "$stamp"
    else
        rm "$stamp.new"
    fi
done

# The package is installed in place: Python sources are read from src/, so only the native ones make a build necessary.
export ZEROHOP_WERROR=${ZEROHOP_WERROR:-OFF}
state=$({
    .venv/bin/python --version
    echo "$ZEROHOP_WERROR"
    cat pyproject.toml CMakeLists.txt
    find native bench/floors -type f -name '*.[ch]pp' -print0 2>/dev/null | sort -z | xargs -0 -r sha256sum
    find src -type d -not -name __pycache__ | sort
} | sha256sum)
if [ "$state" != "$(cat build/stamps/package 2>/dev/null)" ]; then
    say "building"
    rm -f build/stamps/package
    pip_install --no-build-isolation --no-deps --config-settings=cmake.define.ZEROHOP_WERROR="$ZEROHOP_WERROR" --editable .
    echo "$state" >build/stamps/package
fi
