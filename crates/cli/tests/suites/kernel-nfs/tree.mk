# Builds mimalloc's sources, the parts one by one, and a program that uses them. What is built has no names of temporary files in it, so it is the same each time.
parts := alloc alloc-aligned alloc-posix arena bitmap heap init libc options os page random segment segment-map stats prim/prim
objects := $(parts:%=out/%.o)

out/program: out/main.o out/libmimalloc.a
	cc -static-libgcc -o $@ $^
out/libmimalloc.a: $(objects)
	ar rcsD $@ $^
out/main.o: out/main.c
	cc -O0 -w -Iinclude -c -o $@ $<
out/%.o: src/%.c
	mkdir -p $(dir $@)
	cc -O0 -w -Iinclude -c -o $@ $<
