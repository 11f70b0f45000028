# Read by kernel-nfs.sh: the suites. For each what it takes, as the root file system of the virtual machine needs it, with a line of a script for
# the machine (give_...), and what came out (judge_...).

# A C compiler that links, and make.
put_compiler() {
    for program in cc as ld ar make; do
        put "$(command -v $program)" "/usr/bin/$program"
    done
    for program in cc1 collect2; do
        put "$(cc -print-prog-name=$program)" "$(cc -print-prog-name=$program)"
    done
    gcc=$(dirname "$(cc -print-libgcc-file-name)")
    mkdir -p "root$gcc" root/usr/include
    find "$gcc" -maxdepth 1 -name '*.[ao]' -o -maxdepth 1 -name 'lib*.so*' | xargs -I{} cp -L {} "root$gcc/"
    cp -r "$gcc/include" "root$gcc/"
    for file in crt1.o Scrt1.o crti.o crtn.o libc.so libc_nonshared.a libm.so libmvec.so.1 libmvec.so; do
        found=$(cc -print-file-name=$file)
        [ ! -f "$found" ] || put "$found" "$(readlink -f "$(dirname "$found")")/$file"
    done
}
# The system's headers that what is read here includes, by these flags.
put_headers() {
    cc "$@" -M -xc - | grep -o '/usr/[^ ]*\.h' | sort -u | cpio --quiet -pdmuL root
}

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
    put_compiler
    for program in groff troff grotty tbl nroff /usr/bin/time; do
        put "$(command -v $program)" "/usr/bin/$(basename $program)"
    done
    mkdir -p root/usr/share
    # shellcheck disable=SC2086
    cat connectathon/general/*.c | put_headers $flags
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
# A tree of sources is unpacked, built, moved, changed and removed, on the volume and on one server alone; after each step all that is there is told.
give_tree() {
    put_compiler
    printf '#include "%s"\n' "$tree/src/static.c" | put_headers "-I$tree/include"
    cp -L /usr/include/stdio.h /usr/include/string.h root/usr/include/
    mkdir -p root/tree
    tar -C "$tree" --owner=0 --group=0 -cf root/tree/sources.tar .
    cp "$here/kernel-nfs/tree.sh" "$here/kernel-nfs/tree.mk" root/tree/
    cat << 'GUEST'
for at in /mnt/n /mnt/one; do
    mkdir $at/tree && (cd $at/tree && sh /tree/tree.sh > /tmp/tree${at##*/} 2>&1) || { echo "failed on $at:"; cat /tmp/tree${at##*/}; exit 1; }
    rmdir $at/tree || exit 1
done
cat /tmp/treen
if cmp /tmp/treen /tmp/treeone; then echo "the same on one server"; else diff /tmp/treen /tmp/treeone; exit 1; fi
GUEST
}

# The sources are unpacked; then the tools of libnfs look at them from here (judge_libnfs), and mount the directory of each for that.
give_libnfs() {
    mkdir -p root/tree
    tar -C "$tree" --owner=0 --group=0 -cf root/tree/sources.tar .
    echo 'mkdir /mnt/n/libnfs && tar -C /mnt/n/libnfs -xf /tree/sources.tar'
}

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
judge_tree() {
    echo "tree: $(grep -c '^== ' tree.txt) steps, $(grep -cE '^[fdl] ' tree.txt) files, directories and links told"
    grep '^the same on one server' tree.txt && grep -q '^END tree 0' tree.txt
}
judge_libnfs() {
    grep -q '^END libnfs 0' libnfs.txt || return
    url() { echo "nfs://127.0.0.1//libnfs$1?nfsport=$nfs&mountport=$mount"; }
    # Of files their sizes and paths; of directories their paths.
    nfs-ls -R "$(url '')" > libnfs.ls || return
    awk '{ print ($1 ~ /^d/ ? "d" : $5), $6 }' libnfs.ls | sort > libnfs.have
    (cd "$tree" && find . -mindepth 1 -printf '%y %s %P\n') | awk '{ print ($1 == "d" ? "d" : $2), $3 }' | sort > libnfs.want
    diff libnfs.want libnfs.have || return
    files=0
    while read -r file; do
        nfs-cat "$(url "$file")" | cmp - "$tree$file" || return
        files=$((files + 1))
    done < <(cd "$tree" && find . -type f | sed 's/^\.//' | sort)
    rm -f back
    nfs-cp kernel "$(url /src/prim/kernel)" > /dev/null && nfs-cp "$(url /src/prim/kernel)" "$work/back" > /dev/null && cmp kernel back || return
    echo "libnfs: $files files read, $(wc -l < libnfs.have) names listed, a file of $(stat -c %s kernel) bytes written and read"
}
