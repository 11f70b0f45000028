#!/bin/bash
# The NFS client of Linux itself works on `quorate nfs`, or on `quorate route` before four servers: a virtual machine mounts the volume and runs, on the
# mount, suites that others wrote, and `tree`: sources are unpacked, built, moved, changed and removed. docs/nfs.md and docs/router.md tell what came out.
#
#   kernel-nfs.sh WORK [SUITE...]      pjdfstest, fsx, conformance, connectathon; with SERVER=route also tree, libnfs
#                                      [default: the first two; with SERVER=route tree and libnfs]
#
# WORK keeps the virtual machine's kernel (Debian's) between runs, what is built, and the results: SUITE.txt. The machine is emulated, so it
# needs no support of the processor's. Its network is QEMU's, in which 10.0.2.2 is this machine's 127.0.0.1; it asks nobody else.
#
#   QUORATE=...       the program [target/release/quorate]
#   SERVER=ganesha    the same on nfs-ganesha, which serves a directory of WORK, to compare
#   SERVER=route      the same on `quorate route`, which makes one volume of four nfs-ganesha of eight exports each. `tree` does all on one export of one
#                     of them as well, and what is there after each step must be the same; `libnfs` lists, reads and writes with its tools
#   TOOLS=...         where pjdfstest and fsx are [target/tools/bin; `cargo xtask tools` puts them there]
#   CONFORMANCE=...   the sources of nfs-conformance (github.com/loghyr/nfs-conformance), checked out
#   CONNECTATHON=...  those of Connectathon's tests of 2004 (github.com/phdeniel/cthon04)
#   TREE=...          the sources of mimalloc, version 2, for tree and libnfs [those that a build of Quorate has fetched]
#   PORT=...          the first of eight ports, and the two below it [7881]
#   LIMIT=...         seconds that the virtual machine may run [1500]
#
# Needs root, and: apt-get install qemu-system-x86 busybox-static kmod cpio; for conformance and connectathon a C compiler and make, for the latter
# also groff and time; for SERVER=ganesha and route nfs-ganesha nfs-ganesha-vfs rpcbind, for tree a C compiler and make, for libnfs libnfs-utils
set -eu

here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../../../.." && pwd)
[ $# -ge 1 ] || { sed -n '2,/^set/{/^#/p}' "$0" >&2; exit 2; }
mkdir -p "$1"
work=$(cd "$1" && pwd)
shift
server=${SERVER:-quorate}
if [ $# -eq 0 ]; then
    case $server in
        route) set -- tree libnfs ;;
        *) set -- pjdfstest fsx ;;
    esac
fi
quorate=${QUORATE:-$top/target/release/quorate}
tools=${TOOLS:-$top/target/tools/bin}
port=${PORT:-7881}
# Where the volume is, and the one server that `tree` and `libnfs` compare it with.
nfs=$((port - 1)) mount=$((port - 1)) export_path=/
[ "$server" != ganesha ] || mount=$((port - 2))
one_port= one_mount= one_path=
needed="qemu-system-x86_64 busybox modprobe depmod cpio"
for suite in "$@"; do
    case $suite in
        pjdfstest | fsx) needed="$needed $tools/$suite" ;;
        conformance) needed="$needed cc make ${CONFORMANCE:?}/op_append.c" ;;
        tree | libnfs)
            [ "$server" = route ] || { echo "the suite $suite compares SERVER=route with one of its servers" >&2; exit 2; }
            tree=${TREE:-$(ls -d "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*/libmimalloc-sys-*/c_src/mimalloc/v2 2> /dev/null | tail -n 1)}
            needed="$needed cc ar make ${tree:?is not there: say TREE=...}/src/static.c"
            [ $suite != libnfs ] || needed="$needed nfs-ls nfs-cp nfs-cat"
            ;;
        connectathon) needed="$needed cc make groff tbl /usr/bin/time ${CONNECTATHON:?}/basic/runtests" ;;
        *) echo "there is no suite $suite here" >&2; exit 2 ;;
    esac
done
case $server in
    quorate) needed="$needed $quorate" ;;
    ganesha) needed="$needed ganesha.nfsd rpcbind unshare" ;;
    route) needed="$needed $quorate ganesha.nfsd rpcbind unshare" ;;
    *) echo "there is no server $server here" >&2; exit 2 ;;
esac
for program in $needed; do
    command -v "$program" > /dev/null || [ -f "$program" ] || { echo "this needs $program" >&2; exit 2; }
done

group= front= machine= ganeshas=
stop() {
    for process in $machine $front $group; do
        # Not INT: what runs in the background of a script does not hear that.
        kill -TERM "$process" 2> /dev/null && wait "$process" || true
    done
    for process in $ganeshas; do
        # unshare hears nothing but this, and what it runs ends with it.
        kill -KILL "$process" 2> /dev/null && wait "$process" 2> /dev/null || true
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

. "$here/kernel-nfs/suites.sh"
mkdir -p root/suites
for suite in "$@"; do
    "give_$suite" > "root/suites/$suite"
done

rm -rf group served
. "$here/kernel-nfs/servers.sh"
"serve_$server"
[ -z "$front" ] || is_there "$nfs" "$mount" "$front" || { cat front.log >&2; exit 1; }

# How the virtual machine mounts: where, the port, the port of MOUNT, the path.
mounted() {
    echo "mkdir $1 && mount -t nfs -o vers=3,tcp,mountproto=tcp,port=$2,mountport=$3,nolock,addr=10.0.2.2 10.0.2.2:$4 $1"
}
cat > root/init << GUEST
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin:/usr/bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev; mount -t tmpfs tmp /tmp
for module in /mods/*; do insmod "\$module"; done 2> /dev/null
ip link set lo up; ip link set eth0 up; ip addr add 10.0.2.15/24 dev eth0; ip route add default via 10.0.2.2
if $(mounted /mnt/n "$nfs" "$mount" "$export_path") && $([ -z "$one_port" ] && echo : || mounted /mnt/one "$one_port" "$one_mount" "$one_path"); then
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
for suite in "$@"; do
    "judge_$suite" || bad=1
done
exit $bad
