#!/bin/bash
# suites.sh [T]: what `make lab` runs, each suite in a guest of its own, so that one that takes the kernel down spoils
# no other; one line each, and the end of the log of one that failed. With T, one run of pytest with these arguments;
# with `bench`, the benchmarks alone, with more pairs; with `large`, a transfer of 2.5 GiB. What the benchmarks found is
# in build/lab/out/bench/.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/.venv/bin:$PATH"
python=.venv/bin/python
say() { echo "lab: $*" >&2; }
export ZEROHOP_TEST_PROVIDERS=${ZEROHOP_TEST_PROVIDERS:-verbs}

failed=()
# In a guest the tests say what they did, and which were flaky, in the folder that comes back.
ours=${ZEROHOP_TEST_REPORT-} flaky=${ZEROHOP_TEST_FLAKY-}
unset ZEROHOP_TEST_REPORT ZEROHOP_TEST_FLAKY
collect_report() { # NAME
    local out=build/lab/out/$1
    [ -z "$ours" ] || [ ! -e "$out/report" ] || cat "$out/report" >>"$ours"
    [ -z "$flaky" ] || [ ! -e "$out/flaky" ] || cat "$out/flaky" >>"$flaky"
}
report() { # NAME RC SECONDS LOG: what pytest and the benchmarks end with is their summary
    if [ "$2" = 0 ]; then
        echo "$1: ok, $3 s: $(tail -n 1 "$4")"
    else
        tail -n 60 "$4" >&2 || true
        failed+=("$1: failed ($2), $3 s: $(tail -n 1 "$4" 2>/dev/null)")
        say "${failed[-1]}"
    fi
}

# One at a time: each spins on both processors, and two take longer together than one after the other.
suite() { # NAME LIMIT-IN-SECONDS COMMAND…: the command runs in a guest
    local name=$1 limit=$2 log=build/lab/out/$1.log began=$SECONDS rc=0
    shift 2
    rm -f "$log"
    lab/run.sh --memory "${memory-4G}" --timeout "$limit" "$name" "$@" >/dev/null || rc=$?
    report "$name" $rc $((SECONDS - began)) "$log"
    collect_report "$name"
}

# Two guests, of which one is killed.
host_loss() {
    local log=build/lab/out/host-loss-a.log began=$SECONDS rc=0 program="$python tests/lab/host_loss.py"
    rm -f "$log"
    lab/two_guests.sh --timeout 240 host-loss "$program survivor" "$program doomed" >/dev/null || rc=$?
    report host-loss $rc $((SECONDS - began)) "$log"
}

# The example of operations between hosts, from one guest to another, every byte checked.
two_hosts() {
    local log=build/lab/out/two-hosts-b.log began=$SECONDS rc=0
    local program="$python examples/dist_rdma_ops.py --nic rxn"
    rm -f "$log"
    lab/two_guests.sh --timeout 240 two-hosts "$program --listen 10.8.0.1:7000" \
        "$program --connect 10.8.0.1:7000 --iterations 3" >/dev/null || rc=$?
    grep -q 'All bytes verified on both sides' "$log" || rc=1
    report two-hosts $rc $((SECONDS - began)) "$log"
}

# A guest takes ten times as long to compile sources, and cannot keep what it compiled.
warm() {
    $python -m compileall -q src/zerohop tests/support examples bench/lab
    $python -m pytest -q --collect-only "$@" >build/lab/collect.log 2>&1 ||
        { tail -n 30 build/lab/collect.log >&2; exit 1; }
}

# Each writes what it found where --json says. The native part is built out here. With ZEROHOP_TEST_SLICE=K/N one of the
# four programs runs; 1/1: all.
bench() { # PAIRS CONNECTIONS
    local command out="\$ZEROHOP_LAB_OUT" commands slice=${ZEROHOP_TEST_SLICE-}
    commands=("perftest.py --pairs $1" "python_writes.py --pairs $1" "instructions.py" "connections.py --count $2")
    case $slice in
    '' | */1) ;;
    *) commands=("${commands[$((${slice%/*} % ${#commands[@]}))]}") ;;
    esac
    { scripts/progress.sh build/lab/configure.log "configuring the lab's programs" \
        cmake -S . -B build/lab/native -G Ninja -DCMAKE_BUILD_TYPE=Release -DZEROHOP_MODULES=OFF -DZEROHOP_LAB=ON \
        -DZEROHOP_LTO=ON &&
        scripts/progress.sh build/lab/native.log "building the lab's programs" cmake --build build/lab/native; } ||
        { failed+=("bench: its programs cannot be built"); return; }
    local all="set -e"
    for command in "${commands[@]}"; do
        all+="; $python bench/lab/$command --json $out/${command%%.py*}.json"
    done
    suite bench 1500 "$all"
    cat build/lab/out/bench.log
}

unset PYTHONDONTWRITEBYTECODE
case ${1-} in
'') ;;
bench)
    # The other ends of a thousand connections are in the guest too: in 4 GiB they came as far as 600.
    memory=8G bench 20 1000
    if grep MISSED build/lab/out/bench.log >&2; then failed+=(targets); fi
    exit ${#failed[@]}
    ;;
large)
    # Between two processes, in memory of 2.5 GiB each, of which the guest's tools leave 7.
    memory=9G suite large 1500 $python -m pytest -q -m slow -k 'verbs and numpy' tests/conformance/test_large.py
    if grep -q skipped build/lab/out/large.log; then say "not run: see build/lab/out/large.log"; failed+=(large); fi
    exit ${#failed[@]}
    ;;
*)
    # Words are the caller's: make lab T='tests/lab/x.py -k name'
    arguments=()
    eval "arguments=($1)"
    exec lab/run.sh tests $python -m pytest -q "${arguments[@]}"
    ;;
esac

warm tests/conformance tests/failure tests/device tests/lab
# One NIC: more of them make every lane longer to set up, and have tests of their own. Between two processes: a NIC does
# not see where its peer's memory lives, and lanes within one process are in the native tests. One event loop: none is
# RDMA's. Kernels are threads of the host. Without hypothesis, which takes half a minute to import.
ZEROHOP_NICS=rxe0 suite verbs 1500 $python scripts/run_tests.py --jobs 1 --hang 600 -m 'not slow' \
    -k 'verbs and not verbs-same and not uvloop' -p no:hypothesispytest \
    --ignore tests/failure/test_hostile_bytes.py tests/conformance tests/failure tests/device/test_kernels.py
# With the part of the slow ones that ZEROHOP_TEST_SLICE names.
suite lab 900 $python scripts/run_tests.py --jobs 1 --hang 600 -m "not slow${ZEROHOP_TEST_SLICE:+ or slow}" \
    -p no:hypothesispytest tests/lab
host_loss
two_hosts
# Fewer than what is reported, to see that they work.
bench 1 20
[ ${#failed[@]} = 0 ] || { printf 'lab: %s\n' "${failed[@]}" >&2; exit 1; }
