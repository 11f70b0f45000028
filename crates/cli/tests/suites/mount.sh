#!/bin/bash
# Suites that others wrote work on a mount of a group of four: libfuse's test_syscalls, go-fuse's posixtest, stress-ng's file
# system class, fsx, and pjdfstest as it was written first, in C. docs/testing.md tells what came out. The pjdfstest of today is there too, and in
# kernel-nfs.sh; xfstests in xfstests.sh.
#
#   mount.sh WORK [SUITE...]      syscalls, posixtest, stress, fsx, pjdfstest [default: all but the last]
#
# WORK keeps what is built, outside this repository, and the results. Needs root, Go, a C compiler, and: apt-get install fuse3 stress-ng dpkg-dev
#
#   QUORATE=...  the program [target/release/quorate]
#   TOOLS=...    where fsx is [target/tools/bin; `cargo xtask tools` puts it there]
#   PJDFSTEST=...  for pjdfstest: its sources (github.com/pjd/pjdfstest), checked out. Needs prove, openssl, autoconf and automake
#   PORT=...     the first of four ports [7890]
set -eu

top=$(cd "$(dirname "$0")/../../../.." && pwd)
[ $# -ge 1 ] || { sed -n '2,/^set/{/^#/p}' "$0" >&2; exit 2; }
mkdir -p "$1"
work=$(cd "$1" && pwd)
shift
[ $# -gt 0 ] || set -- syscalls posixtest stress fsx
quorate=${QUORATE:-$top/target/release/quorate}
tools=${TOOLS:-$top/target/tools/bin}
mount=$work/mount
group=
stop() {
    [ -z "$group" ] || { kill -INT "$group" 2> /dev/null && wait "$group" || true; }
    rm -rf "$work/group"
}
trap stop EXIT
trap 'exit 130' INT TERM

# 58 checks of system calls, and what becomes of the file after each.
build_syscalls() {
    [ ! -x "$work/test_syscalls" ] || return 0
    mkdir -p "$work/sources" "$work/lists/partial" "$work/include"
    # The sources from where this machine has its packages.
    sed 's/^Types:.*/Types: deb-src/' /etc/apt/sources.list.d/debian.sources > "$work/sources/debian.sources"
    apt="-o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts=$work/sources -o Dir::State::lists=$work/lists"
    # shellcheck disable=SC2086
    (cd "$work" && apt-get $apt -qq update && apt-get $apt -qq source --download-only fuse3 && tar xf fuse3_*.orig.tar.xz) || return
    : > "$work/include/fuse_config.h"
    gcc -O1 -w -D_GNU_SOURCE -DHAVE_COPY_FILE_RANGE -I "$work/include" -o "$work/test_syscalls" "$work"/fuse-3.*/test/test_syscalls.c
}
run_syscalls() {
    mkdir "$mount/syscalls"
    result=0
    timeout --foreground 300 "$work/test_syscalls" "$mount/syscalls" > "$work/syscalls.txt" 2>&1 || result=$?
    echo "syscalls: $(grep -c 'OK$' "$work/syscalls.txt") OK"
    return $result
}

# 32 tests that go-fuse has for file systems. One asks POSIX locks of one process to exclude each other, which no local file system does.
build_posixtest() {
    [ ! -x "$work/posixtest" ] || return 0
    mkdir -p "$work/go"
    printf 'module posix\n\ngo 1.21\n' > "$work/go/go.mod"
    cat > "$work/go/posix_test.go" << 'GO'
package posix

import (
	"os"
	"testing"

	"github.com/hanwen/go-fuse/v2/posixtest"
)

func TestPosix(t *testing.T) {
	for name, test := range posixtest.All {
		t.Run(name, func(t *testing.T) {
			dir, err := os.MkdirTemp(os.Getenv("POSIX_DIR"), name)
			if err != nil {
				t.Fatal(err)
			}
			test(t, dir)
		})
	}
}
GO
    (cd "$work/go" && go get github.com/hanwen/go-fuse/v2/posixtest@v2.12.1 && go test -c -o "$work/posixtest" .)
}
run_posixtest() {
    mkdir "$mount/posix"
    POSIX_DIR=$mount/posix timeout --foreground 300 "$work/posixtest" -test.v > "$work/posixtest.txt" 2>&1 || true
    grep -q '^--- ' "$work/posixtest.txt" || return
    for result in PASS SKIP FAIL; do
        echo "posixtest: $(grep -c "^    --- $result" "$work/posixtest.txt") $result"
    done
    ! grep '^    --- FAIL' "$work/posixtest.txt" | grep -v TestPosix/FcntlFlockLocksFile
}

# Each for two seconds, with its own checks on. What the list of stress-ng has beside these is not about the file system in a directory.
stressors="access chattr chdir chmod chown copy-file dentry dir dirdeep dirmany dnotify dup fallocate fanotify fcntl fiemap file-ioctl
    filename flock fpunch fsize fstat getdent handle hdd inode-flags inotify io iomix lease link locka lockf lockofd mknod open rename
    symlink sync-file touch utime verity xattr"
build_stress() { command -v stress-ng > /dev/null; }
run_stress() {
    mkdir -p "$mount/stress" "$work/stress"
    failed=0 passed=0 skipped=0
    for name in $stressors; do
        size=
        case $name in
            hdd | iomix | fallocate) size="--$name-bytes 16M" ;;
            copy-file) size="--$name-bytes 128M" ;;
        esac
        # shellcheck disable=SC2086
        if timeout --foreground 120 stress-ng --temp-path "$mount/stress" --"$name" 1 $size --verify --timeout 2 > "$work/stress/$name" 2>&1; then
            if grep -q 'skipping stressor' "$work/stress/$name"; then skipped=$((skipped + 1)); else passed=$((passed + 1)); fi
        else
            failed=$((failed + 1))
            echo "stress: $name failed: $(tail -n 1 "$work/stress/$name")"
        fi
    done
    echo "stress: $passed passed, $skipped skipped, $failed failed"
    [ "$failed" = 0 ]
}

build_fsx() { [ -x "$tools/fsx" ]; }
run_fsx() {
    result=0
    timeout --foreground 900 "$tools/fsx" -N 100000 -S 42 "$mount/fsx" > "$work/fsx.txt" 2>&1 || result=$?
    echo "fsx: $(tail -n 1 "$work/fsx.txt")"
    return $result
}

# 238 scripts, two at a time. It asks more of file systems whose names it knows, such as that a rename sets the time of change, which it does here.
build_pjdfstest() {
    [ ! -x "$work/pjdfstest/pjdfstest" ] || return 0
    rm -rf "$work/pjdfstest"
    cp -r "${PJDFSTEST:?}" "$work/pjdfstest"
    sed -i 's/^#fs=.*/fs=EXT4/' "$work/pjdfstest/tests/conf"
    (cd "$work/pjdfstest" && autoreconf -ifs && ./configure && make pjdfstest) > "$work/pjdfstest.log" 2>&1
}
run_pjdfstest() {
    mkdir "$mount/pjdfstest"
    result=0
    (cd "$mount/pjdfstest" && prove -j2 -r "$work/pjdfstest/tests") > "$work/pjdfstest.txt" 2>&1 || result=$?
    echo "pjdfstest: $(tail -n 2 "$work/pjdfstest.txt" | tr '\n' ' ')"
    return $result
}

for suite in "$@"; do
    "build_$suite" || { echo "$suite can't be built" >&2; exit 2; }
done
rm -rf "$work/group"
"$quorate" up --data "$work/group" --mount "$mount" --port "${PORT:-7890}" --json > "$work/up.log" 2>&1 &
group=$!
for _ in $(seq 120); do
    grep -q '"ready"' "$work/up.log" && break
    kill -0 "$group" 2> /dev/null || { cat "$work/up.log" >&2; exit 1; }
    sleep 1
done
bad=0
for suite in "$@"; do
    "run_$suite" || { echo "$suite FAILED: see $work"; bad=1; }
done
exit $bad
