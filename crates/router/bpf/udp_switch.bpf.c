/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only
 *
 * NFS version 3 over UDP from clients to servers and back, before the system's own UDP sees it: on the ingress of each interface.
 *
 * A call to the router that one server can answer as it is loses the head of its handle and goes there under a number of this program's;
 * the reply gets the client's number again, and the head of handles and the numbers of files as clients see them. All that is not quite so goes on as it came: to the
 * router's sockets. A reply that can't be passed on goes to the router's socket behind PORT_BACK, with its call still in `slots`, and the
 * router does the call again.
 *
 * Checksums are changed by what has changed, never made anew: so what was damaged on its way to the router stays so.
 */
#include "rpc.h"
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/udp.h>

/* Others that look at packets, and then the system. */
#define NEXT (-1)
#define DROP 2

#define SLOTS 8192
/* A server's handle, and the longest arguments. */
#define MOST_MOVED 400
#define MAX_NETWORKS 8
/* READ over UDP (UDP_IO_BYTES). */
#define MAX_READ 32768

#define MORE_FRAGMENTS 0x2000
#define FRAGMENT_OFFSET 0x1fff

#define AT_IP ETH_HLEN
#define AT_UDP (AT_IP + sizeof(struct iphdr))
#define AT_RPC (AT_UDP + sizeof(struct udphdr))
#define AT_UDP_SUM (AT_UDP + 6)

/* Addresses and ports as they are on the network. All are words, for who fills them in. */
struct config {
	__u32 address;
	__u32 port;
	__u32 port_back;
	__u32 squash_root;
	__u32 secure;
	__u32 fsid[2];
	__u32 loopback;
	__u32 networks;
	struct {
		__u32 address;
		__u32 mask;
	} network[MAX_NETWORKS];
};

struct volume {
	__u32 is_on;
	__u32 address;
	__u32 port;
	/* The router's own address on the way there. */
	__u32 source;
	__u32 interface;
	/* What the first word of numbers of files differs by. */
	__u32 turn;
};

/* A call on its way. */
struct slot {
	/* 0 while it is written. */
	__u32 number;
	__u32 xid;
	__u32 address;
	__u32 port;
	__u32 interface;
	__u32 volume;
	__u32 bucket;
	__u32 procedure;
	__u32 len;
	struct bytes call;
};

struct piece_key {
	__u32 from;
	__u32 to;
	__u32 id;
};

/* Where the pieces of a datagram go whose first has passed. */
struct piece {
	__u32 from;
	__u32 to;
	__u32 id;
	__u32 interface;
};

/* Of a volume. */
struct count {
	__u64 passed;
	__u64 answered;
	__u64 back;
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
	__uint(max_entries, MAX_VOLUMES);
	__type(key, __u32);
	__type(value, struct volume);
} volumes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SLOTS);
	__type(key, __u32);
	__type(value, struct slot);
} slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct piece_key);
	__type(value, struct piece);
} pieces SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct bytes);
} replies SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, MAX_VOLUMES);
	__type(key, __u32);
	__type(value, struct count);
} counts SEC(".maps");

/* The number of the last call; begins at random. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} numbers SEC(".maps");

struct heads {
	struct iphdr ip;
	struct udphdr udp;
};

static __always_inline void sum_ip(struct iphdr *ip)
{
	ip->check = 0;
	__u64 sum = bpf_csum_diff(0, 0, (__be32 *)ip, sizeof(*ip), 0);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	ip->check = ~sum;
}

/* Writes both heads with other addresses, ports and `longer` bytes more; `diff`: by what the rest has changed already. */
static __always_inline int write_heads(struct __sk_buff *skb, struct heads *heads, __u32 from, __u32 to, __u16 source, __u16 dest,
				       int longer, __s64 diff)
{
	__u32 old_len = bpf_ntohs(heads->udp.len);
	__u32 before[3] = { heads->ip.saddr, heads->ip.daddr, bpf_htonl(old_len) };
	__u32 after[3] = { from, to, bpf_htonl(old_len + longer) };
	__u32 was[2] = { *(__u32 *)&heads->udp, bpf_htonl(old_len) };
	heads->ip.saddr = from;
	heads->ip.daddr = to;
	heads->ip.tot_len = bpf_htons(bpf_ntohs(heads->ip.tot_len) + longer);
	heads->udp.source = source;
	heads->udp.dest = dest;
	heads->udp.len = bpf_htons(old_len + longer);
	__u32 is[2] = { *(__u32 *)&heads->udp, bpf_htonl(old_len + longer) };
	sum_ip(&heads->ip);
	if (bpf_skb_store_bytes(skb, AT_IP, heads, sizeof(*heads), BPF_F_RECOMPUTE_CSUM))
		return 0;
	/* None: the sender wanted it so. */
	if (!heads->udp.check)
		return 1;
	diff = bpf_csum_diff(was, sizeof(was), is, sizeof(is), diff);
	if (bpf_l4_csum_replace(skb, AT_UDP_SUM, 0, diff, BPF_F_MARK_MANGLED_0))
		return 0;
	diff = bpf_csum_diff(before, sizeof(before), after, sizeof(after), 0);
	return !bpf_l4_csum_replace(skb, AT_UDP_SUM, 0, diff, BPF_F_PSEUDO_HDR | BPF_F_MARK_MANGLED_0);
}

static __always_inline int is_loopback(__u32 address)
{
	return bpf_ntohl(address) >> 24 == 127;
}

static __always_inline int is_admitted(const struct config *c, const struct heads *heads)
{
	if (c->secure && bpf_ntohs(heads->udp.source) >= 1024)
		return 0;
	for (__u32 n = 0; n < MAX_NETWORKS; n++) {
		if (n >= c->networks)
			return 0;
		if ((heads->ip.saddr & c->network[n].mask) == c->network[n].address)
			return 1;
	}
	return 0;
}

static __always_inline int send(const struct config *c, __u32 interface)
{
	/* What has come in at the loopback goes up from there. */
	if (interface == c->loopback)
		return NEXT;
	return bpf_redirect_neigh(interface, 0, 0, 0);
}

/* Whether these are a call that can go over UDP, with arguments that are just the procedure's. The same is asked in proxy/straight.rs,
 * which takes all that is refused here. */
static __always_inline int read_call(const struct bytes *in, __u32 len, int squash_root, struct call *call)
{
	__u32 rest = read_head(in, len, squash_root, call);
	if (!rest)
		return 0;
	__u32 procedure = call->procedure;
	__u32 end = rest;
	if (procedure == LOOKUP) {
		if (rest + 4 > len)
			return 0;
		__u32 name = word(in, rest);
		/* What is above a placed directory is looked for where it was placed. */
		if (name > MAX_NAME || (name == 2 && short_word(in, rest + 4) == 0x2e2e))
			return 0;
		end += 4 + ROUND(name);
	} else if (procedure == ACCESS) {
		end += 4;
	} else if (procedure == READ) {
		end += 12;
		if (end > len)
			return 0;
		call->count = word(in, rest + 8);
		if (call->count > MAX_READ)
			return 0;
	} else if (procedure != GETATTR && procedure != READLINK && procedure != PATHCONF) {
		return 0;
	}
	return end == len;
}

/* A call to the router. */
static __always_inline int on_call(struct __sk_buff *skb, const struct config *c, struct heads *heads)
{
	__u32 len = bpf_ntohs(heads->udp.len) - sizeof(struct udphdr);
	if (heads->ip.frag_off & bpf_htons(MORE_FRAGMENTS | FRAGMENT_OFFSET) || skb->gso_size || !is_admitted(c, heads))
		return NEXT;
	if (len < 60 || len > CALL_BYTES || skb->len != AT_RPC + len)
		return NEXT;
	__u32 zero = 0;
	__u32 *last = bpf_map_lookup_elem(&numbers, &zero);
	if (!last)
		return NEXT;
	__u32 number = __sync_fetch_and_add(last, 1) + 1;
	/* 0 is none. */
	if (!number)
		return NEXT;
	__u32 at = number & (SLOTS - 1);
	struct slot *slot = bpf_map_lookup_elem(&slots, &at);
	if (!slot)
		return NEXT;
	__sync_lock_test_and_set(&slot->number, 0);
	KEEP(len);
	if (len > CALL_BYTES || len < 60)
		return NEXT;
	if (bpf_skb_load_bytes(skb, AT_RPC, &slot->call, len))
		return NEXT;
	struct call call;
	if (!read_call(&slot->call, len, c->squash_root, &call))
		return NEXT;
	__u32 *bucket = bpf_map_lookup_elem(&buckets, &call.bucket);
	if (!bucket || *bucket != call.volume + 1)
		return NEXT;
	struct volume *volume = bpf_map_lookup_elem(&volumes, &call.volume);
	if (!volume || !volume->is_on)
		return NEXT;
	if ((volume->interface == c->loopback) != (skb->ifindex == c->loopback))
		return NEXT;
	slot->xid = *(__u32 *)slot->call.at;
	slot->address = heads->ip.saddr;
	slot->port = heads->udp.source;
	slot->interface = skb->ifindex;
	slot->volume = call.volume;
	slot->bucket = call.bucket;
	slot->procedure = call.procedure;
	slot->len = len;

	/* The number, the handle's length, and all behind the handle's head. */
	__u32 handle = call.handle & (CALL_BYTES - 1);
	KEEP(handle);
	__u32 head = (handle + 4) & (CALL_BYTES - 1);
	KEEP(head);
	__u32 from = (handle + 12) & (CALL_BYTES - 1);
	KEEP(from);
	__u32 shorter = bpf_htonl(call.handle_len - HANDLE_HEAD);
	__u32 xid = bpf_htonl(number);
	__u32 was[4] = { slot->xid, bpf_htonl(call.handle_len), *(__u32 *)(slot->call.at + head),
			 *(__u32 *)(slot->call.at + ((head + 4) & (CALL_BYTES - 1))) };
	__u32 is[2] = { xid, shorter };
	__u32 rest = len - from;
	/* At least the server's handle of four bytes; at most the handle, and a name. */
	KEEP(rest);
	if (rest < 4 || rest > MOST_MOVED)
		return NEXT;
	__s64 diff = bpf_csum_diff(was, sizeof(was), is, sizeof(is), 0);
	if (bpf_skb_store_bytes(skb, AT_RPC, &xid, 4, BPF_F_RECOMPUTE_CSUM) ||
	    bpf_skb_store_bytes(skb, AT_RPC + handle, &shorter, 4, BPF_F_RECOMPUTE_CSUM) ||
	    bpf_skb_store_bytes(skb, AT_RPC + handle + 4, slot->call.at + from, rest, BPF_F_RECOMPUTE_CSUM) ||
	    bpf_skb_change_tail(skb, AT_RPC + len - HANDLE_HEAD, 0) ||
	    !write_heads(skb, heads, volume->source, volume->address, c->port_back, volume->port, -HANDLE_HEAD, diff))
		return DROP;
	__sync_lock_test_and_set(&slot->number, number);
	struct count *count = bpf_map_lookup_elem(&counts, &call.volume);
	if (count)
		count->passed++;
	return send(c, volume->interface);
}

/* Has attributes show the one file system, and the number among all volumes. */
static __always_inline void show(struct bytes *reply, __u32 attrs, const struct config *c, const struct volume *volume, __s64 *diff)
{
	__u32 at = (attrs + ATTR_FSID) & (CALL_BYTES - 1);
	KEEP(at);
	__u32 *words = (__u32 *)(reply->at + at);
	__u32 was[4] = { words[0], words[1], words[2], words[3] };
	words[0] = c->fsid[0];
	words[1] = c->fsid[1];
	words[2] ^= volume->turn;
	__u32 is[4] = { words[0], words[1], words[2], words[3] };
	*diff = bpf_csum_diff(was, sizeof(was), is, sizeof(is), *diff);
}

/* For the router's socket, which does the call again. */
static __always_inline int back(struct count *count)
{
	if (count)
		count->back++;
	return NEXT;
}

/* What may be a reply to a call of ours. */
static __always_inline int on_reply(struct __sk_buff *skb, const struct config *c, struct heads *heads)
{
	__u32 number;
	if (bpf_skb_load_bytes(skb, AT_RPC, &number, 4))
		return NEXT;
	number = bpf_ntohl(number);
	__u32 at = number & (SLOTS - 1);
	struct slot *slot = bpf_map_lookup_elem(&slots, &at);
	if (!slot || !number || slot->number != number)
		return NEXT;
	__u32 in_volume = slot->volume, in_bucket = slot->bucket, procedure = slot->procedure;
	__u32 xid = slot->xid, address = slot->address, port = slot->port, interface = slot->interface;
	/* Read again, after all that: with 0 added, since that is a barrier. */
	if (__sync_fetch_and_add(&slot->number, 0) != number)
		return NEXT;
	struct volume *volume = bpf_map_lookup_elem(&volumes, &in_volume);
	__u32 *bucket = bpf_map_lookup_elem(&buckets, &in_bucket);
	struct count *count = bpf_map_lookup_elem(&counts, &in_volume);
	__u32 zero = 0;
	struct bytes *reply = bpf_map_lookup_elem(&replies, &zero);
	if (!volume || !bucket || !reply || heads->ip.saddr != volume->address || heads->udp.source != volume->port)
		return NEXT;
	__u16 fragment = heads->ip.frag_off & bpf_htons(MORE_FRAGMENTS);
	struct piece_key key = { heads->ip.saddr, heads->ip.daddr, heads->ip.id };
	if (fragment)
		bpf_map_delete_elem(&pieces, &key);
	/* The bucket has gone elsewhere meanwhile. */
	if (*bucket != in_volume + 1 || skb->gso_size)
		return back(count);

	__u32 all = skb->len - AT_RPC;
	__u32 len = all < REPLY_BYTES ? all : REPLY_BYTES;
	KEEP(len);
	if (len < 28 || len > REPLY_BYTES || bpf_skb_load_bytes(skb, AT_RPC, reply, len))
		return back(count);
	/* A reply, accepted, with no verifier, carried out. */
	if (word(reply, 4) != 1 || word(reply, 8) != 0 || word(reply, 16) != 0 || word(reply, 20) != 0)
		return back(count);
	__u32 status = word(reply, 24);
	__s64 diff = bpf_csum_diff(&(__u32){ bpf_htonl(number) }, 4, &xid, 4, 0);
	/* Up to where it has changed, and how much longer it is. */
	__u32 until = 4;
	int longer = 0;
	__u32 before[4] = {};
	if (procedure == LOOKUP && status == 0) {
		__u32 handle_len = word(reply, 28);
		if (handle_len == 0 || handle_len > MAX_SERVER_HANDLE || fragment || all != len)
			return back(count);
		__u32 attrs = 36 + ROUND(handle_len);
		/* Without them it can't be told from a stub. */
		if (attrs + ATTR_BYTES + 4 > len || word(reply, attrs - 4) != 1)
			return back(count);
		if (word(reply, attrs) == DIRECTORY && (word(reply, attrs + ATTR_MODE) & 07777) == 0 && word(reply, attrs + ATTR_UID) == STUB_OWNER)
			return back(count);
		show(reply, attrs, c, volume, &diff);
		__u32 end = attrs + ATTR_BYTES + 4;
		if (word(reply, end - 4) == 1) {
			show(reply, end, c, volume, &diff);
			end += ATTR_BYTES;
		}
		if (end != len)
			return back(count);
		before[0] = bpf_htonl(handle_len + HANDLE_HEAD);
		before[1] = bpf_htonl(HANDLE_FORMAT << 16 | in_volume);
		before[2] = bpf_htonl(in_bucket);
		diff = bpf_csum_diff(&(__u32){ bpf_htonl(handle_len) }, 4, before, 12, diff);
		longer = HANDLE_HEAD;
		until = len;
	} else {
		__u32 attrs = 28;
		if (procedure == GETATTR) {
			if (status != 0)
				attrs = 0;
		} else {
			if (len < 32)
				return back(count);
			attrs = word(reply, 28) == 1 ? 32 : 0;
		}
		if (attrs) {
			if (attrs + ATTR_BYTES > len)
				return back(count);
			show(reply, attrs, c, volume, &diff);
			until = attrs + ATTR_FSID + FSID_AND_FILEID;
		}
	}
	__u32 mtu = 0;
	if (interface != c->loopback && bpf_check_mtu(skb, interface, &mtu, longer, 0))
		return back(count);

	*(__u32 *)reply->at = xid;
	if (longer) {
		__u32 rest = until - 32;
		KEEP(rest);
		if (rest < 8 || rest > REPLY_BYTES - 32)
			return back(count);
		if (bpf_skb_change_tail(skb, skb->len + HANDLE_HEAD, 0) ||
		    bpf_skb_store_bytes(skb, AT_RPC, reply, 28, BPF_F_RECOMPUTE_CSUM) ||
		    bpf_skb_store_bytes(skb, AT_RPC + 28, before, 12, BPF_F_RECOMPUTE_CSUM) ||
		    bpf_skb_store_bytes(skb, AT_RPC + 40, reply->at + 32, rest, BPF_F_RECOMPUTE_CSUM))
			return DROP;
	} else {
		KEEP(until);
		if (until < 4 || until > 96 || bpf_skb_store_bytes(skb, AT_RPC, reply, until, BPF_F_RECOMPUTE_CSUM))
			return DROP;
	}
	slot->number = 0;
	if (fragment) {
		struct piece piece = { c->address, address, number & 0xffff, interface };
		heads->ip.id = piece.id;
		if (bpf_map_update_elem(&pieces, &key, &piece, BPF_ANY))
			return DROP;
	}
	if (!write_heads(skb, heads, c->address, address, c->port, port, longer, diff))
		return DROP;
	if (count)
		count->answered++;
	return send(c, interface);
}

/* A further piece of a datagram. */
static __always_inline int on_piece(struct __sk_buff *skb, const struct config *c, struct iphdr *ip)
{
	struct piece_key key = { ip->saddr, ip->daddr, ip->id };
	struct piece *piece = bpf_map_lookup_elem(&pieces, &key);
	if (!piece)
		return NEXT;
	ip->saddr = piece->from;
	ip->daddr = piece->to;
	ip->id = piece->id;
	sum_ip(ip);
	if (bpf_skb_store_bytes(skb, AT_IP, ip, sizeof(*ip), BPF_F_RECOMPUTE_CSUM))
		return DROP;
	return send(c, piece->interface);
}

SEC("classifier")
int udp_switch(struct __sk_buff *skb)
{
	/* What has a VLAN's tag comes again at that VLAN's own interface. */
	if (skb->protocol != bpf_htons(ETH_P_IP) || skb->vlan_present || skb->pkt_type != PACKET_HOST)
		return NEXT;
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	if (data + AT_IP + sizeof(struct iphdr) > end)
		return NEXT;
	struct heads heads;
	heads.ip = *(struct iphdr *)(data + AT_IP);
	if (heads.ip.protocol != IPPROTO_UDP || heads.ip.ihl != 5 || heads.ip.version != 4)
		return NEXT;
	__u32 zero = 0;
	struct config *c = bpf_map_lookup_elem(&config, &zero);
	if (!c || !c->port)
		return NEXT;
	/* From elsewhere nothing comes with such addresses, whatever is written on it. */
	if (skb->ifindex != c->loopback && (is_loopback(heads.ip.saddr) || is_loopback(heads.ip.daddr)))
		return NEXT;
	if (heads.ip.frag_off & bpf_htons(FRAGMENT_OFFSET))
		return on_piece(skb, c, &heads.ip);
	if (data + AT_RPC > end)
		return NEXT;
	heads.udp = *(struct udphdr *)(data + AT_UDP);
	if (heads.udp.dest == c->port && heads.ip.daddr == c->address)
		return on_call(skb, c, &heads);
	if (heads.udp.dest == c->port_back)
		return on_reply(skb, c, &heads);
	return NEXT;
}

/* What helpers for packets ask for; MIT goes with it. */
char _license[] SEC("license") = "Dual MIT/GPL";
