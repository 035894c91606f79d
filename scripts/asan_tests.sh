#!/bin/bash
# asan_tests.sh [PYTEST ARGUMENT…]: the native tests, and the Python tests that provoke failures with the native module,
# under AddressSanitizer and UndefinedBehaviorSanitizer; with arguments, these Python tests alone. Both are of one build.
# The module goes into a second environment that borrows everything else from .venv, so that child processes find it too.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/.venv/bin:$PATH" PIP_DISABLE_PIP_VERSION_CHECK=1

root=$PWD/build/asan
if [ ! -e "$root/venv/bin/python" ]; then
    .venv/bin/python -m venv --without-pip "$root/venv"
    # A line in a .pth file adds the folder but does not read the .pth files in it, so that the editable install of
    # .venv stays out of the way.
    .venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
        >"$(echo "$root"/venv/lib/python3*/site-packages)/borrowed.pth"
fi
scripts/progress.sh "$root/build.log" "building with AddressSanitizer and UndefinedBehaviorSanitizer" \
    .venv/bin/python -m pip --python "$root/venv/bin/python" install -v --no-build-isolation --no-deps --force-reinstall \
    --config-settings=build-dir="$root/build" --config-settings=install.strip=false \
    --config-settings=cmake.define.ZEROHOP_SANITIZE=address,undefined \
    --config-settings=cmake.define.ZEROHOP_WERROR="${ZEROHOP_WERROR:-ON}" \
    --config-settings=cmake.define.ZEROHOP_NATIVE_TESTS=ON .

scripts/progress.sh "$root/tests.log" "building the native tests with them" \
    cmake --build "$root/build" --target zerohop_tests

export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1${UBSAN_OPTIONS:+:$UBSAN_OPTIONS}
checks=strict_string_checks=1:halt_on_error=1${ASAN_OPTIONS:+:$ASAN_OPTIONS}
# Sanitizers make every step slower. A finding of theirs may be rare, and fails the run even so.
export ZEROHOP_TEST_PATIENCE=10 ZEROHOP_TEST_AGAIN=0
# The shadow memory of the sanitizers in older compilers collides with the widest address randomisation.
run=()
setarch -R true 2>/dev/null && run=(setarch -R)

if [ $# = 0 ]; then
    ASAN_OPTIONS=detect_leaks=1:detect_stack_use_after_return=1:$checks \
        "${run[@]}" .venv/bin/python scripts/run_native_tests.py "$root/build/zerohop_tests"
    # Those in which native code is told lies, is interrupted or runs out of something. What is freed stays in
    # quarantine, so that nothing can be said about growth; and the sanitizer itself ends a process without address space.
    set -- tests/failure/test_{access,back_pressure,close,close_moments,hostile_*,injected_faults,limits,lying_*}.py \
        tests/failure/test_{peer_killed,transport_ends,transport_hostile,transport_moments}.py \
        -k "not no_growth and not without_address_space and not no_room_for_a_list"
fi

libraries=$(for library in libasan.so libubsan.so libstdc++.so.6; do "${CXX:-g++}" -print-file-name=$library; done | tr '\n' ' ')
# Python itself keeps memory until the process ends; the native tests look for leaks.
ASAN_OPTIONS=detect_leaks=0:$checks LD_PRELOAD=$libraries \
    "${run[@]}" "$root/venv/bin/python" scripts/run_tests.py -m "not slow and not cuda" "$@"
