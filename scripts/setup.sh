#!/bin/bash
# setup.sh [--native-tests] [EXTRA…]: make .venv, install the package's requirements and those of the extras, build the
# package in it; with --native-tests also ask for what the native tests are compiled with.
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
has_header() { c++ -x c++ -E - <<<"#include <$1>"; }
if [ ! -e .venv/.complete ] || [ ! -e build/stamps/system ]; then
    need g++ c++ --version
    need python3 "$python" --version
    need python3-venv "$python" -c 'import ensurepip, venv'
    need python3-dev "$python" -c 'import pathlib, sysconfig; (pathlib.Path(sysconfig.get_path("include")) / "Python.h").stat()'
    # RDMA and io_uring are built where these are; without them the rest is.
    wish() { # PACKAGE HEADER WHAT
        has_header "$2" >/dev/null 2>&1 && return
        if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
            missing+=("$1")
        else
            say "building without $3; for it: sudo apt-get install -y $1, then make clean build"
        fi
    }
    wish libibverbs-dev infiniband/verbs.h RDMA
    wish liburing-dev liburing.h io_uring
fi
if [ "${1:-}" = --native-tests ]; then
    shift
    need doctest-dev has_header doctest/doctest.h
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
    export DEBIAN_FRONTEND=noninteractive
    # shellcheck disable=SC2016 # the inner shell expands it
    scripts/progress.sh build/stamps/apt.log "apt-get install ${missing[*]}" \
        bash -c 'apt-get update -q && apt-get install -y -q --no-install-recommends "$@"' apt-get "${missing[@]}"
fi
touch build/stamps/system

if [ ! -e .venv/.complete ]; then
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
        { say "Python 3.10 or later is needed, $python is $("$python" --version)"; exit 1; }
    say "making .venv with $("$python" --version)"
    # This interpreter cannot use a build that another one made.
    rm -rf .venv build/release build/stamps/requirements-* build/stamps/package
    "$python" -m venv .venv
    touch .venv/.complete
fi
export PATH="$PWD/.venv/bin:$PATH" PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
unset PYTHONPATH PYTHONHOME

# A list that was installed is remembered as a file, so that `make demo` after `make lint` asks the index for nothing.
pip_install() { # NAME-OF-LOG WHAT ARGUMENT…
    scripts/progress.sh "build/stamps/$1.log" "$2" .venv/bin/python -m pip install --no-warn-script-location "${@:3}"
}
for extra in build "$@"; do
    stamp=build/stamps/requirements-$extra
    .venv/bin/python scripts/requirements.py "$extra" >"$stamp.new"
    if ! cmp -s "$stamp.new" "$stamp"; then
        pip_install "pip-$extra" "installing what '$extra' needs" -r "$stamp.new"
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
    rm -f build/stamps/package
    pip_install package building -v --no-build-isolation --no-deps \
        --config-settings=cmake.define.ZEROHOP_WERROR="$ZEROHOP_WERROR" --editable .
    echo "$state" >build/stamps/package
fi
