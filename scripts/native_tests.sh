#!/bin/bash
# native_tests.sh plain|thread [DOCTEST OPTION…]: build the native tests in a folder of their own, with this sanitizer,
# and run them; a warning of the compiler is an error here, unless ZEROHOP_WERROR=OFF. AddressSanitizer has asan_tests.sh.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/.venv/bin:$PATH"

sanitize=$1
shift
dir=build/tests-$sanitize
[ "$sanitize" = plain ] && sanitize=
mkdir -p "$dir"
scripts/progress.sh "$dir/configure.log" "configuring the native tests" \
    cmake -S . -B "$dir" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DZEROHOP_MODULES=OFF -DZEROHOP_NATIVE_TESTS=ON \
    -DZEROHOP_WERROR="${ZEROHOP_WERROR:-ON}" -DZEROHOP_SANITIZE="$sanitize"
scripts/progress.sh "$dir/build.log" "building the native tests" cmake --build "$dir"

export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1:suppressions=$PWD/tests/native/tsan.supp${TSAN_OPTIONS:+:$TSAN_OPTIONS}
# The shadow memory of the sanitizers in older compilers collides with the widest address randomisation.
run=()
[ -n "$sanitize" ] && setarch -R true 2>/dev/null && run=(setarch -R)
"${run[@]}" timeout 900 "$dir/zerohop_tests" --no-intro=true "$@"
