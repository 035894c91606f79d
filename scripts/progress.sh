#!/bin/bash
# progress.sh LOG WHAT COMMAND…: run a command whose output goes into a log, and say every 10 seconds how far it is, so
# that nobody takes it for stuck (PROGRESS_SECONDS sets another pace). When it fails, the end of the log is shown.
set -uo pipefail
log=$1
what=$2
shift 2

how_far() { # the last step of ninja, or else what pip, cmake or apt-get said last
    local steps
    steps=$(grep -aoE '^ *\[[0-9]+/[0-9]+\]' "$log" | tail -1 | tr -d ' []')
    if [ -n "$steps" ]; then
        echo "${steps%/*} of ${steps#*/} steps"
    else
        grep -av '^ *$' "$log" | tail -1 | cut -c1-100
    fi
}
tick() {
    # Waits without a child process, which would outlive this one and keep the caller's output and locks open.
    exec {never}<> <(:)
    until read -rt "${PROGRESS_SECONDS:-10}" -u "$never" || ! kill -0 $$ 2>/dev/null; do
        echo "zerohop: $what, for $SECONDS s: $(how_far)" >&2
    done
}

echo "zerohop: $what" >&2
: >"$log"
tick &
trap 'kill $! 2>/dev/null' EXIT
"$@" >"$log" 2>&1 </dev/null && exit
rc=$?
grep -avE '^ *(\[[0-9]+/[0-9]+\]|-- )' "$log" | tail -60 >&2
exit $rc
