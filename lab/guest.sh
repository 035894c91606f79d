#!/bin/bash
# guest.sh SHARE SECONDS: the first program in a guest. Sets up the machine, then runs SHARE/command in the
# repository's root for at most SECONDS, and leaves its exit status in SHARE/status. Status 125: the guest could not
# be set up.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
share=$1
seconds=$2
# One of two guests has a folder within the one that they share.
case $share in */build/lab/share/*/*) shared=${share%/*} ;; *) shared=$share ;; esac
exec >>"$share/output" 2>&1 </dev/null

finish() {
    echo "$1" >"$share/status.new"
    mv "$share/status.new" "$share/status"
    exit
}

# shellcheck source=/dev/null
. "$share/environment"
. lab/machine.sh
for part in machine root network; do
    "set_up_$part" || { echo "lab: setting up the guest's $part failed"; finish 125; }
done
export ZEROHOP_LAB_OUT=$shared/out
export ZEROHOP_TEST_REPORT=$shared/out/report ZEROHOP_TEST_FLAKY=$shared/out/flaky
touch "$share/started"
# shellcheck disable=SC2016 # the inner shell expands these
timeout --kill-after=5 "$seconds" chroot "$root" bash -c 'cd "$1" && . "$2"' lab "$PWD" "$share/command"
finish $?
