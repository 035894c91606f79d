#!/bin/bash
# two_guests.sh [--memory 2G] [--timeout SECONDS] NAME COMMAND-A COMMAND-B: boot two guests on one network, 10.8.0.1
# and 10.8.0.2 with the device `rxn` on it, and run a command in each, a line of shell both, when both are up. They
# share one folder, $ZEROHOP_LAB_OUT. A file kill-a or kill-b in it takes the power from that guest, within a fifth of
# a second; killed-a or killed-b says that it happened. Returns the first failure among those that were not killed;
# output lines say whose they are. What is left in $ZEROHOP_LAB_OUT is in build/lab/out/NAME/ afterwards.
#   lab/two_guests.sh pair 'ib_write_bw -d rxn -x 1' 'sleep 5; ib_write_bw -d rxn -x 1 10.8.0.1'
set -euo pipefail
cd "$(dirname "$0")/.."
. lab/boot.sh

memory=2G
timeout=600
while [[ ${1-} = --* ]]; do
    case $1 in
    --memory) memory=$2 ;;
    --timeout) timeout=$2 ;;
    *) say "no such option: $1"; exit 2 ;;
    esac
    shift 2
done
[ $# = 3 ] || { sed -n '2,/^set/{/^set/!s/^# \{0,1\}//p}' "$0"; exit 2; }
name=$1
out=$(share_of "$name")/out
for end in a b; do if booted "$name/$end"; then say "a guest named $name/$end runs already"; exit 125; fi; done
rm -rf "$(share_of "$name")"
mkdir -p "$out"
watchers=()
trap 'kill "${watchers[@]}" 2>/dev/null; kill_guest "$name/a"; kill_guest "$name/b"' EXIT
trap 'exit 130' INT TERM HUP

# The network is a TCP connection between the emulators. The card's address tells the guest which it is.
card() { # LAST-BYTE SOCKET
    echo "-netdev socket,id=wire,$2 -device virtio-net-pci,netdev=wire,mac=52:54:00:5a:48:0$1"
}
port=$((20000 + RANDOM % 10000))
# shellcheck disable=SC2046 # words
boot "$name/a" "$memory" "$timeout" "$2" $(card 1 listen=127.0.0.1:$port) || exit 125
for _ in {1..100}; do
    # Looked up, not tried: the emulator takes one connection only.
    grep -q ":$(printf %04X $port) 00000000:0000 0A" /proc/net/tcp && break
    booted "$name/a" || break
    sleep 0.1
done
# shellcheck disable=SC2046
boot "$name/b" "$memory" "$timeout" "$3" $(card 2 connect=127.0.0.1:$port) || exit 125
follow "$name/a" 'a: '
follow "$name/b" 'b: '

for end in a b; do
    { until [ -e "$out/kill-$end" ]; do sleep 0.1; done; kill_guest "$name/$end"; touch "$out/killed-$end"; } &
    watchers+=($!)
done
rc=0
for end in a b; do
    ended=0
    wait_for_guest "$name/$end" "$timeout" || ended=$?
    [ $rc != 0 ] || [ -e "$out/kill-$end" ] || rc=$ended
done
collect "$name"
exit $rc
