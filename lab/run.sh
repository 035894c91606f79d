#!/bin/bash
# run.sh [--memory 4G] [--timeout SECONDS] NAME COMMAND…: boot a guest, run the command there in the repository's
# root, show what it prints, return its status, and leave no guest behind. One word is a line of shell; several are a
# command with its arguments. What the command writes into $ZEROHOP_LAB_OUT is in build/lab/out/NAME/ afterwards, what
# it printed in build/lab/out/NAME.log. Status 124: it ran out of time; 125: the guest never came up, or died.
#   lab/run.sh try 'rdma link; ibv_devinfo -d rxe0'
set -euo pipefail
cd "$(dirname "$0")/.."
. lab/boot.sh

memory=4G
timeout=1500
while [[ ${1-} = --* ]]; do
    case $1 in
    --memory) memory=$2 ;;
    --timeout) timeout=$2 ;;
    *) say "no such option: $1"; exit 2 ;;
    esac
    shift 2
done
[ $# -ge 2 ] || { sed -n '2,/^set/s/^# \{0,1\}//p' "$0"; exit 2; }
name=$1
shift

boot "$name" "$memory" "$timeout" "$(as_line "$@")" || exit 125
trap 'kill_guest "$name"' EXIT
trap 'exit 130' INT TERM HUP
follow "$name"
rc=0
wait_for_guest "$name" "$timeout" || rc=$?
collect "$name"
exit $rc
