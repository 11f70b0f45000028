#!/bin/sh
# One server's stored files are changed behind its back. Who serves the wrong bytes?
#
#   demos/contrast.sh              Quorate; and GlusterFS replica 3 where it is installed (and this is run by root)
#   demos/contrast.sh --keep       leave everything in the scratch directory that it names
#   demos/contrast.sh --quorate    Quorate alone
#
# It builds `quorate` if need be, uses a scratch directory and ports of 127.0.0.1 only, and ends all that it has started.
# Exit code 0: Quorate served no wrong byte and is whole again.
set -eu

FILES=${FILES:-60}      # so many, of 256 KiB each
ROUNDS=${ROUNDS:-3}     # so often each is read, each time without what the kernel has cached
PORT=${PORT:-7940}      # the first of four

here=$(cd "$(dirname "$0")/.." && pwd)
quorate=${QUORATE:-$here/target/release/quorate}
[ -x "$quorate" ] || (cd "$here" && cargo build --release --locked -p quorate)
[ -e /dev/fuse ] || { echo "this needs /dev/fuse and fusermount3 (apt install fuse3)" >&2; exit 2; }

group=
stop() {
    [ -z "$group" ] || { kill -INT "$group" 2>/dev/null && wait "$group" || true; }
    if [ "$keep" = --keep ]; then echo "all of it is in $scratch"; else rm -rf "$scratch"; fi
}

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }

write_files() {
    for i in $(seq $FILES); do
        head -c 262144 /dev/urandom > "$scratch/source/$i"
    done
}

# So that what is read from a directory comes from whoever serves it, and not from what the kernel has cached.
drop_caches() {
    sync
    for i in $(seq $FILES); do
        dd if="$1/$i" iflag=nocache count=0 2>/dev/null || true
    done
    [ "$(id -u)" != 0 ] || echo 3 > /proc/sys/vm/drop_caches 2>/dev/null || true
}

# Reads all files ROUNDS times: prints how many reads gave other bytes than were written, and how many failed.
read_all() {
    wrong=0 failed=0
    for round in $(seq $ROUNDS); do
        drop_caches "$1"
        for i in $(seq $FILES); do
            if ! cat "$1/$i" > "$scratch/got" 2>/dev/null; then
                failed=$((failed + 1))
            elif ! cmp -s "$scratch/got" "$scratch/source/$i"; then
                wrong=$((wrong + 1))
            fi
        done
    done
    echo "   of $((FILES * ROUNDS)) reads: $wrong with wrong bytes, $failed that failed"
}

# Writes 16 bytes over each so many of a file, in place: its length stays, and nobody is told.
tamper() {
    size=$(stat -c %s "$1")
    at=$((${3:-8192}))
    while [ "$at" -lt "$size" ]; do
        printf 'written by other' | dd of="$1" bs=1 seek="$at" conv=notrunc status=none
        at=$((at + $2))
    done
}

# GlusterFS, in namespaces of its own: it does not want a loopback address, and all of it ends with this shell.
gluster_part() {
    ip link set lo up
    ip address add 192.0.2.1/32 dev lo
    mkdir "$scratch/gluster" "$scratch/glusterd"
    cat > "$scratch/glusterd.vol" <<END
volume management
    type mgmt/glusterd
    option working-directory $scratch/glusterd
    option run-directory $scratch/glusterd
    option transport-type socket
end-volume
END
    glusterd --no-daemon --volfile="$scratch/glusterd.vol" --log-file="$scratch/glusterd.log" --pid-file="$scratch/glusterd.pid" &
    for _ in $(seq 30); do gluster --mode=script peer status >/dev/null 2>&1 && break; sleep 1; done
    gluster --mode=script volume create contrast replica 3 "192.0.2.1:$scratch/brick-0" "192.0.2.1:$scratch/brick-1" "192.0.2.1:$scratch/brick-2" force >/dev/null
    # A client that is beside none of the bricks, as one on another machine; all else is as it comes.
    gluster --mode=script volume set contrast cluster.choose-local off >/dev/null
    gluster --mode=script volume start contrast >/dev/null
    mount -t glusterfs 192.0.2.1:/contrast "$scratch/gluster"
    cp "$scratch"/source/* "$scratch/gluster/"
    echo "   before: $(read_all "$scratch/gluster" | sed 's/^ *//')"
    for i in $(seq $FILES); do tamper "$scratch/brick-1/$i" 65536; done
    echo "   then 16 bytes in each 64 KiB of one brick's files are made other ones"
    read_all "$scratch/gluster"
    gluster volume heal contrast info | grep -i 'number of entries' | sort | uniq -c | sed 's/^ */   its heal info, bricks and what they say: /'
    umount "$scratch/gluster"
}

if [ "${1:-}" = --gluster ]; then
    scratch=$2
    gluster_part
    exit
fi
keep=${1:-}
scratch=$(mktemp -d "${TMPDIR:-/tmp}/contrast.XXXXXX")
trap stop EXIT
trap 'exit 130' INT TERM
mkdir "$scratch/source"
write_files

say "Quorate: four replicas on this machine; one's stored files are overwritten while it runs"
"$quorate" up --data "$scratch/quorate" --port "$PORT" --mount "$scratch/files" --json > "$scratch/up.log" 2>&1 &
group=$!
for _ in $(seq 120); do
    grep -q '"ready"' "$scratch/up.log" && break
    kill -0 "$group" 2>/dev/null || { cat "$scratch/up.log" >&2; exit 1; }
    sleep 1
done
cp "$scratch"/source/* "$scratch/files/"
# Until a checkpoint, after 128 batches, replicas read what they have just written from memory: no disk could be missed.
for _ in $(seq 80); do
    mkdir "$scratch/files/busy"
    rmdir "$scratch/files/busy"
done
drop_caches "$scratch/files"
echo "   before: $(read_all "$scratch/files" | sed 's/^ *//')"

for segment in "$scratch"/quorate/replica-2/blobs/*; do
    tamper "$segment" 65536
done
echo "   then 16 bytes in each 64 KiB of what replica 2 has stored are made other ones"
quorate_reads=$(read_all "$scratch/files")
echo "$quorate_reads"
echo "   what replica 2 said of it:"
grep -m 2 -E 'store failed|is removed' "$scratch/quorate/replica-2/messages.log" | cut -d ' ' -f 2- | cut -c 1-250 | sed 's/^ */     /'
say "Replica 2 recovers on demand: each piece of its state is compared with what the group has agreed on"
"$quorate" recover 2 --data "$scratch/quorate"
"$quorate" status "$scratch/quorate/group.toml"

case $quorate_reads in *" 0 with wrong bytes, 0 that failed") ;; *) exit 1 ;; esac
[ "$keep" != --quorate ] || exit 0

say "One server: what a plain directory gives, be it served by NFS or not"
mkdir "$scratch/plain"
cp "$scratch"/source/* "$scratch/plain/"
for i in $(seq $FILES); do tamper "$scratch/plain/$i" 65536; done
read_all "$scratch/plain"

if command -v glusterd >/dev/null && [ "$(id -u)" = 0 ]; then
    say "GlusterFS $(glusterd --version | head -n 1 | cut -d ' ' -f 2), replica 3, beside none of its bricks (cluster.choose-local off), else with its defaults"
    unshare --net --mount --pid --fork --mount-proc --kill-child "$0" --gluster "$scratch" || echo "   it could not be run here"
else
    say "GlusterFS is left out: glusterfs-server is not installed, or this is not run by root"
fi
