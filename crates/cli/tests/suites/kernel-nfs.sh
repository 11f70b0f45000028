#!/bin/bash
# The NFS client of Linux itself works on `quorate nfs`: a virtual machine mounts an export of a group of four and runs, on the mount,
# suites that others wrote. docs/nfs.md tells what came out.
#
#   kernel-nfs.sh WORK [SUITE...]      pjdfstest, fsx, conformance, connectathon [default: the first two]
#
# WORK keeps the virtual machine's kernel (Debian's) between runs, what is built, and the results: SUITE.txt. The machine is emulated, so it
# needs no support of the processor's. Its network is QEMU's, in which 10.0.2.2 is this machine's 127.0.0.1; it asks nobody else.
#
#   QUORATE=...       the program [target/release/quorate]
#   SERVER=ganesha    the same on nfs-ganesha, which serves a directory of WORK, to compare
#   TOOLS=...         where pjdfstest and fsx are [target/tools/bin; `cargo xtask tools` puts them there]
#   CONFORMANCE=...   the sources of nfs-conformance (github.com/loghyr/nfs-conformance), checked out
#   CONNECTATHON=...  those of Connectathon's tests of 2004 (github.com/phdeniel/cthon04)
#   PORT=...          the first of four ports, and the two below it [7881]
#   LIMIT=...         seconds that the virtual machine may run [1500]
#
# Needs root, and: apt-get install qemu-system-x86 busybox-static kmod cpio; for conformance and connectathon a C compiler and make, for the latter
# also groff and time; for SERVER=ganesha nfs-ganesha nfs-ganesha-vfs rpcbind
set -eu

here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../../../.." && pwd)
[ $# -ge 1 ] || { sed -n '2,/^set/{/^#/p}' "$0" >&2; exit 2; }
mkdir -p "$1"
work=$(cd "$1" && pwd)
shift
[ $# -gt 0 ] || set -- pjdfstest fsx
quorate=${QUORATE:-$top/target/release/quorate}
server=${SERVER:-quorate}
tools=${TOOLS:-$top/target/tools/bin}
port=${PORT:-7881}
nfs=$((port - 1)) mount=$((port - 1))
[ "$server" = quorate ] || mount=$((port - 2))
needed="qemu-system-x86_64 busybox modprobe depmod cpio"
for suite in "$@"; do
    case $suite in
        pjdfstest | fsx) needed="$needed $tools/$suite" ;;
        conformance) needed="$needed cc make ${CONFORMANCE:?}/op_append.c" ;;
        connectathon) needed="$needed cc make groff tbl /usr/bin/time ${CONNECTATHON:?}/basic/runtests" ;;
        *) echo "there is no suite $suite here" >&2; exit 2 ;;
    esac
done
case $server in
    quorate) needed="$needed $quorate" ;;
    ganesha) needed="$needed ganesha.nfsd rpcbind unshare" ;;
    *) echo "there is no server $server here" >&2; exit 2 ;;
esac
for program in $needed; do
    command -v "$program" > /dev/null || [ -f "$program" ] || { echo "this needs $program" >&2; exit 2; }
done

group= front= machine=
stop() {
    # unshare hears nothing but this, and what it runs ends with it.
    [ "$server" = quorate ] || [ -z "$front" ] || kill -KILL "$front" 2> /dev/null || true
    for process in $machine $front $group; do
        # Not INT: what runs in the background of a script does not hear that.
        kill -TERM "$process" 2> /dev/null && wait "$process" || true
    done
    rm -rf "$work/group" "$work/served"
}
trap stop EXIT
trap 'exit 130' INT TERM

# The kernel, its modules, and a root file system in memory.
cd "$work"
if [ ! -e kernel ]; then
    package=$(apt-cache depends linux-image-cloud-amd64 | awk '/Depends:/ { print $2; exit }')
    apt-get download "$package"
    dpkg -x "$package"_*.deb image
    cp image/boot/vmlinuz-* kernel
fi
release=$(basename image/lib/modules/*)
depmod -b "$work/image" "$release"
rm -rf root
mkdir -p root/{dev,etc,mnt,mods,proc,sys,tmp} root/usr/{bin,lib,lib64}
for directory in bin lib lib64; do
    ln -s usr/$directory root/$directory
done
cp "$(command -v busybox)" root/bin/
count=10
for module in virtio_pci virtio_net nfsv3; do
    modprobe -d "$work/image" -S "$release" --show-depends "$module"
done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }' | while read -r module; do
    cp "$module" "root/mods/$count-$(basename "$module")"
    count=$((count + 1))
done
# A program at a place, and the libraries that it needs where they are here.
put() {
    mkdir -p "root$(dirname "$2")"
    cp -L "$1" "root$2"
    { ldd "$1" 2> /dev/null || true; } | grep -o '/[^ ]*' | while read -r library; do
        mkdir -p "root$(dirname "$library")"
        cp -L "$library" "root$library"
    done
}
cp -L /lib/x86_64-linux-gnu/libnss_files.so.2 root/lib/x86_64-linux-gnu/ 2> /dev/null || true
for table in passwd group; do
    grep -E '^(root|daemon|bin|nobody|nogroup):' /etc/$table > root/etc/$table
done
echo 'passwd: files' > root/etc/nsswitch.conf
echo 'group: files' >> root/etc/nsswitch.conf

# For each suite what it takes, and a line of a script for the virtual machine.
give_pjdfstest() {
    put "$tools/pjdfstest" /bin/pjdfstest
    # Version 3 has no posix_fallocate and no time of birth.
    grep -vE '^(posix_fallocate|stat_st_birthtime)' "$here/pjdfstest.toml" > root/etc/pjdfstest.toml
    # A name of this length, for which the suite's paths of the greatest length come out even.
    echo 'mkdir /mnt/n/pjdfs && chmod 755 /mnt/n/pjdfs && pjdfstest -c /etc/pjdfstest.toml -p /mnt/n/pjdfs -s /tmp'
}
give_fsx() {
    put "$tools/fsx" /bin/fsx
    echo 'fsx -N 5000 -S 42 /mnt/n/fsx > /tmp/fsx 2>&1; rc=$?; tail -n 5 /tmp/fsx; (exit $rc)'
}
# Each of its programs by itself: it passed, or there is nothing to test (77), or what it said.
give_conformance() {
    rm -rf conformance
    cp -r "$CONFORMANCE" conformance
    make -C conformance > conformance.log 2>&1
    for program in conformance/op_*; do
        [ ! -x "$program" ] || put "$program" "/conformance/$(basename "$program")"
    done
    cat > root/conformance/run << 'GUEST'
mkdir /mnt/n/conformance && cd /mnt/n/conformance || exit
bad=0
for program in /conformance/op_*; do
    timeout 300 $program -d /mnt/n/conformance > /tmp/said 2>&1
    case $? in
        0) echo "PASS ${program##*/}" ;;
        77) echo "SKIP ${program##*/}: $(grep -m 1 SKIP /tmp/said)" ;;
        *) echo "FAIL ${program##*/}"; sed 's/^/    /' /tmp/said; bad=1 ;;
    esac
done
exit $bad
GUEST
    echo 'sh /conformance/run'
}
# It compiles, makes and typesets on the mount.
give_connectathon() {
    rm -rf connectathon
    cp -r "$CONNECTATHON" connectathon
    # Its C is of another time.
    flags='-DLINUX -DHAVE_SOCKLEN_T -DGLIBC=22 -DMMAP -DSTDARG -std=gnu89 -fcommon -w'
    # Both its makefiles and its scripts read this. What they call is also searched in the directory where they are.
    printf '%s\n' 'PATH=/bin:/usr/bin:.' CC=cc "CFLAGS='$flags'" LIBS= TESTARG=-t TEST=-a DASHN=-n BLC= > connectathon/tests.init
    echo "LOCKTESTS='tlocklfs tlock64'" >> connectathon/tests.init
    for part in basic general special lock; do
        make -C "connectathon/$part" CC=cc CFLAGS="$flags" LOCKTESTS='tlocklfs tlock64'
    done > connectathon.log 2>&1
    cp -r connectathon root/connectathon
    for program in connectathon/*/*; do
        if [ -x "$program" ] && [ -f "$program" ]; then put "$program" "/$program"; fi
    done
    for program in cc as ld make groff troff grotty tbl nroff /usr/bin/time; do
        put "$(command -v $program)" "/usr/bin/$(basename $program)"
    done
    for program in cc1 collect2; do
        put "$(cc -print-prog-name=$program)" "$(cc -print-prog-name=$program)"
    done
    gcc=$(dirname "$(cc -print-libgcc-file-name)")
    mkdir -p "root$gcc" root/usr/share
    find "$gcc" -maxdepth 1 -name '*.[ao]' -o -maxdepth 1 -name 'lib*.so*' | xargs -I{} cp -L {} "root$gcc/"
    cp -r "$gcc/include" "root$gcc/"
    for file in crt1.o Scrt1.o crti.o crtn.o libc.so libc_nonshared.a libm.so libmvec.so.1 libmvec.so; do
        found=$(cc -print-file-name=$file)
        [ ! -f "$found" ] || put "$found" "$(readlink -f "$(dirname "$found")")/$file"
    done
    # shellcheck disable=SC2086
    cat connectathon/general/*.c | cc $flags -M -xc - | grep -o '/[^ ]*\.h' | sort -u |
        cpio --quiet -pdmuL root
    for header in stdio ctype time pwd signal setjmp; do
        cp -L /usr/include/$header.h root/usr/include/
    done
    cp -rL "$(readlink -f /usr/share/groff/current)" root/usr/share/groff-here
    mkdir -p "root/usr/share/groff" && mv root/usr/share/groff-here "root/usr/share/groff/$(basename "$(readlink -f /usr/share/groff/current)")"
    [ ! -d /etc/groff ] || cp -rL /etc/groff root/etc/
    cat > root/connectathon/run << 'GUEST'
cd /connectathon
ln -sf /proc/self/fd /dev/fd
bad=0
for part in b g s l; do
    ./runtests -$part -t /mnt/n/connectathon > /tmp/said 2>&1 && echo "PASS -$part" || { echo "FAIL -$part"; bad=1; }
    sed 's/^/    /' /tmp/said
done
exit $bad
GUEST
    echo 'sh /connectathon/run'
}
mkdir -p root/suites
for suite in "$@"; do
    "give_$suite" > "root/suites/$suite"
done

cat > root/init << GUEST
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin:/usr/bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev; mount -t tmpfs tmp /tmp
for module in /mods/*; do insmod "\$module"; done 2> /dev/null
ip link set lo up; ip link set eth0 up; ip addr add 10.0.2.15/24 dev eth0; ip route add default via 10.0.2.2
mkdir /mnt/n
if mount -t nfs -o vers=3,tcp,mountproto=tcp,port=$nfs,mountport=$mount,nolock,addr=10.0.2.2 10.0.2.2:$([ $server = quorate ] && echo / || echo "$work/served") /mnt/n; then
    for suite in $*; do
        echo "BEGIN \$suite"; sh "/suites/\$suite"; echo "END \$suite \$?"
    done
    umount /mnt/n
else
    echo "the mount failed"
fi
poweroff -f
GUEST
chmod +x root/init
(cd root && find . | cpio --quiet -o -H newc | gzip -1) > initramfs.gz

rm -rf group served
serve_quorate() {
    "$quorate" up --no-mount --data "$work/group" --port "$port" --json > up.log 2>&1 &
    group=$!
    for _ in $(seq 120); do
        grep -q '"ready"' up.log && break
        kill -0 "$group" 2> /dev/null || { cat up.log >&2; exit 1; }
        sleep 1
    done
    cat > exports.toml << EXPORTS
[[export]]
path = "/"
clients = ["127.0.0.1"]
secure = false
squash = "no_root_squash"
EXPORTS
    "$quorate" nfs "$work/group/group.toml" --listen "127.0.0.1:$nfs" --exports exports.toml > front.log 2>&1 &
    front=$!
}
# It starts only where a port mapper takes its ports; so it gets one that nobody else sees.
serve_ganesha() {
    mkdir served
    cat > ganesha.conf << CONFIGURATION
NFS_CORE_PARAM {
    Protocols = 3; NFS_Port = $nfs; MNT_Port = $mount; Bind_addr = 127.0.0.1;
    Enable_NLM = false; Enable_RQUOTA = false; Enable_UDP = false;
}
EXPORT {
    Export_Id = 1; Path = $work/served; Pseudo = /served; Access_Type = RW; Squash = No_Root_Squash;
    Protocols = 3; Transports = TCP; SecType = sys; PrivilegedPort = false;
    FSAL { Name = VFS; }
}
CONFIGURATION
    unshare --mount --pid --fork --kill-child=KILL sh -euc '
        mount -t proc proc /proc
        mount -t tmpfs none /run; mount -t tmpfs none /var/lib/nfs; mkdir -p /run/rpcbind
        unshare --net rpcbind -f -w &
        until [ -S /run/rpcbind.sock ]; do sleep 0.1; done
        exec ganesha.nfsd -F -f ganesha.conf -L ganesha.log -p /run/ganesha.pid' > front.log 2>&1 &
    front=$!
}
"serve_$server"
for _ in $(seq 30); do
    (: < "/dev/tcp/127.0.0.1/$nfs" && : < "/dev/tcp/127.0.0.1/$mount") 2> /dev/null && break
    sleep 1
done
kill -0 "$front" 2> /dev/null || { cat front.log >&2; exit 1; }

timeout "${LIMIT:-1500}" qemu-system-x86_64 -machine q35 -accel tcg,thread=multi -cpu max -smp 2 -m 1536 -nographic -no-reboot \
    -kernel kernel -initrd initramfs.gz -append 'console=ttyS0 panic=-1 quiet mitigations=off' \
    -nic user,model=virtio-net-pci < /dev/null > guest.raw 2>&1 &
machine=$!
wait "$machine" || true
machine=
tr -d '\r' < guest.raw > guest.log
for suite in "$@"; do
    sed 's/\x1b\[[0-9;]*m//g' guest.log | sed -n "/BEGIN $suite/,/^END $suite/p" > "$suite.txt"
    grep -q "^END $suite" "$suite.txt" || { tail -n 30 guest.log >&2; echo "$suite did not come to its end" >&2; exit 1; }
done
bad=0
judge_pjdfstest() {
    grep '^Summary' pjdfstest.txt
    # The two that the protocol can't pass.
    failed=$(sed -n 's/ *FAILED$//p' pjdfstest.txt | grep -vE '^(unlink::open_file_not_freed|utimensat::y2038)$' || true)
    [ -z "$failed" ] || { echo "failed: $failed"; return 1; }
}
judge_fsx() {
    tail -n 2 fsx.txt
    grep -q '^END fsx 0' fsx.txt
}
judge_conformance() {
    for result in PASS SKIP FAIL; do
        echo "conformance: $(grep -c "^$result" conformance.txt) $result"
    done
    ! grep '^FAIL' conformance.txt
}
judge_connectathon() {
    grep -E '^(PASS|FAIL)' connectathon.txt
    grep -q '^END connectathon 0' connectathon.txt
}
for suite in "$@"; do
    "judge_$suite" || bad=1
done
exit $bad
