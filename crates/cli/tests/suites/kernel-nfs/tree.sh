# Runs in the virtual machine, in an empty directory: the steps of the suite `tree`. What it prints must be the same wherever it runs.
set -eu
# What the compiler puts in for the time of the build.
export SOURCE_DATE_EPOCH=1000000000

# All that is there: kind, mode, links (of files), owner, size, what links say, and what is in files.
tell() {
    echo "== $1"
    find . | sort | while read -r path; do
        if [ -L "$path" ]; then
            echo "l $path $(readlink "$path")"
        elif [ -d "$path" ]; then
            echo "d $path $(stat -c '%a %u:%g' "$path")"
        else
            echo "f $path $(stat -c '%a %h %u:%g %s' "$path") $(sha256sum < "$path")"
        fi
    done
}
build() {
    make -f /tree/tree.mk -C "$1" out/program > /tmp/make.log 2>&1 || { cat /tmp/make.log; exit 1; }
    "$1/out/program"
}

mkdir source
tar -C source -xf /tree/sources.tar
chown -R 0:0 source
tell unpacked

mkdir source/out
cat > source/out/main.c << 'PROGRAM'
#include <mimalloc.h>
#include <stdio.h>
#include <string.h>
int main(void) {
    char *text = mi_malloc(100);
    strcpy(text, "a program that was built there");
    puts(text);
    mi_free(text);
    return 0;
}
PROGRAM
build source
tell built

# From directory to directory: one by one, whole trees, over what is there; and back again.
mkdir moved moved/deep moved/deep/er
for file in source/src/*.c; do
    mv "$file" moved/deep/er/
done
mv source/src/prim moved/deep/prim
mv source/include moved/
mv source/readme.md moved/deep/er/stats.c
tell 'moved apart'
mv moved/deep/er/stats.c source/readme.md
tar -C source -xf /tree/sources.tar ./src/stats.c
mv source/src/stats.c moved/deep/er/
mv moved/deep/prim source/src/
mv moved/deep/er/*.c source/src/
mv moved/include source/
tell 'moved back'
mv source moved/deep/again
rm moved/deep/again/out/program moved/deep/again/out/stats.o
build moved/deep/again
tell 'built again elsewhere'

# Names: hard links over directories, symbolic links, renames over names, a directory over an empty one, and what is refused.
mkdir links links/empty
ln moved/deep/again/src/alloc.c links/alloc.c
ln links/alloc.c links/second
ln -s ../moved/deep/again links/to
cat links/to/src/page.c > links/page.c
mv links/second moved/deep/er/third
mv moved/deep/er/third links/page.c
mv -T moved/deep/er links/empty
ln -s nowhere links/dangling
ls links/dangling/x 2> /dev/null && exit 1
rmdir moved/deep 2> /dev/null && exit 1
rmdir links 2> /dev/null && exit 1
mv moved moved/deep/again/below 2> /dev/null && exit 1
mv -T links moved 2> /dev/null && exit 1
echo more >> links/alloc.c
tell 'linked and renamed'
chmod -R go-w,o+r links
chown -R 1000:1001 moved/deep/again/src
touch -d '2001-02-03 04:05:06' links/page.c
test "$(stat -c %Y moved/deep/again/src/alloc.c)" = "$(stat -c %Y links/page.c)"
tell 'changed'

rm moved/deep/again/src/alloc.c
tell 'one name less'
rm -r moved links
tell removed
