#!/bin/bash
# suites.sh [T]: what `make lab` runs, each suite in a guest of its own, so that one that takes the kernel down spoils
# no other; one line each, and the end of the log of one that failed. With T, one run of pytest with these arguments;
# with `bench`, the benchmarks alone. What the benchmarks found is in build/lab/out/bench/.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/.venv/bin:$PATH"
python=.venv/bin/python
say() { echo "lab: $*" >&2; }
export ZEROHOP_TEST_PROVIDERS=${ZEROHOP_TEST_PROVIDERS:-verbs}

failed=()
suite() { # NAME LIMIT-IN-SECONDS COMMAND…: the command runs in a guest
    local name=$1 limit=$2 log=build/lab/out/$1.log began=$SECONDS rc=0
    shift 2
    rm -f "$log"
    lab/run.sh --timeout "$limit" "$name" "$@" >/dev/null || rc=$?
    # What pytest and the benchmarks end with is their summary.
    local summary
    summary="$((SECONDS - began)) s: $(tail -n 1 "$log" 2>/dev/null)"
    if [ $rc = 0 ]; then
        echo "$name: ok, $summary"
    else
        echo "$name: failed ($rc), $summary"
        failed+=("$name")
        tail -n 60 "$log" >&2 || true
    fi
}

# A guest takes ten times as long to compile the tests' sources, and cannot keep what it compiled.
warm() {
    $python -m pytest -q --collect-only "$@" >build/lab/collect.log 2>&1 ||
        { tail -n 30 build/lab/collect.log >&2; exit 1; }
}

# Every program of bench/lab writes what it found where --json says. The native part is built out here.
bench() {
    local program programs=()
    for program in bench/lab/*.py; do
        [ ! -e "$program" ] || programs+=("$python $program --json \$ZEROHOP_LAB_OUT/$(basename "$program" .py).json")
    done
    [ ${#programs[@]} -gt 0 ] || { echo "bench: there is none in bench/lab"; return; }
    { cmake -S . -B build/lab/native -G Ninja -DCMAKE_BUILD_TYPE=Release -DZEROHOP_MODULES=OFF -DZEROHOP_LAB=ON \
        -DZEROHOP_LTO=ON && cmake --build build/lab/native; } >build/lab/native.log 2>&1 ||
        { tail -n 30 build/lab/native.log >&2; failed+=(bench); return; }
    suite bench 400 "set -e; $(printf '%s; ' "${programs[@]}")"
}

case ${1-} in
'') ;;
bench)
    bench
    exit ${#failed[@]}
    ;;
*)
    # Words are the caller's: make lab T='tests/lab/x.py -k name'
    arguments=()
    eval "arguments=($1)"
    exec lab/run.sh tests $python -m pytest -q "${arguments[@]}"
    ;;
esac

warm tests/conformance tests/failure tests/lab
suite conformance 900 $python -m pytest -q -m 'not slow' -k verbs tests/conformance tests/failure
suite lab 500 $python -m pytest -q -m 'not slow' tests/lab
bench
[ ${#failed[@]} = 0 ] || { say "failed: ${failed[*]}"; exit 1; }
