#!/bin/bash
# native_tests.sh plain|thread [DOCTEST OPTION…]: build the native tests, with this sanitizer, and run them; a warning of
# the compiler is an error here, unless ZEROHOP_WERROR=OFF. AddressSanitizer has asan_tests.sh.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/.venv/bin:$PATH"

sanitize=$1
shift
if [ "$sanitize" = plain ]; then
    # In the folder where setup.sh builds the package: what both need is compiled once.
    dir=build/release
    configure=(cmake "$dir")
else
    dir=build/tests-$sanitize
    configure=(cmake -S . -B "$dir" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DZEROHOP_MODULES=OFF
        -DZEROHOP_WERROR="${ZEROHOP_WERROR:-ON}" -DZEROHOP_SANITIZE="$sanitize")
fi
mkdir -p "$dir"
scripts/progress.sh "$dir/configure.log" "configuring the native tests ($sanitize)" "${configure[@]}" -DZEROHOP_NATIVE_TESTS=ON
scripts/progress.sh "$dir/tests.log" "building the native tests ($sanitize)" cmake --build "$dir" --target zerohop_tests

export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1:suppressions=$PWD/tests/native/tsan.supp${TSAN_OPTIONS:+:$TSAN_OPTIONS}
# The shadow memory of the sanitizers in older compilers collides with the widest address randomisation.
run=()
[ "$sanitize" != plain ] && setarch -R true 2>/dev/null && run=(setarch -R)
"${run[@]}" .venv/bin/python scripts/run_native_tests.py "$dir/zerohop_tests" "$@"
