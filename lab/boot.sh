# boot.sh: sourced by run.sh, two_guests.sh and shell.sh, in the repository's root: boots guests and ends them.
# shellcheck shell=bash
# A guest's root is this machine's file system, read-only. The one folder that both sides write to, $share, is where
# they talk: `command` is what the guest runs, `output` what that prints, `status` how it ended, `console` what the
# emulator says, `out` what the command leaves as $ZEROHOP_LAB_OUT.
lab=$PWD/build/lab
PATH=$PATH:/usr/sbin:/sbin

# A guest that has not started its command after this long never will.
BOOT_SECONDS=300

say() { echo "lab: $*" >&2; }

share_of() { echo "$lab/share/$1"; }

# NAME MEMORY SECONDS COMMAND [QEMU OPTION…]: start a guest in the background; its command ends after SECONDS.
# Guests named X/a and X/b share one folder X, and its `out`.
boot() {
    local name=$1 memory=$2 seconds=$3 command=$4 share kernel lock
    shift 4
    share=$(share_of "$name")
    mkdir -p "$lab/share"
    # Of two that start a guest of one name at once, one shall be told so.
    exec {lock}>"$lab/share/.lock"
    flock "$lock"
    if booted "$name"; then say "a guest named $name runs already"; return 1; fi
    kernel=$(find "$lab/kernel/boot" -name 'vmlinuz-*' 2>/dev/null | sort -V | tail -n 1)
    if [ ! -x "$lab/venv/bin/virtme-run" ] || [ -z "$kernel" ]; then say "not set up. Type: lab/setup.sh"; return 1; fi
    rm -rf "$share"
    mkdir -p "$share/out" "$share/tmp"
    mkfifo "$share/door.in" "$share/door.out"
    echo "$command" >"$share/command"
    : >"$share/output"
    # What the caller set for the library and for pytest holds in the guest too.
    export -p | grep -E '^declare -x (ZEROHOP|PYTEST)_' >"$share/environment" || true
    # The clock: emulated time-stamp counters are one and the same, and a look at the HPET instead, which the kernel
    # prefers unless told, takes 6.8 µs instead of 2.4. Mitigations, a fifth level of page tables and a KVM module only
    # cost here. The processor: what is quick on a real one is slow when emulated, and kernel and libraries avoid what
    # is not there. With checksums by PCLMULQDQ rxe moves 31 MB/s, with those from a table 58 to 95 (AES has to go
    # too: the kernel's module for it uses PCLMULQDQ without asking); a copy by REP MOVSB, byte by byte, takes two to
    # four times as long as one by words. A session of its own, so that ^C reaches the script alone, which then ends
    # the guest in order. The last device is the file system once more, which the guest mounts with a cache (see
    # machine.sh).
    TMPDIR=$share/tmp setsid "$lab/venv/bin/virtme-run" --kimg "$kernel" --mods=auto --force-9p --disable-kvm \
        --memory "$memory" --cwd "$PWD" --rwdir "$lab/share/${name%%/*}" \
        --overlay-rwdir /etc --overlay-rwdir /lib --overlay-rwdir /var \
        --kopt "virtme_hostname=${name//\//-}" --kopt tsc=reliable --kopt mitigations=off --kopt no5lvl \
        --kopt modprobe.blacklist=kvm_amd \
        --script-sh "exec bash $(printf %q "$PWD")/lab/guest.sh $(printf %q "$share") $seconds" \
        --qemu-opts -cpu max,-pclmulqdq,-aes,-erms,-fsrm -smp 2 -name "zerohop-${name//\//-}" \
        -fsdev local,id=cached,path=/,security_model=none,readonly=on,multidevs=remap \
        -device virtio-9p-pci,fsdev=cached,mount_tag=cached "$@" \
        </dev/null >"$share/console" 2>&1 {lock}>&- &
    local pid=$!
    echo "$pid" >"$share/pid"
    exec {lock}>&-
    # Or else the shell tells the world when it is killed.
    disown
    # On a busy machine it takes a moment until the child has become the emulator, for which booted() looks.
    until booted "$name" || ! kill -0 "$pid" 2>/dev/null; do sleep 0.01; done
}

booted() { # NAME: whether the guest's emulator runs
    local pid
    pid=$(cat "$(share_of "$1")/pid" 2>/dev/null) || return
    grep -q virtme-run "/proc/$pid/cmdline" 2>/dev/null
}

kill_guest() { # NAME: end the guest at once, whatever it does, like a host that loses its power
    local pid
    booted "$1" || return 0
    pid=$(cat "$(share_of "$1")/pid")
    touch "$(share_of "$1")/killed"
    kill -KILL -- "-$pid" 2>/dev/null || true
}

end_guest() { # NAME: let a guest whose command has ended power itself off, and see that it does
    for _ in {1..100}; do
        booted "$1" || return 0
        sleep 0.1
    done
    kill_guest "$1"
}

as_line() { # WORD…: one word is a line of shell, several are a command with its arguments
    if [ $# = 1 ]; then echo "$1"; else printf '%q ' "$@"; fi
}

follow() { # NAME [PREFIX]: show what the guest prints, until this script ends
    tail -q -n +1 -s 0.2 -f "$(share_of "$1")/output" --pid=$$ 2>/dev/null | sed -u "s/^/${2-}/" &
}

# NAME SECONDS: wait until the guest's command has ended, for that long at most, and return its status.
wait_for_guest() {
    local share deadline=$((SECONDS + BOOT_SECONDS)) started=
    share=$(share_of "$1")
    until [ -e "$share/status" ]; do
        if [ -z "$started" ] && [ -e "$share/started" ]; then
            started=yes
            # It ends the command itself, and gets a little longer for that.
            deadline=$((SECONDS + $2 + 30))
        elif [ $SECONDS -ge $deadline ]; then
            if [ "$started" ]; then say "the guest '$1' hangs"; return 124; fi
            say "the guest '$1' did not come up within $BOOT_SECONDS s: $(tail -n 3 "$share/console" "$share/output")"
            return 125
        elif ! booted "$1" && [ ! -e "$share/status" ]; then
            [ ! -e "$share/killed" ] || return 137
            say "the guest '$1' died: $(tail -q -n 3 "$share/console" | tr -d '\r')"
            return 125
        fi
        sleep 0.2
    done
    end_guest "$1"
    return "$(cat "$share/status")"
}

collect() { # NAME: what a guest left goes where results are looked for
    local out=$lab/out/$1
    rm -rf "$out"
    mkdir -p "$lab/out"
    mv "$(share_of "$1")/out" "$out"
    local name
    for name in "$1" "$1/a" "$1/b"; do
        [ ! -e "$(share_of "$name")/output" ] || cp "$(share_of "$name")/output" "$lab/out/${name//\//-}.log"
    done
}
