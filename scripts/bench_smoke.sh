#!/bin/bash
# bench_smoke.sh: run each benchmark briefly, to see that it works and that every byte it moved was right.
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p build/bench

.venv/bin/zerohop bench --quick --bytes 8,65536 --json build/bench/smoke.json >build/bench/smoke.log 2>&1 ||
    { tail -40 build/bench/smoke.log; exit 1; }
.venv/bin/python - <<'CHECK'
import json

rows = json.load(open("build/bench/smoke.json", encoding="utf-8"))
rows = rows["rows"] if isinstance(rows, dict) else rows
wrong = [row for row in rows if not row["verified"]]
assert rows and not wrong, wrong
print(f"{len(rows)} rows, all verified")
CHECK
