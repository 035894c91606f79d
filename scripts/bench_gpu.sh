#!/bin/bash
# bench_gpu.sh [OPTION OF zerohop bench…]: the rows between two GPUs, or on the only one, into bench/results/gpu-N.json,
# where N is how many GPUs this process sees; those about files into gpu-files.json; those about kernels that send, which
# need two GPUs, into gpu-device.json; then the page and the README's table.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PWD/.venv/bin:$PATH"

count=$(python - <<'COUNT'
import zerohop

with zerohop.Context(listen=None) as context:
    print(sum(device.kind == "cuda" for device in context.devices))
COUNT
)
[ "$count" -gt 0 ] || { echo "bench-gpu: no NVIDIA GPU can be used here; zerohop doctor says why" >&2; exit 1; }
target=cuda:$((count > 1))
mkdir -p bench/results
zerohop bench --src cuda:0 --dst "$target" --json "bench/results/gpu-$count.json" "$@"
# In a folder whose page cache has room for the file.
zerohop bench storage_read storage_served_read --dst cuda:0 --folder "${TMPDIR:-/var/tmp}" \
    --json bench/results/gpu-files.json
if [ "$count" -gt 1 ]; then
    zerohop bench device --src cuda:0 --dst cuda:1 --json bench/results/gpu-device.json
fi
python scripts/gpu_page.py write
