#!/bin/bash
# setup.sh: everything that the lab needs: system packages, virtme-ng in a venv of its own, and a kernel that has
# Soft-RoCE, downloaded and unpacked under build/lab/, not installed. Does nothing, quickly, when all that is there.
# When something cannot be had, one line says what and what to do, and the status is not 0. LAB_KERNEL=… picks another
# package than the distribution's usual one to take the kernel from, PYTHON=… the interpreter for the venv.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PATH:/usr/sbin:/sbin
lab=$PWD/build/lab
virtme='virtme-ng==1.42'
modules=(rdma_rxe ib_uverbs rdma_ucm dummy veth sch_netem virtio_net)

say() { echo "lab: $*" >&2; }
give_up() { say "cannot run here: $*"; exit 1; }

mkdir -p "$lab"
exec 9>"$lab/lock"
flock 9
log=$lab/setup.log

[ "$(uname -sm)" = "Linux x86_64" ] || give_up "this is $(uname -sm), the guests are Linux x86_64"
gib=$((1024 * 1024)) # of the KiB that both count in
memory=$(awk '/^MemAvailable:/ {print $2}' /proc/meminfo)
[ "$memory" -ge $((5 * gib)) ] || give_up "a guest takes 5 GiB of memory, and $((memory / 1024)) MiB are free"
if [ ! -e "$lab/kernel/.complete" ]; then
    disk=$(df --output=avail "$lab" | tail -n 1)
    [ "$disk" -ge "$gib" ] || give_up "the kernel takes 1 GiB in $lab, and $((disk / 1024)) MiB are free there"
fi

# --- system packages -------------------------------------------------------------------------------------------------
missing=()
need() { # PACKAGE FILE-OR-COMMAND…: the package is missing unless all of these are there
    local package=$1 thing
    shift
    for thing; do
        if [ ! -e "$thing" ] && ! command -v "$thing" >/dev/null; then missing+=("$package") && return; fi
    done
}
need qemu-system-x86 qemu-system-x86_64
need busybox-static busybox
need kmod modprobe depmod
need iproute2 ip tc rdma
need util-linux flock setsid unshare
need udev udevadm
need rdma-core /etc/rdma/modules
need ibverbs-providers /etc/libibverbs.d/rxe.driver
need ibverbs-utils ibv_devinfo
need perftest ib_write_lat
need libibverbs-dev /usr/include/infiniband/verbs.h
need valgrind valgrind
need python3 "${PYTHON:-python3}"
[ -e "$lab/venv/.complete" ] || "${PYTHON:-python3}" -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
if [ ${#missing[@]} -gt 0 ]; then
    command -v apt-get >/dev/null ||
        give_up "missing ${missing[*]} (Debian's names), and there is no apt-get. Install them yourself"
    [ "$(id -u)" = 0 ] ||
        give_up "missing packages. Type: sudo apt-get update && sudo apt-get install -y ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    # shellcheck disable=SC2016 # the inner shell expands it
    scripts/progress.sh "$log" "apt-get install ${missing[*]}" \
        bash -c 'apt-get update -q && apt-get install -y -q --no-install-recommends "$@"' apt-get "${missing[@]}" ||
        give_up "apt-get could not install ${missing[*]}: $(grep -E '^(E|Err)' "$log" | tail -n 1) (all of it: $log)"
fi

# --- virtme-ng -------------------------------------------------------------------------------------------------------
if [ "$(cat "$lab/venv/.complete" 2>/dev/null)" != "$virtme" ]; then
    rm -rf "$lab/venv"
    { "${PYTHON:-python3}" -m venv "$lab/venv" &&
        scripts/progress.sh "$log" "installing $virtme into build/lab/venv" \
            "$lab/venv/bin/python" -m pip install --disable-pip-version-check --no-input "$virtme"; } ||
        give_up "pip could not install $virtme: $(grep ERROR "$log" | tail -n 1). Is PyPI reachable? (all of it: $log)"
    echo "$virtme" >"$lab/venv/.complete"
fi

# --- the kernel ------------------------------------------------------------------------------------------------------
lacking() { # FOLDER: print the modules that the unpacked kernel lacks; some kernels have some of them built in
    local module all
    all=$(find "$1" -name '*.ko*' && cat "$1"/lib/modules/*/modules.builtin)
    for module in "${modules[@]}"; do grep -qE "/${module//_/[-_]}\\.ko" <<<"$all" || echo "$module"; done
}

# The packages that hold the kernel which a meta-package stands for: one in Debian, and in Ubuntu, which keeps the
# modules apart, three.
kernel_packages() { # META-PACKAGE
    local without=(--no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces --no-enhances)
    apt-cache depends --recurse "${without[@]}" "$1" |
        grep -E '^linux-(image|modules|modules-extra)-[0-9]' || true
}

if [ ! -e "$lab/kernel/.complete" ]; then
    command -v apt-get >/dev/null || give_up "no apt-get, and the kernel is taken from Debian's or Ubuntu's packages"
    case " $(. /etc/os-release && echo "${ID-} ${ID_LIKE-}") " in
    *" ubuntu "*) meta=linux-image-generic ;;
    *) meta=linux-image-amd64 ;;
    esac
    meta=${LAB_KERNEL:-$meta}
    mapfile -t packages < <(kernel_packages "$meta")
    if [ ${#packages[@]} = 0 ] && [ "$(id -u)" = 0 ]; then
        apt-get update -q >"$log" 2>&1 || true
        mapfile -t packages < <(kernel_packages "$meta")
    fi
    [ ${#packages[@]} -gt 0 ] ||
        give_up "apt knows no kernel by the name of $meta. Try 'apt-get update' as root, or LAB_KERNEL=PACKAGE"
    rm -rf "$lab/kernel" "$lab/download"
    mkdir -p "$lab/download"
    # A list of packages that is some weeks old names versions that are gone.
    download() {
        scripts/progress.sh "$log" "downloading ${packages[*]}" \
            env --chdir="$lab/download" apt-get download -q "${packages[@]}"
    }
    download || { [ "$(id -u)" = 0 ] && apt-get update -q >>"$log" 2>&1 && download; } ||
        give_up "could not download ${packages[*]}: $(grep -E '^E' "$log" | tail -n 1). Is 'apt-get update' long ago?"
    mkdir "$lab/download/kernel"
    for package in "$lab/download"/*.deb; do dpkg-deb -x "$package" "$lab/download/kernel"; done
    # Where everything is in /usr, Ubuntu's newer packages put the modules there; depmod and modprobe look in /lib.
    if [ -d "$lab/download/kernel/usr/lib/modules" ] && [ ! -d "$lab/download/kernel/lib" ]; then
        ln -s usr/lib "$lab/download/kernel/lib"
    fi
    lacks=$(lacking "$lab/download/kernel")
    [ -z "$lacks" ] || give_up "not in ${packages[*]}: ${lacks//$'\n'/ }. Try LAB_KERNEL=PACKAGE"
    for version in "$lab/download/kernel/lib/modules"/*; do
        depmod -b "$lab/download/kernel" "$(basename "$version")" >>"$log" 2>&1 ||
            give_up "depmod failed: $(tail -n 1 "$log")"
    done
    mv "$lab/download/kernel" "$lab/kernel"
    rm -rf "$lab/download"
    echo "${packages[*]}" >"$lab/kernel/.complete"
fi
