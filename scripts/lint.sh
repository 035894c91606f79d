#!/bin/bash
# lint.sh [K/N]: every check, all of them even when one fails; short when all is well. The analyzer of clang-tidy goes as
# deep as it can into the K-th of N parts of the native files, 1/1 into all, and without K/N into none.
set -uo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/.venv/bin:$PATH"

deep=${1:-0/1}
checks=0
failed=()
check() { # NAME COMMAND…
    local name=$1 log=build/lint/$1.log
    shift
    checks=$((checks + 1))
    if "$@" >"$log" 2>&1; then
        echo "$name: ok"
    else
        echo "$name: failed"
        # Of clang-tidy's pages, the findings themselves; the whole is in the log.
        if ! grep -A 2 -E '(warning|error): ' "$log" | head -60; then tail -60 "$log"; fi
        failed+=("$name")
    fi
}
mkdir -p build/lint

mapfile -t cpp < <(git ls-files --cached --others --exclude-standard '*.cpp' '*.hpp' | sort)
mapfile -t typed < <(for place in src/zerohop tests bench examples scripts; do
    [ -n "$(find $place -name '*.py' 2>/dev/null | head -1)" ] && echo $place
done)
mapfile -t shell < <(git ls-files --cached --others --exclude-standard '*.sh' .ci/run)

tidy() {
    cmake -S . -B build/lint/cmake -G Ninja -DCMAKE_BUILD_TYPE=Debug -DZEROHOP_NATIVE_TESTS=ON -DZEROHOP_PCH=OFF \
        -DZEROHOP_JOINED=OFF -DPython_EXECUTABLE="$PWD/.venv/bin/python" || return 1
    # A file is looked at again only when it, a header of ours, or the rules have changed.
    local rules headers
    rules=$(cat .clang-tidy tests/native/.clang-tidy CMakeLists.txt pyproject.toml | sha256sum)
    headers=$(printf '%s\n' "${cpp[@]}" | grep 'hpp$' | xargs -r cat | sha256sum)
    export rules headers deep
    # By default the analyzer follows 225,000 states through a function, and takes four fifths of the whole time.
    # shellcheck disable=SC2016 # the inner shell expands these
    printf '%s\n' "${cpp[@]}" | grep 'cpp$' | xargs -r -n 1 -P "$(nproc)" bash -c '
        part=$(cksum <<<"$0")
        states=10000
        [ $((${part%% *} % ${deep#*/} + 1)) = "${deep%/*}" ] && states=225000
        seen=build/lint/tidy/$(cat "$0" - <<<"$0 $rules $headers $states" | sha256sum | cut -c1-40)
        [ -e "$seen" ] && exit 0
        analyzer=(-Xclang -analyzer-config -Xclang max-nodes=$states)
        clang-tidy --quiet -p build/lint/cmake "${analyzer[@]/#/--extra-arg=}" "$0" 2>/dev/null && touch "$seen"'
}
mkdir -p build/lint/tidy

syntax() {
    local file
    for file in "${shell[@]}"; do bash -n "$file" || return 1; done
}

check ruff ruff check .
check ruff-format ruff format --check .
check mypy mypy "${typed[@]}"
check imports env PYTHONPATH=src lint-imports --no-cache
check private-names scripts/private_names.py
check native-order scripts/native_order.py
check clang-format clang-format --dry-run -Werror "${cpp[@]}"
check clang-tidy tidy
check generated scripts/stubs.sh check
check shell syntax

echo "$((checks - ${#failed[@]})) passed, ${#failed[@]} failed"
[ ${#failed[@]} = 0 ]
