#!/bin/bash
# link.sh va|vb|d0|d1 up|down: in a guest, take a link down and up again. The wire between rxea and rxeb has routes and
# neighbours of its own, which the kernel forgets with the link; they are set again.
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin

[ $# = 2 ] || { sed -n '2,/^set/{/^set/!s/^# \{0,1\}//p}' "$0"; exit 2; }
[ -e "/sys/class/net/$1" ] || { echo "lab: there is no $1: not in a guest of the lab" >&2; exit 1; }
ip link set "$1" "$2"
if [ "$2" = up ] && [[ $1 = v? ]]; then
    ip route replace 10.7.0.2 dev va src 10.7.0.1 table 102
    ip route replace 10.7.0.1 dev vb src 10.7.0.2 table 101
    ip neigh replace 10.7.0.2 lladdr "$(cat /sys/class/net/vb/address)" dev va nud permanent
    ip neigh replace 10.7.0.1 lladdr "$(cat /sys/class/net/va/address)" dev vb nud permanent
fi
