/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
 *
 * What both switches know of ONC RPC, NFS version 3 and the router's handles. docs/router.md has the layout.
 */
#ifndef QUORATE_RPC_H
#define QUORATE_RPC_H

#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#define NFS_PROGRAM 100003
#define NFS_VERSION 3
#define AUTH_SYS 1
#define MAX_GROUPS 16
#define MAX_NAME 255
#define MAX_CREDENTIAL 400

#define GETATTR 1
#define LOOKUP 3
#define ACCESS 4
#define READLINK 5
#define READ 6
#define WRITE 7
#define PATHCONF 20
#define COMMIT 21

/* The owner of stubs (attrs.rs). */
#define STUB_OWNER 0x51524f55
#define DIRECTORY 2

/* A handle: format 1 and a zero byte, the volume, the bucket, and the server's own from here on. */
#define HANDLE_FORMAT 0x0100
#define HANDLE_HEAD 8
#define MAX_SERVER_HANDLE 56

/* fattr3. */
#define ATTR_BYTES 84
#define ATTR_MODE 4
#define ATTR_UID 12
#define ATTR_FSID 44
#define FSID_AND_FILEID 16

/* The most of a call that is looked at; a longer one is for user space. */
#define CALL_BYTES 512
/* So much may be read behind any place below CALL_BYTES. */
#define SPARE_BYTES 400
/* The most of a reply that is looked at: a LOOKUP's. */
#define REPLY_BYTES 288

#define MAX_BUCKETS 65536
#define MAX_VOLUMES 1024

#define ROUND(n) (((n) + 3) & ~3U)

/* The compiler is not to turn a check that has been made into another that the verifier can't follow. */
#define KEEP(value) asm volatile("" : "+r"(value))

/* What a call is about, if it is one that a switch can pass on. Offsets are of its bytes. */
struct call {
	__u32 procedure;
	/* The lengths of the credential, and of the machine's name in it. */
	__u32 credential;
	__u32 machine;
	__u32 volume;
	__u32 bucket;
	/* The word that tells the length of the handle, and that length. */
	__u32 handle;
	__u32 handle_len;
	/* Of a READ or WRITE. */
	__u32 count;
};

struct bytes {
	__u8 at[CALL_BYTES + SPARE_BYTES];
};

/* A word at a place that must be below CALL_BYTES. */
static __always_inline __u32 word(const struct bytes *bytes, __u32 at)
{
	at &= CALL_BYTES - 1;
	KEEP(at);
	return bpf_ntohl(*(const __u32 *)(bytes->at + at));
}

static __always_inline __u32 short_word(const struct bytes *bytes, __u32 at)
{
	at &= CALL_BYTES - 1;
	KEEP(at);
	return bpf_ntohs(*(const __u16 *)(bytes->at + at));
}

/* Whether these are a call about an object, of nobody who is to become somebody else on the way: all of it up to its arguments after the
 * handle, whose place is given; 0: it is not. `here`: how many of its bytes are there. */
static __always_inline __u32 read_head(const struct bytes *in, __u32 here, int squash_root, struct call *call)
{
	if (word(in, 4) != 0 || word(in, 8) != 2 || word(in, 12) != NFS_PROGRAM || word(in, 16) != NFS_VERSION)
		return 0;
	call->procedure = word(in, 20);
	__u32 credential = word(in, 28);
	if (word(in, 24) != AUTH_SYS || credential > MAX_CREDENTIAL || credential & 3)
		return 0;
	__u32 machine = word(in, 36);
	if (machine > MAX_NAME)
		return 0;
	__u32 ids = 40 + ROUND(machine);
	__u32 uid = word(in, ids), gid = word(in, ids + 4), groups = word(in, ids + 8);
	if (groups > MAX_GROUPS || ids + 12 + 4 * groups != 32 + credential || uid == STUB_OWNER)
		return 0;
	if (squash_root) {
		if (uid == 0 || gid == 0)
			return 0;
		for (__u32 n = 0; n < MAX_GROUPS; n++) {
			if (n >= groups)
				break;
			if (word(in, ids + 12 + 4 * n) == 0)
				return 0;
		}
	}
	__u32 verifier = 32 + credential;
	if (verifier + 20 + HANDLE_HEAD > here || word(in, verifier + 4) != 0)
		return 0;
	__u32 handle = verifier + 8;
	__u32 handle_len = word(in, handle);
	if (handle_len <= HANDLE_HEAD || handle_len > HANDLE_HEAD + MAX_SERVER_HANDLE)
		return 0;
	if (short_word(in, handle + 4) != HANDLE_FORMAT)
		return 0;
	__u32 rest = handle + 4 + ROUND(handle_len);
	if (rest > here)
		return 0;
	call->credential = credential;
	call->machine = machine;
	call->volume = short_word(in, handle + 6);
	call->bucket = word(in, handle + 8);
	call->handle = handle;
	call->handle_len = handle_len;
	call->count = 0;
	return rest;
}

#endif
