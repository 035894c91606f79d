#!/bin/bash
# plain_user.sh [PYTEST ARGUMENT…]: what `make test-python` does for somebody who is not root, on a machine without the
# headers of libibverbs, in the background of a script, where Ctrl-C is ignored; with arguments, these tests alone.
# For root, in a mount namespace: nothing outside it changes. Installed packages are those of .venv; all else is made
# anew, in a copy of the checkout.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ "$(id -u)" != 0 ]; then
    echo "Only root can become another user. Type: sudo make test-plain-user; or as yourself: make test-python" >&2
    exit 1
fi
# These tests may differ for such a user or build: commands, devices, limits, rights, and a little of everything.
[ $# -gt 0 ] || set -- tests/cli/test_{command_line,demo,doctor,info,peer,topology}.py tests/fabric tests/machine \
    tests/{config,core,transport} tests/test_*.py tests/failure/test_{access,hostile_lane,limits,lying_*,secret}.py \
    tests/conformance/test_operations.py
if [ -z "${ZEROHOP_TEST_HOME:-}" ]; then
    home=$(mktemp -d /tmp/zh-plain-XXXXXX)
    trap 'rm -rf --one-file-system "$home"' EXIT
    mkdir "$home"/{zerohop,way,t}
    git ls-files -z --cached --others --exclude-standard | xargs -0 cp -d --parents --target-directory "$home/zerohop"
    rc=0
    ZEROHOP_TEST_HOME=$home unshare --mount --propagation private scripts/plain_user.sh "$@" || rc=$?
    for name in report flaky; do
        to=ZEROHOP_TEST_${name^^}
        [ -z "${!to:-}" ] || [ ! -e "$home/t/$name" ] || cat "$home/t/$name" >>"${!to}"
    done
    exit $rc
fi

home=$ZEROHOP_TEST_HOME
user=$(id -u nobody)
group=$(id -g nobody)
site=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
needed=("$(.venv/bin/python -c 'import sys; print(sys.base_prefix)')" "$PWD/.venv")

# Python or .venv may lie in a folder that only root may enter, such as /root. A folder that holds just them is mounted
# in its place.
for i in "${!needed[@]}"; do
    mkdir "$home/way/$i"
    mount --bind "${needed[i]}" "$home/way/$i"
done
for i in "${!needed[@]}"; do
    folder=
    while read -r part; do
        folder=$folder/$part
        if [ -e "$folder" ] && [ $(($(stat -c 0%a "$folder") & 1)) = 0 ]; then
            mount -t tmpfs -o mode=755 none "$folder"
        fi
    done < <(tr / '\n' <<<"${needed[i]#/}")
    if [ ! -e "${needed[i]}" ]; then
        mkdir -p "${needed[i]}"
        mount --bind "$home/way/$i" "${needed[i]}"
    fi
done
for headers in /usr/include/infiniband /usr/local/include/infiniband; do
    [ ! -e $headers ] || mount -t tmpfs none $headers
done

chown "$user:$group" "$home"
chown -R "$user:$group" "$home/zerohop" "$home/t"
path=$PWD/.venv/bin:$PATH
cd "$home/zerohop"
trap '' INT
# Not optimised, it is built a quarter faster.
exec setpriv --reuid="$user" --regid="$group" --clear-groups env -i PATH="$path" HOME="$home" TMPDIR="$home/t" \
    LANG=C.UTF-8 SKBUILD_CMAKE_BUILD_TYPE=None ${ZEROHOP_WERROR:+ZEROHOP_WERROR=$ZEROHOP_WERROR} \
    ZEROHOP_TEST_REPORT="$home/t/report" ZEROHOP_TEST_FLAKY="$home/t/flaky" \
    ${ZEROHOP_TEST_PATIENCE:+ZEROHOP_TEST_PATIENCE=$ZEROHOP_TEST_PATIENCE} \
    ${ZEROHOP_TEST_PART:+ZEROHOP_TEST_PART=$ZEROHOP_TEST_PART} \
    ${ZEROHOP_TEST_AGAIN:+ZEROHOP_TEST_AGAIN=$ZEROHOP_TEST_AGAIN} \
    bash -euc '
        python -m venv --without-pip .venv
        echo "$0" >"$(echo .venv/lib/python3*/site-packages)/borrowed.pth"
        touch .venv/.complete
        exec make test-python T="$(printf "%q " "$@")"' "$site" "$@"
