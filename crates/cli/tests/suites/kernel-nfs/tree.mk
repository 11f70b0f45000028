# Builds mimalloc's sources, the parts one by one, and a program that uses them.
parts := alloc alloc-aligned alloc-posix arena bitmap heap init libc options os page random segment segment-map stats prim/prim
objects := $(parts:%=out/%.o)

out/program: out/main.c out/libmimalloc.a
	cc -Iinclude -o $@ $^ -lpthread
out/libmimalloc.a: $(objects)
	ar rcsD $@ $^
out/%.o: src/%.c
	mkdir -p $(dir $@)
	cc -O0 -w -Iinclude -c -o $@ $<
