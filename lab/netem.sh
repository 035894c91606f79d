#!/bin/bash
# netem.sh [va|vb] loss 5% | delay 2ms | … | clear: in a guest, make the wire between rxea and rxeb as bad as
# tc-netem(8) can; both directions unless one end is named, which then is the one that what is sent from it suffers.
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin

ends=(va vb)
case ${1-} in va | vb) ends=("$1") && shift ;; esac
[ $# -gt 0 ] || { sed -n '2,/^set/{/^set/!s/^# \{0,1\}//p}' "$0"; exit 2; }
for end in "${ends[@]}"; do
    [ -e "/sys/class/net/$end" ] || { echo "lab: there is no $end: not in a guest of the lab" >&2; exit 1; }
    case $1 in
    # Without a discipline there is nothing to delete, which is what was asked for.
    clear) tc qdisc del dev "$end" root 2>/dev/null || true ;;
    *) tc qdisc replace dev "$end" root netem "$@" ;;
    esac
done
