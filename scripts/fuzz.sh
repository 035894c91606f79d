#!/bin/bash
# fuzz.sh SECONDS: every target in tests/fuzz/ in turn, coverage-guided, sharing the time between them. The corpora are
# kept in .cache/fuzz, so that the next run goes on from there; an input that breaks something is written there too.
set -euo pipefail
cd "$(dirname "$0")/.."

mapfile -t targets < <(find tests/fuzz -name 'fuzz_*.py' | sort)
[ ${#targets[@]} -gt 0 ] || { echo "tests/fuzz holds no target" >&2; exit 1; }
share=$(($1 / ${#targets[@]}))
failed=0
for target in "${targets[@]}"; do
    name=$(basename "$target" .py)
    corpus=.cache/fuzz/$name
    mkdir -p "$corpus"
    echo "$name: $share s"
    if ! .venv/bin/python "$target" -max_total_time="$share" -timeout=10 -rss_limit_mb=2048 -max_len=4096 \
        -print_final_stats=1 -artifact_prefix=".cache/fuzz/$name-" "$corpus" >".cache/fuzz/$name.log" 2>&1; then
        tail -40 ".cache/fuzz/$name.log"
        failed=$((failed + 1))
    else
        grep -aE 'number_of_executed_units|peak_rss_mb' ".cache/fuzz/$name.log" || true
    fi
done
echo "$((${#targets[@]} - failed)) passed, $failed failed"
[ $failed = 0 ]
