# network.sh: sourced in a guest: what the machine and its network are made of.
# shellcheck shell=bash

set_up_machine() {
    # rxe tells the console "speed is unknown" at every look at a port.
    dmesg -n 1
    ulimit -l unlimited
    mount -t tmpfs -o mode=1777,size=75% tmpfs /dev/shm || return
    mkdir -p /run/lab && mount -t tmpfs -o mode=1777,size=75% tmpfs /run/lab || return
    mkdir -p -m 1777 /run/lab/tmp
    mkdir -p -m 700 /run/lab/home /run/lab/user
    export HOME=/run/lab/home TMPDIR=/run/lab/tmp XDG_RUNTIME_DIR=/run/lab/user PYTHONDONTWRITEBYTECODE=1
    export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin ZEROHOP_LAB=1 PYTHONUNBUFFERED=1
}

set_up_network() {
    modprobe -a rdma_rxe rdma_ucm dummy veth sch_netem || return
    ip link set lo up
    ip link add d0 type dummy && ip addr add 10.9.0.1/24 dev d0 && ip link set d0 mtu 4200 up || return
    rdma link add rxe0 type rxe netdev d0 || return
}
