/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
 *
 * NFS version 3 over TCP from a client to servers and back, record by record, between sockets of the router.
 *
 * A session has a client's connection, a connection of its own to each server, and one of the router with itself, behind which user space
 * answers what is not for here. All that comes in at any of them is redirected to another; nothing is left for who reads the socket, since
 * that brings the connection to a stop (docs/router.md). A record can't become longer or shorter: the 8 bytes that a handle loses go into the machine's name
 * in the credential, and in replies numbers are changed in their places.
 */
#include "rpc.h"

#define NULL ((void *)0)
#define EPROTO 71

#define MAX_SESSIONS 512
#define MAX_LINKS 16384
#define MAX_CALLS 16384
/* Of a session (client.rs has the same for the user-space way). */
#define SESSION_CALLS 64
#define SESSION_BYTES (16ULL << 20)
/* Of all sessions. */
#define ALL_BYTES (256ULL << 20)
/* What may lie between a client and user space before the session ends. */
#define USER_BYTES (32ULL << 20)

/* MAX_IO_BYTES, and MAX_RECORD_BYTES. */
#define MAX_IO (1U << 20)
#define MAX_RECORD (MAX_IO + 4096)
#define MAX_FRAGMENTS 64
/* How many records can be looked at at once. */
#define SCRATCHES 64
#define LAST 0x80000000U
/* The most of a reply without data, and what a call and a reply count for at least. */
#define SMALL 1024
#define LEAST_BYTES 2048
#define MAX_SYMLINK 4096

/* The arguments of a WRITE up to its data. */
#define WRITE_HEAD 20
#define FILE_SYNC 2
/* The most of a reply that is looked at: a WRITE's. */
#define LOOKED_AT 192
#define WCC_BYTES 24

/* What a socket is: the server of a volume, or one of these. */
#define CLIENT 0x10000
#define USER 0x10001

/* Why a session can't go on. */
#define TOO_MUCH 1
#define NO_REPLY 2
#define NOT_SENT 3

struct config {
	__u32 fsid[2];
	__u32 squash_root;
	__u32 read_only;
};

/* A socket by what it is. */
struct end {
	__u32 session;
	__u32 what;
};

struct session {
	__u32 is_on;
	/* Why it can't go on. */
	__u32 broken;
	/* What came to the client's side to be confirmed before this began. */
	__u32 has_base;
	__u32 calls;
	__u64 base;
	/* The most that calls under way and their replies have. */
	__u64 bytes;
	/* Sent on to the client, and to user space. */
	__u64 to_client;
	__u64 to_user;
	__u64 user_calls;
	__u64 user_replies;
	__u64 passed;
	__u64 answered;
	__u64 to_servers;
};

/* Of a session with the server of a volume. */
struct link {
	/* What the first word of numbers of files differs by. */
	__u32 turn;
	__u32 unused;
	__u64 passed;
	__u64 answered;
};

struct call_key {
	__u32 session;
	__u32 volume;
	__u32 xid;
};

/* A call on its way. */
struct under_way {
	__u32 procedure;
	__u32 bucket;
	/* The most of the reply, and what both count for. */
	__u32 most;
	__u32 bytes;
	__u32 count;
};

/* Calls to a bucket; more have begun than ended. */
struct passage {
	__u64 begun;
	__u64 ended;
};

struct scratch {
	__u32 is_taken;
	__u8 room[HANDLE_HEAD];
	struct bytes call;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct config);
} config SEC(".maps");

/* A bucket's volume and one, or 0: it is not for here. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_BUCKETS);
	__type(key, __u32);
	__type(value, __u32);
} buckets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_BUCKETS);
	__type(key, __u32);
	__type(value, struct passage);
} passages SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_SESSIONS);
	__type(key, __u32);
	__type(value, struct session);
} sessions SEC(".maps");

/* What a socket is, by its cookie. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_LINKS);
	__type(key, __u64);
	__type(value, struct end);
} ends SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_SOCKHASH);
	__uint(max_entries, MAX_LINKS);
	__type(key, struct end);
	__type(value, __u32);
} sockets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_LINKS);
	__type(key, struct end);
	__type(value, struct link);
} links SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_CALLS);
	__type(key, struct call_key);
	__type(value, struct under_way);
} calls SEC(".maps");

/* What all sessions' calls count for that are under way or were given up; and what those that were given up did. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u64);
} all_bytes SEC(".maps");

/* Room to work in, for one run at a time. Not for each processor: a run that is not the interrupts' own can be interrupted by another there, which
 * would leave one client's bytes to the other. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SCRATCHES);
	__type(key, __u32);
	__type(value, struct scratch);
} scratches SEC(".maps");

/* Numbers of sessions that can't go on. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} broken SEC(".maps");

/* As far as they are looked at; where their parts are the loader finds out. */
#define FOUND __attribute__((preserve_access_index))

struct strp_msg {
	int full_len;
	int offset;
} FOUND;

struct _strp_msg {
	struct strp_msg strp;
} FOUND;

struct sk_skb_cb {
	struct _strp_msg strp;
} FOUND;

struct sk_buff {
	char cb[48];
} FOUND;

struct tcp_sock {
	__u64 bytes_acked;
} FOUND;

/* Where in the buffer the record begins, and its length: what a program of this kind is given tells neither. */
static __always_inline int record(struct __sk_buff *skb, struct strp_msg *found)
{
	struct sk_skb_cb *cb = (void *)&((struct sk_buff *)skb)->cb;
	return bpf_probe_read_kernel(found, 2 * sizeof(int), &cb->strp.strp);
}

static __always_inline void end_session(struct session *session, __u32 number, __u32 why)
{
	if (__sync_val_compare_and_swap(&session->broken, 0, why) == 0)
		bpf_ringbuf_output(&broken, &number, sizeof(number), 0);
}

/* The length of a record, which may have several fragments; 0: more of it has to come first. */
SEC("sk_skb/stream_parser")
int tcp_records(struct __sk_buff *skb)
{
	int at[2];
	if (record(skb, (struct strp_msg *)at))
		return -EPROTO;
	__u32 from = at[1], len = 0;
	for (int n = 0; n < MAX_FRAGMENTS; n++) {
		__u32 head;
		if (bpf_skb_load_bytes(skb, from + len, &head, 4))
			return 0;
		head = bpf_ntohl(head);
		if ((head & ~LAST) > MAX_RECORD)
			return -EPROTO;
		len += 4 + (head & ~LAST);
		if (len > MAX_RECORD + 4 * MAX_FRAGMENTS)
			return -EPROTO;
		if (head & LAST)
			return len;
	}
	return -EPROTO;
}

/* How many bytes a socket's other side has confirmed. */
static __always_inline __u64 confirmed(struct bpf_sock *sk)
{
	struct tcp_sock *tcp = bpf_skc_to_tcp_sock(sk);
	return tcp ? tcp->bytes_acked : 0;
}

/* For user space. */
static __always_inline int to_user(struct __sk_buff *skb, struct session *session, __u32 number, __u32 len)
{
	struct end user = { number, USER };
	__u64 sent = __sync_fetch_and_add(&session->to_user, len) + len;
	struct bpf_sock *sk = bpf_map_lookup_elem(&sockets, &user);
	__u64 waits = 0;
	if (sk) {
		__u64 taken = confirmed(sk);
		waits = sent > taken ? sent - taken : 0;
		bpf_sk_release(sk);
	}
	if (waits > USER_BYTES) {
		end_session(session, number, TOO_MUCH);
		return SK_DROP;
	}
	if (bpf_sk_redirect_hash(skb, &sockets, &user, 0) != SK_PASS) {
		end_session(session, number, NOT_SENT);
		return SK_DROP;
	}
	__sync_fetch_and_add(&session->user_calls, 1);
	return SK_PASS;
}

/* The most that the reply to a call has, if it is one that can be passed on with arguments that are just the procedure's; else 0. The same is
 * asked in proxy/straight.rs. */
static __always_inline __u32 read_call(const struct bytes *in, __u32 here, __u32 len, const struct config *c, struct call *call)
{
	__u32 rest = read_head(in, here, c->squash_root, call);
	if (!rest || rest + WRITE_HEAD > CALL_BYTES)
		return 0;
	__u32 end = rest, most = SMALL;
	switch (call->procedure) {
	case GETATTR:
	case PATHCONF:
		break;
	case ACCESS:
		end += 4;
		break;
	case READLINK:
		most += MAX_SYMLINK;
		break;
	case READ:
		end += 12;
		if (end > here)
			return 0;
		call->count = word(in, rest + 8);
		if (call->count > MAX_IO)
			return 0;
		most += call->count;
		break;
	case WRITE:
		end += WRITE_HEAD;
		if (end > here || c->read_only)
			return 0;
		call->count = word(in, rest + 8);
		if (call->count > MAX_IO || word(in, rest + 12) > FILE_SYNC || word(in, rest + 16) != call->count)
			return 0;
		end += ROUND(call->count);
		break;
	case COMMIT:
		end += 12;
		break;
	default:
		return 0;
	}
	return end == len ? most : 0;
}

/* Room that no other run has; none where more records are looked at at once than there are places. */
static __always_inline struct scratch *take_scratch(void)
{
	__u32 first = bpf_get_smp_processor_id() * 2;
	for (__u32 n = 0; n < SCRATCHES; n++) {
		__u32 place = (first + n) % SCRATCHES;
		struct scratch *scratch = bpf_map_lookup_elem(&scratches, &place);
		if (scratch && __sync_val_compare_and_swap(&scratch->is_taken, 0, 1) == 0)
			return scratch;
	}
	return NULL;
}

static __always_inline void give_back(struct scratch *scratch)
{
	__sync_val_compare_and_swap(&scratch->is_taken, 1, 0);
}

/* A record from the client. */
static __always_inline int on_call(struct __sk_buff *skb, struct session *session, struct scratch *scratch, __u32 number, __u32 at, __u32 all)
{
	__u32 zero = 0, one = 1, head, len = all - 4;
	__u64 taken = 0;
	struct bpf_sock *sk = skb->sk;
	if (sk)
		taken = confirmed(sk);
	if (!session->has_base) {
		session->base = taken;
		session->has_base = 1;
	}
	struct config *c = bpf_map_lookup_elem(&config, &zero);
	__u64 *everywhere = bpf_map_lookup_elem(&all_bytes, &zero), *given_up = bpf_map_lookup_elem(&all_bytes, &one);
	if (!c || !everywhere || !given_up)
		return SK_DROP;
	__u32 here = len < CALL_BYTES ? len : CALL_BYTES;
	KEEP(here);
	if (here < 60 || here > CALL_BYTES || bpf_skb_load_bytes(skb, at, &head, 4) || bpf_ntohl(head) != (LAST | len) ||
	    bpf_skb_load_bytes(skb, at + 4, &scratch->call, here))
		return to_user(skb, session, number, all);
	struct call call;
	__u32 most = read_call(&scratch->call, here, len, c, &call);
	if (!most || call.machine + HANDLE_HEAD > MAX_NAME || call.credential + HANDLE_HEAD > MAX_CREDENTIAL)
		return to_user(skb, session, number, all);

	__u64 sent = session->to_client, done = taken - session->base;
	__u64 waits = sent > done ? sent - done : 0;
	__u32 counts = all + most;
	if (counts < LEAST_BYTES)
		counts = LEAST_BYTES;
	if (session->calls >= SESSION_CALLS || session->bytes + waits + counts > SESSION_BYTES || *everywhere - *given_up + counts > ALL_BYTES)
		return to_user(skb, session, number, all);
	struct end server = { number, call.volume };
	struct link *link = bpf_map_lookup_elem(&links, &server);
	struct passage *passage = bpf_map_lookup_elem(&passages, &call.bucket);
	__u32 *bucket = bpf_map_lookup_elem(&buckets, &call.bucket);
	if (!link || !passage || !bucket || bpf_sk_redirect_hash(skb, &sockets, &server, 0) != SK_PASS)
		return to_user(skb, session, number, all);

	/* It is said before it is asked: who closes a bucket closes it, and then looks whether calls are under way. */
	__sync_fetch_and_add(&passage->begun, 1);
	struct call_key key = { number, call.volume, *(__u32 *)scratch->call.at };
	struct under_way under_way = { call.procedure, call.bucket, most, counts, call.count };
	if (*(volatile __u32 *)bucket != call.volume + 1 || bpf_map_update_elem(&calls, &key, &under_way, BPF_NOEXIST)) {
		__sync_fetch_and_add(&passage->ended, 1);
		return to_user(skb, session, number, all);
	}
	__sync_fetch_and_add(&session->calls, 1);
	__sync_fetch_and_add(&session->bytes, counts);
	__sync_fetch_and_add(everywhere, counts);
	__sync_fetch_and_add(&session->passed, 1);
	__sync_fetch_and_add(&link->passed, 1);
	__sync_fetch_and_add(&session->to_servers, all);

	/* All from the credential's length to the handle's, 8 bytes further on. */
	__u8 *out = scratch->room;
	__u32 handle = call.handle & (CALL_BYTES - 1);
	KEEP(handle);
	*(__u32 *)(out + 28) = bpf_htonl(call.credential + HANDLE_HEAD);
	*(__u32 *)(out + 32) = 0;
	*(__u32 *)(out + 36) = bpf_htonl(call.machine + HANDLE_HEAD);
	__builtin_memcpy(out + 40, "quorate-", HANDLE_HEAD);
	*(__u32 *)(out + HANDLE_HEAD + handle) = bpf_htonl(call.handle_len - HANDLE_HEAD);
	__u32 moved = handle + 12 - 28;
	KEEP(moved);
	if (moved < 40 || moved > CALL_BYTES || bpf_skb_store_bytes(skb, at + 4 + 28, out + 28, moved, 0)) {
		end_session(session, number, NOT_SENT);
		return SK_DROP;
	}
	return SK_PASS;
}

/* Where the results of a call that was carried out have attributes, and whether they are as long as such results are; 0: there are
 * none; less: they are no such results. */
static __always_inline int read_reply(const struct bytes *in, __u32 here, __u32 len, const struct under_way *call)
{
	/* A reply, accepted, with no verifier, carried out. */
	if (here < 28 || len > call->most || word(in, 4) != 1 || word(in, 8) != 0 || word(in, 16) != 0 || word(in, 20) != 0)
		return -1;
	__u32 status = word(in, 24), procedure = call->procedure, at = 28;
	int attrs = 0;
	if (procedure == GETATTR) {
		if (status == 0) {
			attrs = at;
			at += ATTR_BYTES;
		}
	} else {
		if (procedure == WRITE || procedure == COMMIT) {
			__u32 before = word(in, at);
			if (before > 1)
				return -1;
			at += 4 + (before ? WCC_BYTES : 0);
		}
		__u32 has = word(in, at);
		if (has > 1)
			return -1;
		at += 4;
		if (has) {
			attrs = at;
			at += ATTR_BYTES;
		}
	}
	if (status == 0) {
		if (procedure == ACCESS) {
			at += 4;
		} else if (procedure == READLINK) {
			__u32 text = word(in, at);
			if (text > MAX_SYMLINK)
				return -1;
			at += 4 + ROUND(text);
		} else if (procedure == READ) {
			__u32 count = word(in, at);
			if (count > call->count || word(in, at + 8) != count)
				return -1;
			at += 12 + ROUND(count);
		} else if (procedure == WRITE) {
			at += 16;
		} else if (procedure == COMMIT) {
			at += 8;
		} else if (procedure == PATHCONF) {
			at += 24;
		}
	}
	return at == len ? attrs : -1;
}

static __always_inline int to_client(struct __sk_buff *skb, struct session *session, __u32 number, __u32 all)
{
	struct end client = { number, CLIENT };
	if (bpf_sk_redirect_hash(skb, &sockets, &client, 0) != SK_PASS) {
		end_session(session, number, NOT_SENT);
		return SK_DROP;
	}
	__sync_fetch_and_add(&session->to_client, all);
	return SK_PASS;
}

/* A record from a server. */
static __always_inline int on_reply(struct __sk_buff *skb, struct session *session, struct scratch *scratch, __u32 number, __u32 in_volume, __u32 at, __u32 all)
{
	__u32 zero = 0, head, len = all - 4;
	struct config *c = bpf_map_lookup_elem(&config, &zero);
	__u64 *everywhere = bpf_map_lookup_elem(&all_bytes, &zero);
	struct end server = { number, in_volume };
	struct link *link = bpf_map_lookup_elem(&links, &server);
	if (!c || !everywhere || !link)
		return SK_DROP;
	struct bytes *reply = &scratch->call;
	__u32 here = len < LOOKED_AT ? len : LOOKED_AT;
	KEEP(here);
	if (here < 4 || here > LOOKED_AT || bpf_skb_load_bytes(skb, at, &head, 4) || bpf_ntohl(head) != (LAST | len) ||
	    bpf_skb_load_bytes(skb, at + 4, reply, here)) {
		end_session(session, number, NO_REPLY);
		return SK_DROP;
	}
	struct call_key key = { number, in_volume, *(__u32 *)reply->at };
	struct under_way *found = bpf_map_lookup_elem(&calls, &key);
	if (!found) {
		end_session(session, number, NO_REPLY);
		return SK_DROP;
	}
	struct under_way call = *found;
	int attrs = read_reply(reply, here, len, &call);
	if (attrs < 0) {
		end_session(session, number, NO_REPLY);
		return SK_DROP;
	}
	if (attrs) {
		__u32 fsid = (attrs + ATTR_FSID) & (CALL_BYTES - 1);
		KEEP(fsid);
		__u32 *words = (__u32 *)(reply->at + fsid);
		words[0] = c->fsid[0];
		words[1] = c->fsid[1];
		words[2] ^= link->turn;
		if (bpf_skb_store_bytes(skb, at + 4 + fsid, words, 12, 0)) {
			end_session(session, number, NOT_SENT);
			return SK_DROP;
		}
	}
	/* Who is to be asked no more has taken it. */
	if (bpf_map_delete_elem(&calls, &key))
		return SK_DROP;
	struct passage *passage = bpf_map_lookup_elem(&passages, &call.bucket);
	if (passage)
		__sync_fetch_and_add(&passage->ended, 1);
	/* Before it counts no more, it counts as sent on. */
	int sent = to_client(skb, session, number, all);
	__sync_fetch_and_add(&session->calls, -1);
	__sync_fetch_and_add(&session->bytes, -(__u64)call.bytes);
	__sync_fetch_and_add(everywhere, -(__u64)call.bytes);
	__sync_fetch_and_add(&session->answered, 1);
	__sync_fetch_and_add(&link->answered, 1);
	return sent;
}

SEC("sk_skb/stream_verdict")
int tcp_switch(struct __sk_buff *skb)
{
	int at[2];
	__u64 cookie = bpf_get_socket_cookie(skb);
	struct end *end = bpf_map_lookup_elem(&ends, &cookie);
	if (!end || record(skb, (struct strp_msg *)at) || at[0] < 4 || at[1] < 0)
		return SK_DROP;
	__u32 number = end->session, what = end->what;
	struct session *session = bpf_map_lookup_elem(&sessions, &number);
	if (!session || !session->is_on || session->broken)
		return SK_DROP;
	if (what == USER) {
		__sync_fetch_and_add(&session->user_replies, 1);
		return to_client(skb, session, number, at[0]);
	}
	struct scratch *scratch = take_scratch();
	if (!scratch) {
		/* A call has another way; a reply has none. */
		if (what == CLIENT)
			return to_user(skb, session, number, at[0]);
		end_session(session, number, TOO_MUCH);
		return SK_DROP;
	}
	int verdict = what == CLIENT ? on_call(skb, session, scratch, number, at[1], at[0]) :
				       on_reply(skb, session, scratch, number, what, at[1], at[0]);
	give_back(scratch);
	return verdict;
}

/* What helpers for packets ask for; MIT goes with it. */
char _license[] SEC("license") = "Dual MIT/GPL";
