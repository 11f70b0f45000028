#!/bin/bash
# xfstests on mounts of two groups of four, each test by itself. docs/testing.md tells what came out.
#
#   xfstests.sh WORK SOURCES [TEST...]      as 001 or 635 [default: the group generic/quick]
#
# SOURCES are those of xfstests (github.com/kdave/xfstests), built: it says itself what that takes. WORK keeps the groups and the results: TEST.log,
# TEST.d of what failed, and a line for each test in `results`. What stands there already is not run again; take a line away to do so.
#
#   QUORATE=...   the program [target/release/quorate]
#   PORT=...      the first of eight ports [7900]
#   LIMIT=...     seconds for each test [300]
#   BESIDE=...    in place of the groups: the example `passthrough_ll` of libfuse, over two directories of WORK, to compare
#
# Needs root, the users that xfstests asks for (fsgqa, fsgqa2, 123456-fsgqa), and psmisc. While it runs there is a /sbin/mount.fuse.quorate, which
# xfstests mounts by; with BESIDE a /sbin/mount.fuse.passthrough_ll.
set -eu

top=$(cd "$(dirname "$0")/../../../.." && pwd)
[ $# -ge 2 ] || { sed -n '2,/^set/{/^#/p}' "$0" >&2; exit 2; }
mkdir -p "$1"
work=$(cd "$1" && pwd)
sources=$(cd "$2" && pwd)
shift 2
quorate=$(realpath "${QUORATE:-$top/target/release/quorate}")
port=${PORT:-7900}
type=quorate
[ -z "${BESIDE:-}" ] || type=passthrough_ll
helper=/sbin/mount.fuse.$type
for program in "$quorate" "$sources/check" "$sources/ltp/fsstress" fuser "${BESIDE:-true}"; do
    command -v "$program" > /dev/null || { echo "this needs $program" >&2; exit 2; }
done
[ ! -e "$helper" ] || { echo "$helper is there already" >&2; exit 2; }
[ $# -gt 0 ] || mapfile -t < <(awk '/ quick( |$)/ && $1 ~ /^[0-9]+$/ { print $1 }' "$sources/tests/generic/group.list") tests
[ $# -eq 0 ] || tests=("$@")

replicas=
leave_mounts() {
    for side in test scratch; do
        mountpoint -q "$work/mnt/$side" || continue
        fuser -skm "$work/mnt/$side" 2> /dev/null || true
        umount "$work/mnt/$side" || umount -l "$work/mnt/$side" || true
    done
}
stop() {
    rm -f "$helper"
    leave_mounts
    for process in $replicas; do
        kill -TERM "$process" 2> /dev/null && wait "$process" || true
    done
}
trap stop EXIT
trap 'exit 130' INT TERM

mkdir -p "$work/mnt/test" "$work/mnt/scratch"
serve() {
    for side in test scratch; do
        addresses=$(for n in 0 1 2 3; do printf '127.0.0.1:%s,' $((port + n)); done)
        [ -e "$work/$side/group.toml" ] ||
            "$quorate" init --name "xfs-$side" --capacity $((8 << 30)) --no-key-holders --replicas "${addresses%,}" "$work/$side" > "$work/init.log"
        for n in 0 1 2 3; do
            "$quorate" replica --id $n --group "$work/$side/group.toml" > "$work/$side/$n.log" 2>&1 < /dev/null &
            replicas="$replicas $!"
        done
        port=$((port + 4))
    done
    # The device of xfstests is what stands as the source in the list of mounts.
    cat > "$helper" << HELPER
#!/bin/bash
source=\$1 dir=\$2 options=rw
shift 2
while [ \$# -gt 0 ]; do
    [ "\$1" != -o ] || { options=\$2; shift; }
    shift
done
exec "$quorate" mount "$work/\${source#quorate:xfs-}/group.toml" "\$dir" --background --log "$work/\${source#quorate:xfs-}.log" -o "\$options"
HELPER
    cat > "$work/config" << CONFIG
export TEST_DEV=quorate:xfs-test SCRATCH_DEV=quorate:xfs-scratch
export MOUNT_OPTIONS="-o allow_other" TEST_FS_MOUNT_OPTS="-o allow_other"
CONFIG
}
pass_through() {
    mkdir -p "$work/test" "$work/scratch"
    printf '#!/bin/bash\nulimit -n 1048576\nexec "%s" -ofsname="$@"\n' "$(realpath "$BESIDE")" > "$helper"
    cat > "$work/config" << CONFIG
export TEST_DEV=pass-test SCRATCH_DEV=pass-scratch
export MOUNT_OPTIONS="-osource=$work/scratch,allow_other,default_permissions"
export TEST_FS_MOUNT_OPTS="-osource=$work/test,allow_other,default_permissions"
CONFIG
}
if [ $type = quorate ]; then serve; else pass_through; fi
chmod +x "$helper"
cat >> "$work/config" << CONFIG
export TEST_DIR=$work/mnt/test SCRATCH_MNT=$work/mnt/scratch
export FSTYP=fuse FUSE_SUBTYP=.$type RESULT_BASE=$work/said
CONFIG

cd "$sources"
touch "$work/results"
for number in "${tests[@]}"; do
    ! grep -q "^$number " "$work/results" || continue
    begin=$SECONDS
    result=0
    HOST_OPTIONS=$work/config timeout -k 10 "${LIMIT:-300}" ./check "generic/$number" > "$work/$number.log" 2>&1 < /dev/null || result=$?
    why=
    if [ $result = 124 ] || [ $result = 137 ]; then
        result=TIMEOUT
        leave_mounts
    elif grep -q '^Not run: generic' "$work/$number.log"; then
        result=notrun why=$(grep -m 1 -o '\[not run\].*' "$work/$number.log" || true)
    elif grep -q '^Passed all 1 tests' "$work/$number.log"; then
        result=pass
    else
        result=FAIL
        mkdir -p "$work/$number.d"
        find "$work/said" -name "$number.*" -exec cp {} "$work/$number.d/" \;
    fi
    echo "$number $result $((SECONDS - begin)) s $why" | tee -a "$work/results"
done
awk '{ count[$2]++ } END { for (result in count) print count[result], result }' "$work/results"
! grep -qE ' (FAIL|TIMEOUT) ' "$work/results"
