# machine.sh: sourced by guest.sh: what a guest's memory, file system and network are.
# shellcheck shell=bash disable=SC2154 # guest.sh sets share and shared
root=/run/lab/root

set_up_machine() {
    # rxe tells the console "speed is unknown" at every look at a port.
    dmesg -n 1
    ulimit -l unlimited && ulimit -n 65536 || return
    umount /dev/shm && mount -t tmpfs -o mode=1777,size=75% tmpfs /dev/shm || return
    mkdir -p /run/lab/tmp "$root" && mount -t tmpfs -o mode=1777,size=75% tmpfs /run/lab/tmp || return
    mkdir -m 700 /run/lab/home /run/lab/user || return
    export HOME=/run/lab/home TMPDIR=/tmp XDG_RUNTIME_DIR=/run/lab/user ZEROHOP_LAB=1
    export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin PYTHONUNBUFFERED=1
    # Nothing can be written beside the sources. What takes a second outside takes ten here.
    export PYTHONDONTWRITEBYTECODE=1 HYPOTHESIS_STORAGE_DIRECTORY=/run/lab/tmp/hypothesis
    export PYTEST_ADDOPTS="-p no:cacheprovider -o timeout=120 ${PYTEST_ADDOPTS-}"
}

# The root that the kernel gave us asks the host at every look at a file, and reads every library anew for every
# process: `import zerohop` took 22 s. The same file system mounted with a cache: 12 s, and as a copy in memory 10 s,
# which half a minute of copying does not pay for. So commands run in the cached root. It shows files as they were
# when first looked at; shell.sh empties the cache before each command, and has the native modules, which other
# commands keep open, live.
set_up_root() {
    local place
    mount -t 9p -o ro,version=9p2000.L,trans=virtio,access=any,msize=512000,cache=loose cached "$root" || return
    for place in proc sys dev run etc var; do
        mount --rbind "/$place" "$root/$place" || return
    done
    for place in "$shared" ${ZEROHOP_LAB_LIVE:+"$PWD"/.venv/lib/python*/site-packages/*zerohop*}; do
        mount --bind "$place" "$root$place" || return
    done
    # Not over a checkout, or a Python, that is itself below /tmp.
    case $PWD/ in
    /tmp/*) export TMPDIR=/run/lab/tmp ;;
    *) mount --bind /run/lab/tmp "$root/tmp" ;;
    esac
}

set_up_network() {
    modprobe -a rdma_rxe rdma_ucm dummy veth sch_netem && ip link set lo up || return
    # rxe0 and rxe1 talk to themselves, over devices that lead nowhere: the two ports of a machine with two rails.
    local rail
    for rail in 0 1; do
        ip link add d$rail type dummy && ip addr add 10.9.$rail.1/24 dev d$rail && ip link set d$rail mtu 4200 up &&
            rdma link add rxe$rail type rxe netdev d$rail || return
    done
    set_up_wire || return
    set_up_card
}

# rxea and rxeb, on the two ends of a wire. Both ends have their addresses in this one machine, which would short-cut
# what goes from one to the other; these rules send it over the wire and take it in at the other end. (Network
# namespaces would be the obvious way; rxe in this kernel does not work in them.)
set_up_wire() {
    local end
    ip link add va type veth peer name vb || return
    ip addr add 10.7.0.1/24 dev va && ip addr add 10.7.0.2/24 dev vb || return
    ip link set va mtu 4200 up && ip link set vb mtu 4200 up || return
    for end in all va vb; do
        echo 0 >"/proc/sys/net/ipv4/conf/$end/rp_filter" &&
            echo 1 >"/proc/sys/net/ipv4/conf/$end/accept_local" || return
    done
    ip rule add pref 1 iif va lookup local && ip rule add pref 2 iif vb lookup local &&
        ip rule add pref 3 to 10.7.0.2 lookup 102 && ip rule add pref 4 to 10.7.0.1 lookup 101 &&
        ip rule add pref 10 lookup local && ip rule del pref 0 && lab/link.sh va up || return
    rdma link add rxea type rxe netdev va && rdma link add rxeb type rxe netdev vb || return
    crosses va 10.7.0.2 && crosses vb 10.7.0.1
}

crosses() { # DEVICE ADDRESS: whether a packet to the address leaves through the device
    local counter=/sys/class/net/$1/statistics/tx_packets before
    before=$(<"$counter")
    echo >"/dev/udp/$2/9"
    [ "$(<"$counter")" -gt "$before" ] || { echo "lab: what is sent to $2 does not leave through $1"; return 1; }
}

# rxn, on the card between two guests, if two_guests.sh gave us one. The last byte of its address is that of ours.
set_up_card() {
    local file card address
    modprobe virtio_net || return
    file=$(grep -ls '^52:54:00:5a:48' /sys/class/net/*/address) || return 0
    card=$(basename "$(dirname "$file")")
    address=$(<"$file")
    ip addr add "10.8.0.$((16#${address##*:}))/24" dev "$card" && ip link set "$card" mtu 4200 up &&
        rdma link add rxn type rxe netdev "$card" || return
    # One boots faster than the other; the commands start together.
    touch "$share/up"
    for _ in {1..600}; do
        [ -e "$share/../a/up" ] && [ -e "$share/../b/up" ] && return
        sleep 0.2
    done
    echo "lab: the other guest did not come up"
    return 1
}
