#!/bin/bash
# shell.sh start [MEMORY] | run COMMAND… | stop: a guest that stays, for development.
#   lab/shell.sh start                      boots it (half a minute); 4G of memory unless told otherwise
#   lab/shell.sh run 'rdma link'            runs that in the repository's root in the guest, prints what it prints and
#                                           returns its status; several may run at once; ^C ends the command
#   lab/shell.sh run .venv/bin/python -m pytest tests/x.py     words are passed as they are
#   lab/shell.sh stop
# The guest sees the checkout as it is now, each time a command starts. It can write only to its memory (/tmp,
# /dev/shm) and to $ZEROHOP_LAB_OUT, which is build/lab/share/shell/out here.
set -euo pipefail
cd "$(dirname "$0")/.."
. lab/boot.sh
name=shell
share=$(share_of $name)
jobs=$share/jobs

# In the guest: do what comes in through the door, a serial port whose other end is a FIFO outside. (To look for files
# every so often costs a sixth of a core here, day and night.)
serve() {
    local door what job
    door=$(grep -lx door /sys/class/virtio-ports/*/name)
    mkdir -p "$jobs"
    exec <"/dev/$(basename "$(dirname "$door")")"
    touch "$share/ready"
    while read -r what job; do
        case $what in
        run)
            # The cached root shows files as they were when first looked at.
            echo 3 >/proc/sys/vm/drop_caches
            run_job "$jobs/$job" &
            ;;
        cancel) kill -KILL -- "-$(<"$jobs/$job.pid")" || true ;;
        stop) break ;;
        esac
    done
}

run_job() { # JOB: in a session of its own, so that all that it started can be ended with it
    local rc=0
    # shellcheck disable=SC2016 # the inner shell expands these
    setsid bash -c 'echo $$ >"$1.pid"; . "$1.command"' lab "$1" >>"$1.output" 2>&1 </dev/null || rc=$?
    echo $rc >"$1.new"
    mv "$1.new" "$1.status"
}

order() { # WORD…: through the door; opened both ways, so that this cannot block when nobody is there
    echo "$*" 1<>"$share/door.in"
}

case ${1:-} in
start)
    if booted $name; then say "the guest runs already"; exit; fi
    export ZEROHOP_LAB_LIVE=1
    boot $name "${2:-4G}" 86400 "lab/shell.sh serve" -device virtio-serial-pci,id=door \
        -chardev "pipe,id=door,path=$share/door" -device virtserialport,bus=door.0,chardev=door,name=door || exit 1
    until [ -e "$share/ready" ]; do
        if ! booted $name; then
            say "the guest did not come up:"
            tail -q -n 20 "$share/console" "$share/output" >&2
            exit 1
        fi
        sleep 0.2
    done
    ;;
run)
    shift
    [ $# -gt 0 ] || { say "run what?"; exit 2; }
    booted $name || { say "no guest runs. Type: lab/shell.sh start"; exit 125; }
    id=$$.$RANDOM
    job=$jobs/$id
    : >"$job.output"
    as_line "$@" >"$job.command"
    trap 'order cancel $id' INT TERM HUP
    tail -q -n +1 -s 0.1 --pid=$$ -f "$job.output" &
    order run $id
    until [ -e "$job.status" ]; do
        booted $name || { say "the guest died"; break; }
        sleep 0.1 || true
    done
    # tail looks five times a second.
    sleep 0.3
    rc=$(cat "$job.status" 2>/dev/null || echo 125)
    rm -f "$job".*
    exit "$rc"
    ;;
stop)
    booted $name || exit 0
    order stop
    end_guest $name
    ;;
serve) serve ;;
*)
    sed -n '2,/^set/{/^set/!s/^# \{0,1\}//p}' "$0"
    exit 2
    ;;
esac
