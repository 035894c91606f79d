#!/bin/bash
# bench_smoke.sh: run each benchmark briefly, to see that it works and that every byte it moved was right.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p build/bench

.venv/bin/zerohop bench --quick --bytes 8,65536 --json build/bench/smoke.json >build/bench/smoke.log 2>&1 ||
    { tail -40 build/bench/smoke.log; exit 1; }
.venv/bin/zerohop bench storage --quick --json build/bench/smoke_files.json >build/bench/smoke_files.log 2>&1 ||
    { tail -40 build/bench/smoke_files.log; exit 1; }
.venv/bin/python - <<'CHECK'
import json

rows = []
for name in ("smoke", "smoke_files"):
    rows += json.load(open(f"build/bench/{name}.json", encoding="utf-8"))["rows"]
wrong = [row for row in rows if not row["verified"]]
assert rows and not wrong, wrong
print(f"{len(rows)} rows, all verified")
CHECK
