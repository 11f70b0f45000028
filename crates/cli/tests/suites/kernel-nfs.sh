#!/bin/bash
# The NFS client of Linux itself works on `quorate nfs`: a virtual machine mounts an export of a group of four and runs, on the mount,
# pjdfstest and fsx, which others wrote. docs/nfs.md tells what came out.
#
#   kernel-nfs.sh WORK
#
# WORK keeps the virtual machine's kernel (Debian's) between runs, and the results: pjdfstest.txt, fsx.txt. The machine is emulated, so it
# needs no support of the processor's. Its network is QEMU's, in which 10.0.2.2 is this machine's 127.0.0.1; it asks nobody else.
#
#   QUORATE=...     the program [target/release/quorate]
#   TOOLS=...       where pjdfstest and fsx are [target/tools/bin; `cargo xtask tools` puts them there]
#   PORT=...        the first of four ports, and the one below it [7881]
#   LIMIT=...       seconds that the virtual machine may run [1500]
#
# Needs root, and: apt-get install qemu-system-x86 busybox-static kmod cpio
set -eu

here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../../../.." && pwd)
[ $# = 1 ] || { sed -n '2,/^set/{/^#/p}' "$0" >&2; exit 2; }
mkdir -p "$1"
work=$(cd "$1" && pwd)
quorate=${QUORATE:-$top/target/release/quorate}
tools=${TOOLS:-$top/target/tools/bin}
port=${PORT:-7881}
for program in qemu-system-x86_64 busybox modprobe depmod cpio "$quorate" "$tools/pjdfstest" "$tools/fsx"; do
    command -v "$program" > /dev/null || { echo "this needs $program" >&2; exit 2; }
done

group= front= machine=
stop() {
    for process in $machine $front $group; do
        # Not INT: what runs in the background of a script does not hear that.
        kill -TERM "$process" 2> /dev/null && wait "$process" || true
    done
    rm -rf "$work/group"
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
mkdir -p root/{bin,dev,etc,lib,lib64,mnt,mods,proc,sys,tmp}
cp "$(command -v busybox)" root/bin/
count=10
for module in virtio_pci virtio_net nfsv3; do
    modprobe -d "$work/image" -S "$release" --show-depends "$module"
done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }' | while read -r module; do
    cp "$module" "root/mods/$count-$(basename "$module")"
    count=$((count + 1))
done
for program in pjdfstest fsx; do
    cp "$tools/$program" root/bin/
    ldd "$tools/$program" | grep -o '/[^ ]*' | while read -r library; do
        mkdir -p "root$(dirname "$library")"
        cp -L "$library" "root$library"
    done
done
cp -L /lib/x86_64-linux-gnu/libnss_files.so.2 root/lib/x86_64-linux-gnu/ 2> /dev/null || true
for table in passwd group; do
    grep -E '^(root|daemon|bin|nobody|nogroup):' /etc/$table > root/etc/$table
done
echo 'passwd: files' > root/etc/nsswitch.conf
echo 'group: files' >> root/etc/nsswitch.conf
# Version 3 has no posix_fallocate and no time of birth.
grep -vE '^(posix_fallocate|stat_st_birthtime)' "$here/pjdfstest.toml" > root/etc/pjdfstest.toml

cat > root/init << GUEST
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev; mount -t tmpfs tmp /tmp
for module in /mods/*; do insmod "\$module"; done 2> /dev/null
ip link set lo up; ip link set eth0 up; ip addr add 10.0.2.15/24 dev eth0; ip route add default via 10.0.2.2
mkdir /mnt/n
if mount -t nfs -o vers=3,tcp,mountproto=tcp,port=$((port - 1)),mountport=$((port - 1)),nolock,addr=10.0.2.2 10.0.2.2:/ /mnt/n; then
    # A name of this length, for which the suite's paths of the greatest length come out even.
    mkdir /mnt/n/pjdfs; chmod 755 /mnt/n/pjdfs
    echo "BEGIN pjdfstest"; pjdfstest -c /etc/pjdfstest.toml -p /mnt/n/pjdfs -s /tmp; echo "END pjdfstest \$?"
    echo "BEGIN fsx"; fsx -N 5000 -S 42 /mnt/n/fsx > /tmp/fsx 2>&1; rc=\$?; tail -n 5 /tmp/fsx; echo "END fsx \$rc"
    umount /mnt/n
else
    echo "the mount failed"
fi
poweroff -f
GUEST
chmod +x root/init
(cd root && find . | cpio --quiet -o -H newc | gzip -1) > initramfs.gz

rm -rf group
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
"$quorate" nfs "$work/group/group.toml" --listen "127.0.0.1:$((port - 1))" --exports exports.toml > nfs.log 2>&1 &
front=$!
sleep 2
kill -0 "$front" 2> /dev/null || { cat nfs.log >&2; exit 1; }

timeout "${LIMIT:-1500}" qemu-system-x86_64 -machine q35 -accel tcg,thread=multi -cpu max -smp 2 -m 1024 -nographic -no-reboot \
    -kernel kernel -initrd initramfs.gz -append 'console=ttyS0 panic=-1 quiet mitigations=off' \
    -nic user,model=virtio-net-pci < /dev/null > guest.raw 2>&1 &
machine=$!
wait "$machine" || true
machine=
tr -d '\r' < guest.raw > guest.log
for suite in pjdfstest fsx; do
    sed 's/\x1b\[[0-9;]*m//g' guest.log | sed -n "/BEGIN $suite/,/END $suite/p" > "$suite.txt"
    grep -q "END $suite" "$suite.txt" || { tail -n 30 guest.log >&2; echo "$suite did not come to its end" >&2; exit 1; }
done
grep '^Summary' pjdfstest.txt
tail -n 2 fsx.txt
# The two that the protocol can't pass.
failed=$(sed -n 's/ *FAILED$//p' pjdfstest.txt | grep -vE '^(unlink::open_file_not_freed|utimensat::y2038)$' || true)
[ -z "$failed" ] || { echo "failed: $failed"; exit 1; }
grep -q '^END fsx 0' fsx.txt
