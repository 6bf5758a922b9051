/* SPDX-License-Identifier: Apache-2.0
 *
 * mr_abi.h: what a program's libibverbs and a MetaRoCE daemon say to each other.
 *
 * Two halves:
 *   1. the control protocol on the daemon's unix socket (SOCK_SEQPACKET): creating, changing and destroying
 *      objects, one request, one reply;
 *   2. the shared memory of one context (a sealed memfd made by the client): queues, completions, doorbells.
 *
 * Rules that hold everywhere:
 *   - Every struct has a fixed size, natural alignment and no implicit padding; all integers are the host's
 *     (little-endian machines only). Fields named rsv are written as 0 and not looked at, so that they can be
 *     given a meaning later.
 *   - Fields that verbs keeps in network order (immediate data) are carried as they are: same bytes, a __be32.
 *   - The daemon trusts nothing here: it copies a descriptor out, then checks the copy.
 *   - device/hostq mirrors this file in Go; a test there compiles this header and compares every offset.
 *
 * Compatibility: MR_ABI_MAJOR differs = the two sides say so and part. MR_ABI_MINOR grows when an operation or
 * a flag is added at the end; a side that does not know an operation answers EOPNOTSUPP.
 */
#ifndef MR_ABI_H
#define MR_ABI_H

#include <stdint.h>

#define MR_ABI_MAJOR 1
#define MR_ABI_MINOR 0
#define MR_ABI_MAGIC 0x4345524du /* "MREC" in memory */

/* ------------------------------------------------------------------ limits of the layout, not of a NIC ---- */
#define MR_CTX_BYTES_MAX (1ull << 40) /* of the memfd of a context */
#define MR_CTX_BYTES_MIN (1ull << 20)
#define MR_RING_ALIGN 4096u /* rings begin on a page of the memfd */
#define MR_MAX_SGE 32u
#define MR_MAX_INLINE 256u    /* bytes of a send that travel in the work request */
#define MR_CQE_INLINE 64u     /* bytes of a received SEND that travel in the completion */
#define MR_MAX_DOORBELLS (1u << 18)
#define MR_NAME_BYTES 64u
#define MR_MSG_BYTES 65536u /* largest control message */
#define MR_MAX_FDS 4u

/* ===================================================================== 1. control protocol ===== */

/* Every message starts with this. A reply has the request's op and seq, and status 0 or a positive errno. */
struct mr_hdr {
    uint16_t op;    /* enum mr_op */
    uint16_t flags; /* MR_HDR_* */
    uint32_t len;   /* of the whole message, this header included */
    uint32_t seq;   /* chosen by the client */
    int32_t status; /* replies: 0 or errno; requests: 0 */
};
#define MR_HDR_REPLY 1u
#define MR_HDR_MORE 2u /* MGMT replies: the text goes on in the next message */

enum mr_op {
    MR_OP_HELLO = 1,      /* first on every connection                mr_hello -> mr_hello_reply */
    MR_OP_LIST = 2,       /* mr_list -> mr_list_reply (from index on, as many as fit) */
    MR_OP_OPEN = 3,       /* mr_open + fd[0] memfd -> mr_open_reply + fd[0] doorbell eventfd, fd[1] async events */
    MR_OP_QUERY_PORT = 4, /* mr_query_port -> mr_port_attr */
    MR_OP_QUERY_GID = 5,  /* mr_query_gid -> mr_gid_entry */
    MR_OP_MGMT = 6,       /* JSON text after mr_hdr, both ways (management commands; needs no OPEN) */

    MR_OP_ALLOC_PD = 16, /* mr_handle(rsv) -> mr_handle */
    MR_OP_FREE_PD = 17,  /* mr_handle -> mr_hdr */
    MR_OP_REG_MR = 18,   /* mr_reg_mr -> mr_reg_mr_reply */
    MR_OP_DEREG_MR = 19, /* mr_handle -> mr_hdr */
    MR_OP_REREG_MR = 20, /* mr_reg_mr (handle set) -> mr_reg_mr_reply */
    MR_OP_ALLOC_MW = 21, /* mr_alloc_mw -> mr_reg_mr_reply (rkey) */
    MR_OP_FREE_MW = 22,

    MR_OP_CREATE_CHANNEL = 24,  /* mr_handle(rsv) -> mr_handle + fd[0] the client's end */
    MR_OP_DESTROY_CHANNEL = 25, /* mr_handle -> mr_hdr; EBUSY while CQs use it */
    MR_OP_CREATE_CQ = 26,       /* mr_create_cq -> mr_handle */
    MR_OP_DESTROY_CQ = 27,      /* mr_handle -> mr_destroy_reply; EBUSY while QPs use it */
    MR_OP_RESIZE_CQ = 28,       /* mr_create_cq (handle set) -> mr_hdr; the daemon copies what was not polled, the
                                   indices run on in the new ring; EINVAL when more is waiting than wanted, EBUSY
                                   when more than 65,536 */
    MR_OP_CREATE_SRQ = 29,      /* mr_create_srq -> mr_create_srq_reply */
    MR_OP_MODIFY_SRQ = 30,      /* mr_srq_attr -> mr_hdr */
    MR_OP_QUERY_SRQ = 31,       /* mr_handle -> mr_srq_attr */
    MR_OP_DESTROY_SRQ = 32,     /* mr_handle -> mr_destroy_reply */

    MR_OP_CREATE_QP = 40,  /* mr_create_qp -> mr_create_qp_reply */
    MR_OP_MODIFY_QP = 41,  /* mr_modify_qp -> mr_hdr; to RESET: what was posted is forgotten, the indices run on */
    MR_OP_QUERY_QP = 42,   /* mr_handle -> mr_modify_qp (attr filled; mask 0) */
    MR_OP_DESTROY_QP = 43, /* mr_handle -> mr_destroy_reply */
    MR_OP_CREATE_AH = 44,  /* mr_create_ah -> mr_handle */
    MR_OP_DESTROY_AH = 45,   /* mr_handle -> mr_hdr */
    MR_OP_ATTACH_MCAST = 46, /* mr_mcast -> mr_hdr */
    MR_OP_DETACH_MCAST = 47, /* mr_mcast -> mr_hdr; a QP is destroyed only when it is in no group (EBUSY) */
    MR_OP_OPEN_XRCD = 48,    /* mr_open_xrcd + fd[0] the file, or none -> mr_handle */
    MR_OP_CLOSE_XRCD = 49,   /* mr_handle -> mr_hdr; EBUSY while the program has QPs or SRQs in it */
    MR_OP_OPEN_QP = 50,      /* mr_open_qp -> mr_create_qp_reply; then a handle of a QP like any other */

    MR_OP_ALLOC_NULL_MR = 56, /* mr_handle (a PD) -> mr_reg_mr_reply */
    MR_OP_SHARE = 57,         /* mr_share; no reply. Sent by who was given the descriptor of this connection and is about
                                 to IMPORT its context over one of his own, with the same token */
    MR_OP_IMPORT = 58,        /* mr_import + fd[0] memfd -> mr_import_reply + descriptors as OPEN; PDs, MRs, DMs are common */
    MR_OP_IMPORT_PD = 59,     /* mr_handle -> mr_hdr */
    MR_OP_IMPORT_MR = 60,     /* mr_handle -> mr_import_mr_reply */
    MR_OP_ALLOC_DM = 61,      /* mr_dm_msg + fd[0] memfd, sealed -> mr_handle */
    MR_OP_FREE_DM = 62,       /* mr_handle -> mr_hdr */
    MR_OP_IMPORT_DM = 63,     /* mr_handle -> mr_dm_msg + fd[0] memfd */
    MR_OP_MODIFY_CQ = 64,     /* mr_modify_cq -> mr_hdr */

    MR_OP_ASSIST = 72, /* mr_assist + fd[0] memfd -> mr_hdr; before OPEN */

    /* Connection management (librdmacm): on a connection of its own, which needs no OPEN. An ID or channel is a handle
     * of that connection. */
    MR_OP_CM_SETUP = 80,           /* mr_cm_setup -> mr_hdr; first */
    MR_OP_CM_CREATE_CHANNEL = 81,  /* mr_handle(rsv) -> mr_handle + fd[0]: one datagram for each event */
    MR_OP_CM_DESTROY_CHANNEL = 82, /* mr_handle -> mr_hdr; EBUSY while it has IDs */
    MR_OP_CM_GET_EVENT = 83,       /* mr_handle of a channel -> mr_cm_event; ENODATA: none */
    MR_OP_CM_CREATE_ID = 84,       /* mr_cm_create -> mr_handle */
    MR_OP_CM_DESTROY_ID = 85,      /* mr_handle -> mr_destroy_reply: comp_events were given out, async_events datagrams
                                      belong to none any more */
    MR_OP_CM_BIND = 86,            /* mr_cm_addrs (src) -> mr_hdr */
    MR_OP_CM_RESOLVE_ADDR = 87,    /* mr_cm_addrs -> mr_hdr, then an event */
    MR_OP_CM_RESOLVE_ROUTE = 88,   /* mr_handle -> mr_hdr, then an event */
    MR_OP_CM_QUERY = 89,           /* mr_handle -> mr_cm_info */
    MR_OP_CM_LISTEN = 90,          /* mr_cm_arg: backlog -> mr_hdr */
    MR_OP_CM_CONNECT = 91,         /* mr_cm_conn -> mr_hdr, then events */
    MR_OP_CM_ACCEPT = 92,          /* mr_cm_conn -> mr_hdr */
    MR_OP_CM_REJECT = 93,          /* mr_cm_conn (arg: reason; 0 = by the consumer) -> mr_hdr */
    MR_OP_CM_ESTABLISH = 94,       /* mr_handle -> mr_hdr: our QP is in RTS */
    MR_OP_CM_DISCONNECT = 95,      /* mr_handle -> mr_hdr */
    MR_OP_CM_QP_ATTR = 96,         /* mr_cm_arg: QP state -> mr_modify_qp (mask says what is set) */
    MR_OP_CM_SET_OPTION = 97,      /* mr_cm_option -> mr_hdr */
    MR_OP_CM_MIGRATE = 98,         /* mr_cm_arg: channel -> mr_destroy_reply, as above, of the old channel */
    MR_OP_CM_JOIN = 99,            /* mr_cm_addrs (dst: the group) -> mr_handle, then an event */
    MR_OP_CM_LEAVE = 100,          /* mr_cm_arg: membership -> mr_destroy_reply */
};

/* HELLO: who calls, and how the daemon may reach its memory. The guard is 8 bytes on a page that the client
 * mapped MAP_SHARED at a random address: the daemon reads them, or writes the nonce back, as the first segment of
 * every DMA call, so that a reused pid or an exec'd image fails with EFAULT before a byte of a stranger moves. The
 * page stays readable and writable. */
struct mr_hello {
    struct mr_hdr hdr;
    uint32_t magic; /* MR_ABI_MAGIC */
    uint16_t abi_major;
    uint16_t abi_minor;
    int32_t pid;         /* as the client sees itself; the daemon uses SO_PEERCRED */
    uint32_t rsv;
    uint64_t guard_addr; /* 0: no DMA wanted (listing, management) */
    uint64_t guard_nonce;
    char program[32]; /* for people: status, logs */
};
struct mr_hello_reply {
    struct mr_hdr hdr;
    uint16_t abi_major;
    uint16_t abi_minor;
    int32_t daemon_pid; /* 0 when the daemon cannot tell (other pid namespace): use PR_SET_PTRACER_ANY */
    uint32_t nics;
    uint32_t dma_mode; /* enum mr_dma */
    char version[32];
};
enum mr_dma { MR_DMA_NONE = 0, MR_DMA_PROCESS_VM = 1, MR_DMA_PROC_MEM = 2, MR_DMA_ASSIST = 3 };

/* ASSIST: where the daemon may not reach the program's memory (mr_hello_reply.dma_mode is 0), a thread of the program
 * copies for it, through the memory of the memfd: struct mr_assist_page (section 3). The daemon proves the guard through
 * it before it answers. */
struct mr_assist {
    struct mr_hdr hdr;
    uint64_t bytes; /* MR_ASSIST_BYTES; sealed as the memory of a context */
};

struct mr_list {
    struct mr_hdr hdr;
    uint32_t first;
    uint32_t rsv;
};
struct mr_nic {
    char name[MR_NAME_BYTES]; /* "a/mr0": host and device; a program of host a sees "mr0" */
    char dev[32];             /* "mr0" */
    uint64_t guid;            /* node GUID, big-endian bytes */
    uint32_t index;           /* stable while the daemon runs */
    uint32_t num_ports;
};
struct mr_list_reply { /* followed by count times mr_nic */
    struct mr_hdr hdr;
    uint32_t count;
    uint32_t total;
};

struct mr_open {
    struct mr_hdr hdr;
    uint64_t shm_bytes;       /* size of the memfd; sealed SHRINK|GROW|SEAL; begins with struct mr_ctx_page */
    char name[MR_NAME_BYTES]; /* of the NIC, as in mr_nic.name; empty: the only one */
};
/* Attributes of the device: the numbers of ibv_device_attr(_ex) that differ from 0. */
struct mr_device_attr {
    uint64_t node_guid, sys_image_guid; /* big-endian bytes, as verbs has them */
    uint64_t max_mr_size, page_size_cap;
    uint64_t device_cap_flags;
    uint32_t vendor_id, vendor_part_id, hw_ver;
    uint32_t max_qp, max_qp_wr, max_sge, max_sge_rd, max_cq, max_cqe, max_mr, max_pd;
    uint32_t max_qp_rd_atom, max_qp_init_rd_atom, max_res_rd_atom, atomic_cap;
    uint32_t max_srq, max_srq_wr, max_srq_sge, max_ah, max_mw;
    uint32_t max_mcast_grp, max_mcast_qp_attach, max_xrcd;
    uint32_t max_pkeys, local_ca_ack_delay, num_ports, num_comp_vectors, max_inline;
    uint32_t max_dm_kib; /* device memory */
    uint32_t rsv;
    char fw_ver[64];
    char board_id[64];
};
struct mr_open_reply {
    struct mr_hdr hdr;
    uint32_t ctx; /* for people */
    uint32_t rsv;
    struct mr_device_attr attr;
};

struct mr_query_port {
    struct mr_hdr hdr;
    uint32_t port; /* 1 */
    uint32_t rsv;
};
struct mr_port_attr {
    struct mr_hdr hdr;
    uint32_t state, max_mtu, active_mtu; /* enum ibv_port_state, ibv_mtu */
    uint32_t gid_tbl_len, port_cap_flags, max_msg_sz;
    uint32_t pkey_tbl_len, active_width, active_speed, phys_state, link_layer, flags;
    uint64_t speed_mbps;
    uint32_t planes, planes_up;
};
struct mr_query_gid {
    struct mr_hdr hdr;
    uint32_t port;
    uint32_t index;
};
struct mr_gid_entry {
    struct mr_hdr hdr; /* EINVAL: past the table; ENODATA: empty entry */
    uint8_t gid[16];
    uint32_t index, port, type; /* type: 2 = RoCE v2 (enum ibv_gid_type) */
    uint32_t ndev_ifindex;      /* 0 = none */
};

/* The simplest request and reply: one object by number. Handles are per context and never 0. */
struct mr_handle {
    struct mr_hdr hdr;
    uint32_t handle;
    uint32_t rsv;
};
/* Events delivered for the object so far: destroy_* waits in the client until so many were acknowledged. */
struct mr_destroy_reply {
    struct mr_hdr hdr;
    uint32_t comp_events;
    uint32_t async_events;
};

struct mr_reg_mr {
    struct mr_hdr hdr;
    uint32_t handle; /* REREG: the MR; REG: 0 */
    uint32_t pd;
    uint64_t addr;  /* of the memory in the program */
    uint64_t iova;  /* address that work requests will use; usually addr */
    uint64_t length;
    uint32_t access; /* enum ibv_access_flags */
    uint32_t rereg;  /* IBV_REREG_MR_* */
};
struct mr_reg_mr_reply {
    struct mr_hdr hdr;
    uint32_t handle;
    uint32_t lkey;
    uint32_t rkey;
    uint32_t rsv;
};
struct mr_import_mr_reply {
    struct mr_hdr hdr;
    uint32_t lkey;
    uint32_t rkey;
    uint64_t iova;
    uint64_t length;
    uint32_t access;
    uint32_t rsv;
};
/* Device memory: a memfd of the program, which the daemon keeps for those it is handed to, and does not map. */
struct mr_dm_msg {
    struct mr_hdr hdr;
    uint64_t length;
};
struct mr_share {
    struct mr_hdr hdr;
    uint64_t token[2]; /* random */
};
struct mr_import {
    struct mr_hdr hdr;
    uint64_t token[2];
    uint64_t shm_bytes;
};
struct mr_import_reply {
    struct mr_hdr hdr;
    uint32_t ctx;
    uint32_t rsv;
    struct mr_device_attr attr;
    struct mr_nic nic;
};
struct mr_alloc_mw {
    struct mr_hdr hdr;
    uint32_t pd;
    uint32_t type; /* enum ibv_mw_type */
};

struct mr_create_cq {
    struct mr_hdr hdr;
    uint32_t handle; /* RESIZE: the CQ; CREATE: 0 */
    uint32_t entries; /* power of two */
    uint64_t ring;    /* offset of struct mr_ring in the memfd; entries of struct mr_cqe follow at MR_RING_HDR */
    uint64_t cookie;  /* returned in events: the client's struct ibv_cq pointer */
    uint32_t channel; /* 0 = none */
    uint32_t comp_vector;
    uint32_t flags; /* MR_CQ_* */
    uint32_t want;  /* RESIZE: entries that the program asked for, of which the ring may have more; 0 = entries */
};
#define MR_CQ_IGNORE_OVERRUN 1u
/* Moderation: an armed CQ sends its event when `count` completions have come, or `period` us after the first. Either 0:
 * with the first. */
struct mr_modify_cq {
    struct mr_hdr hdr;
    uint32_t handle;
    uint16_t count, period;
};

struct mr_create_srq {
    struct mr_hdr hdr;
    uint32_t pd;
    uint32_t type; /* enum ibv_srq_type */
    uint32_t entries; /* power of two */
    uint32_t max_sge;
    uint32_t stride; /* bytes of a receive slot, multiple of 64 */
    uint32_t limit;
    uint64_t ring;   /* mr_ring of uint32_t slot numbers: which slot is the n-th posted receive */
    uint64_t slots;  /* offset of the slots themselves: entries * stride bytes of mr_rqe */
    uint64_t cookie;
    uint32_t cq, xrcd; /* XRC and tag matching */
};

struct mr_create_srq_reply {
    struct mr_hdr hdr;
    uint32_t handle;
    uint32_t num; /* XRC: the number by which peers name it; else 0 */
};
/* ibv_xrcd_init_attr. Programs that have the same file open share its domain; without a file it is the caller's own. */
struct mr_open_xrcd {
    struct mr_hdr hdr;
    uint32_t flags; /* O_CREAT, O_EXCL */
    uint32_t rsv;
};
struct mr_open_qp {
    struct mr_hdr hdr;
    uint32_t xrcd;
    uint32_t qpn;
    uint64_t cookie; /* as in mr_create_qp */
};

/* ibv_srq_attr; mask is enum ibv_srq_attr_mask */
struct mr_srq_attr {
    struct mr_hdr hdr;
    uint32_t handle;
    uint32_t mask;
    uint32_t max_wr, max_sge;
    uint32_t limit; /* an event when fewer are left; 0: none */
    uint32_t rsv;
};

struct mr_create_qp {
    struct mr_hdr hdr;
    uint32_t pd;
    uint32_t type; /* enum ibv_qp_type */
    uint32_t send_cq, recv_cq, srq, xrcd;
    uint32_t sq_entries, sq_stride; /* power of two (0 = none); multiple of 64, header included */
    uint32_t rq_entries, rq_stride;
    uint32_t max_send_sge, max_recv_sge, max_inline;
    uint32_t sq_sig_all;
    uint64_t sq_ring; /* offsets of struct mr_ring; slots follow at MR_RING_HDR */
    uint64_t rq_ring;
    uint64_t cookie;    /* in async events: the client's struct ibv_qp pointer */
    uint32_t sq_doorbell; /* doorbell numbers chosen by the client, < MR_MAX_DOORBELLS, one per queue */
    uint32_t rq_doorbell;
    uint64_t create_flags;
};
struct mr_create_qp_reply {
    struct mr_hdr hdr;
    uint32_t handle;
    uint32_t qpn;
};

/* ibv_ah_attr */
struct mr_ah_attr {
    uint8_t dgid[16];
    uint32_t flow_label;
    uint8_t sgid_index, hop_limit, traffic_class, is_global;
    uint16_t dlid;
    uint8_t sl, src_path_bits, static_rate, port_num;
    uint16_t rsv;
};
/* ibv_qp_attr; mask is enum ibv_qp_attr_mask */
struct mr_modify_qp {
    struct mr_hdr hdr;
    uint32_t handle;
    uint32_t mask;
    uint32_t qp_state, cur_qp_state, path_mtu, path_mig_state;
    uint32_t qkey, rq_psn, sq_psn, dest_qp_num, qp_access_flags;
    uint32_t max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline;
    struct mr_ah_attr ah, alt_ah;
    uint16_t pkey_index, alt_pkey_index;
    uint8_t en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic;
    uint8_t min_rnr_timer, port_num, timeout, retry_cnt;
    uint8_t rnr_retry, alt_port_num, alt_timeout, rsv0;
    uint32_t rate_limit;
    uint32_t rsv1;
};
struct mr_create_ah {
    struct mr_hdr hdr;
    uint32_t pd;
    uint32_t rsv;
    struct mr_ah_attr attr;
};
struct mr_mcast {
    struct mr_hdr hdr;
    uint32_t qp; /* handle of a UD QP */
    uint32_t rsv;
    uint8_t gid[16]; /* of the group: an IP multicast address */
};

/* Which NICs the program may use, as MR_NIC has them: host/dev, host or dev, with commas; empty: all. */
struct mr_cm_setup {
    struct mr_hdr hdr;
    char nics[1008];
};
struct mr_cm_create {
    struct mr_hdr hdr;
    uint32_t channel;
    uint32_t ps;      /* enum rdma_port_space */
    uint32_t qp_type; /* enum ibv_qp_type */
    uint32_t rsv;
};
struct mr_cm_addr {
    uint16_t family; /* AF_INET, AF_INET6; 0: none */
    uint16_t port;   /* in host order */
    uint32_t rsv;
    uint8_t addr[16]; /* IPv4 in the last 4 */
};
struct mr_cm_addrs {
    struct mr_hdr hdr;
    uint32_t id;
    uint32_t timeout_ms;
    struct mr_cm_addr src, dst;
};
struct mr_cm_arg {
    struct mr_hdr hdr;
    uint32_t id;
    uint32_t arg;
};
struct mr_cm_option {
    struct mr_hdr hdr;
    uint32_t id;
    uint32_t level; /* RDMA_OPTION_ID */
    uint32_t name;
    uint32_t value;
};
struct mr_cm_param {
    uint32_t qpn, qkey;
    uint8_t responder_resources, initiator_depth, flow_control, retry_count;
    uint8_t rnr_retry_count, srq;
    uint16_t private_len;
};
struct mr_cm_conn {
    struct mr_hdr hdr;
    uint32_t id;
    uint32_t arg;
    struct mr_cm_param param;
    uint8_t private_data[256];
};
struct mr_cm_info {
    struct mr_hdr hdr;
    struct mr_cm_addr src, dst;
    uint8_t sgid[16], dgid[16];
    uint64_t guid; /* of the NIC, big-endian bytes; 0: none yet */
    uint32_t ps, qp_type;
    uint8_t port_num, mtu, traffic_class, hop_limit;
    uint32_t rsv;
};
struct mr_cm_event {
    struct mr_hdr hdr;
    uint32_t id;        /* CONNECT_REQUEST: the new one */
    uint32_t listen_id; /* CONNECT_REQUEST: the listener */
    uint32_t event;     /* enum rdma_cm_event_type */
    int32_t status;
    uint32_t group; /* MULTICAST_*: handle of the membership */
    uint32_t rsv;
    struct mr_cm_param param;
    struct mr_ah_attr ah; /* of datagram IDs */
    uint8_t private_data[256];
};

/* Records on the fds: one datagram each (SOCK_SEQPACKET socket pairs; the client's end may be made O_NONBLOCK). */
struct mr_comp_event { /* on a completion channel */
    uint64_t cookie;   /* of the CQ */
};
struct mr_async_event {
    uint64_t cookie;   /* of the CQ, QP or SRQ; 0 for port and device events */
    uint32_t type;     /* enum ibv_event_type */
    uint32_t port;     /* for port events */
};

/* ===================================================================== 2. shared memory ===== */

/* The first pages of the memfd. Doorbells: two levels of bits. To ring doorbell d the client, after storing the
 * producer index, sets bit d%64 of bell[d/64], then bit (d/64)%64 of summary[d/4096], both with seq_cst
 * read-modify-writes, then loads `asleep` (seq_cst): when it is not 0, it writes 8 bytes (1) to the eventfd.
 * The daemon takes bits by exchanging words with 0, summary first; before it sleeps it stores asleep = 1
 * (seq_cst) and looks at every summary word once more. Release/acquire is not enough: wake-ups get lost. */
struct mr_ctx_page {
    uint32_t magic; /* MR_ABI_MAGIC, by the client */
    uint32_t abi_major;
    uint8_t rsv0[56];
    uint32_t asleep; /* @64, by the daemon */
    uint8_t rsv1[60];
    uint32_t dead; /* @128, by the daemon: 1 = this context is gone (daemon stopping, protocol error) */
    uint8_t rsv2[60];
    uint8_t rsv3[320];
    uint64_t summary[64];  /* @512 */
    uint8_t rsv4[3072];    /* to 4096 */
    uint64_t bell[4096];   /* @4096: MR_MAX_DOORBELLS bits */
};
#define MR_CTX_PAGE_BYTES 36864u /* rings may begin here */

/* A ring: header, then entries. Indices run freely (mod 2^32); slot = index & (entries - 1). One writer each. */
struct mr_ring {
    uint32_t prod; /* @0: producer: client for SQ, RQ, SRQ; daemon for CQ. release */
    uint8_t rsv0[60];
    uint32_t cons; /* @64: consumer. CQ: client, as it polls. SQ and RQ: daemon, informative only: a slot of the SQ
                      or RQ is free again when the client has polled its completion (or a later one of the SQ) */
    uint8_t rsv1[60];
    uint32_t arm; /* @128: CQ: MR_ARM_*; client stores (seq_cst), daemon exchanges with 0 when it sends the event */
    uint8_t rsv2[60];
    uint32_t flags; /* @192: daemon to client: MR_RING_* */
    uint8_t rsv3[60];
};
#define MR_RING_HDR 256u
#define MR_ARM_NEXT 1u      /* any completion */
#define MR_ARM_SOLICITED 2u /* solicited ones and errors */
#define MR_RING_OVERRUN 1u  /* CQ: a completion was lost */
#define MR_RING_ERROR 2u    /* SQ, RQ: the QP is in the error state */

struct mr_sge {
    uint64_t addr;
    uint32_t length;
    uint32_t lkey;
};

/* Send work request: this header, then num_sge times mr_sge, or inline_len bytes. */
struct mr_sqe {
    uint64_t wr_id;
    uint8_t opcode;  /* enum mr_wr */
    uint8_t num_sge; /* 0 with MR_SEND_INLINE */
    uint16_t flags;  /* MR_SEND_* */
    uint32_t imm;    /* immediate data (be32), or the rkey to invalidate */
    uint64_t remote_addr; /* BIND_MW: address */
    uint32_t rkey;        /* BIND_MW: the window's new rkey */
    uint32_t inline_len;
    union {
        struct {
            uint64_t compare_add;
            uint64_t swap;
        } atomic;
        struct {
            uint32_t ah, qpn, qkey, rsv;
        } ud;
        struct {
            uint64_t length;
            uint32_t mr_lkey, access;
        } bind;
    } u;
    uint32_t xrc_srqn;
    uint32_t rsv[3];
};
enum mr_wr { /* values of enum ibv_wr_opcode */
    MR_WR_WRITE = 0,
    MR_WR_WRITE_IMM = 1,
    MR_WR_SEND = 2,
    MR_WR_SEND_IMM = 3,
    MR_WR_READ = 4,
    MR_WR_CMP_SWAP = 5,
    MR_WR_FETCH_ADD = 6,
    MR_WR_LOCAL_INV = 7,
    MR_WR_BIND_MW = 8,
    MR_WR_SEND_INV = 9,
    MR_WR_TSO = 10,
    MR_WR_ATOMIC_WRITE = 15,
};
#define MR_SEND_FENCE 1u /* values of enum ibv_send_flags */
#define MR_SEND_SIGNALED 2u
#define MR_SEND_SOLICITED 4u
#define MR_SEND_INLINE 8u
#define MR_SEND_IP_CSUM 16u

/* Receive work request: this header, then num_sge times mr_sge. */
struct mr_rqe {
    uint64_t wr_id;
    uint32_t num_sge;
    uint32_t rsv;
};

/* Completion. Written by the daemon before it moves prod. */
struct mr_cqe {
    uint64_t wr_id;
    uint32_t qpn; /* local */
    uint32_t byte_len;
    uint32_t imm; /* immediate (be32) or invalidated rkey */
    uint32_t src_qp;
    uint8_t status; /* enum ibv_wc_status */
    uint8_t opcode; /* enum ibv_wc_opcode */
    uint8_t wc_flags; /* enum ibv_wc_flags */
    uint8_t flags;    /* MR_CQE_* */
    uint32_t vendor_err;
    uint32_t slot; /* index (not masked) of the work request in its SQ or RQ; SRQ: slot number */
    uint16_t pkey_index, slid;
    uint8_t sl, path_bits;
    uint16_t inline_len; /* bytes in data: to be copied to the receive's list by the client at poll */
    uint32_t srq;       /* MR_CQE_XRC: handle of the shared receive queue, as the QP is of another program */
    uint64_t timestamp; /* ns, CLOCK_MONOTONIC of the daemon's machine */
    uint64_t rsv1;
    uint8_t data[MR_CQE_INLINE];
};
#define MR_CQE_SEND 1u /* of the send queue: slot frees the SQ up to and including it */
#define MR_CQE_SRQ 2u  /* of a shared receive queue */
#define MR_CQE_XRC 4u  /* of one of an XRC domain: `srq` says which */

/* ============================================================ 3. memory of the copy thread (ASSIST) ===== */

/* What the daemon wants copied: a ring of MR_ASSIST_DESCS, and MR_ASSIST_DATA bytes that descriptors point into. A
 * descriptor is written, then its state is stored as POSTED, then prod moves; the thread takes it by exchanging POSTED for
 * TAKEN, so that one which the daemon gave up (CANCELLED) moves nothing. Descriptors are done in order. After a fault
 * those of the same call are SKIPPED. The last 8 bytes of what is written are a descriptor of their own, and data lies in
 * the ring's bytes as it lies in the program's memory modulo 8, so that no aligned word of it is written in two parts.
 * Both sides sleep on a word (futex): the thread on bell, when it has set asleep; the daemon on done, when it has set
 * waiting. Each sets its flag and looks once more before it sleeps, all seq_cst. */
struct mr_assist_desc {
    uint64_t addr; /* in the program */
    uint32_t len;
    uint32_t off;   /* from the begin of the memfd */
    uint32_t write; /* 1: to the program's memory; 0: from it */
    uint32_t call;  /* descriptors of one call of the daemon have the same number */
    uint32_t state; /* MR_ASSIST_* */
    uint32_t rsv;
};
#define MR_ASSIST_POSTED 1u
#define MR_ASSIST_TAKEN 2u
#define MR_ASSIST_DONE 3u
#define MR_ASSIST_FAULT 4u
#define MR_ASSIST_SKIPPED 5u
#define MR_ASSIST_CANCELLED 6u
#define MR_ASSIST_DESCS 512u
#define MR_ASSIST_DATA (1u << 20)
#define MR_ASSIST_BYTES (20480u + MR_ASSIST_DATA)
struct mr_assist_page {
    uint32_t magic; /* MR_ABI_MAGIC, by the client */
    uint8_t rsv0[60];
    uint32_t prod; /* @64, by the daemon: descriptors posted; indices run freely, as in rings */
    uint8_t rsv1[60];
    uint32_t done; /* @128, by the thread: descriptors it is through with */
    uint8_t rsv2[60];
    uint32_t asleep; /* @192, by the thread */
    uint8_t rsv3[60];
    uint32_t bell; /* @256: counted up by who wakes the thread */
    uint8_t rsv4[60];
    uint32_t waiting; /* @320, by the daemon */
    uint8_t rsv5[60];
    uint32_t gone; /* @384, by the client: the thread ends */
    uint8_t rsv6[3708];
    struct mr_assist_desc desc[MR_ASSIST_DESCS]; /* @4096; data from 20480 on */
};

#ifndef __cplusplus
_Static_assert(sizeof(struct mr_hdr) == 16, "mr_hdr");
_Static_assert(sizeof(struct mr_hello) == 80, "mr_hello");
_Static_assert(sizeof(struct mr_hello_reply) == 64, "mr_hello_reply");
_Static_assert(sizeof(struct mr_nic) == 112, "mr_nic");
_Static_assert(sizeof(struct mr_open) == 88, "mr_open");
_Static_assert(sizeof(struct mr_device_attr) == 288, "mr_device_attr");
_Static_assert(sizeof(struct mr_open_reply) == 312, "mr_open_reply");
_Static_assert(sizeof(struct mr_port_attr) == 80, "mr_port_attr");
_Static_assert(sizeof(struct mr_gid_entry) == 48, "mr_gid_entry");
_Static_assert(sizeof(struct mr_reg_mr) == 56, "mr_reg_mr");
_Static_assert(sizeof(struct mr_import_mr_reply) == 48, "mr_import_mr_reply");
_Static_assert(sizeof(struct mr_dm_msg) == 24, "mr_dm_msg");
_Static_assert(sizeof(struct mr_share) == 32, "mr_share");
_Static_assert(sizeof(struct mr_import) == 40, "mr_import");
_Static_assert(sizeof(struct mr_import_reply) == 424, "mr_import_reply");
_Static_assert(sizeof(struct mr_modify_cq) == 24, "mr_modify_cq");
_Static_assert(sizeof(struct mr_create_cq) == 56, "mr_create_cq");
_Static_assert(sizeof(struct mr_create_srq) == 72, "mr_create_srq");
_Static_assert(sizeof(struct mr_create_srq_reply) == 24, "mr_create_srq_reply");
_Static_assert(sizeof(struct mr_open_xrcd) == 24, "mr_open_xrcd");
_Static_assert(sizeof(struct mr_open_qp) == 32, "mr_open_qp");
_Static_assert(sizeof(struct mr_srq_attr) == 40, "mr_srq_attr");
_Static_assert(sizeof(struct mr_create_qp) == 112, "mr_create_qp");
_Static_assert(sizeof(struct mr_ah_attr) == 32, "mr_ah_attr");
_Static_assert(sizeof(struct mr_mcast) == 40, "mr_mcast");
_Static_assert(sizeof(struct mr_modify_qp) == 168, "mr_modify_qp");
_Static_assert(sizeof(struct mr_cm_setup) == 1024, "mr_cm_setup");
_Static_assert(sizeof(struct mr_cm_create) == 32, "mr_cm_create");
_Static_assert(sizeof(struct mr_cm_addr) == 24, "mr_cm_addr");
_Static_assert(sizeof(struct mr_cm_addrs) == 72, "mr_cm_addrs");
_Static_assert(sizeof(struct mr_cm_arg) == 24, "mr_cm_arg");
_Static_assert(sizeof(struct mr_cm_option) == 32, "mr_cm_option");
_Static_assert(sizeof(struct mr_cm_param) == 16, "mr_cm_param");
_Static_assert(sizeof(struct mr_cm_conn) == 296, "mr_cm_conn");
_Static_assert(sizeof(struct mr_cm_info) == 120, "mr_cm_info");
_Static_assert(sizeof(struct mr_cm_event) == 344, "mr_cm_event");
_Static_assert(sizeof(struct mr_ctx_page) == MR_CTX_PAGE_BYTES, "mr_ctx_page");
_Static_assert(sizeof(struct mr_ring) == MR_RING_HDR, "mr_ring");
_Static_assert(sizeof(struct mr_sqe) == 64, "mr_sqe");
_Static_assert(sizeof(struct mr_rqe) == 16, "mr_rqe");
_Static_assert(sizeof(struct mr_sge) == 16, "mr_sge");
_Static_assert(sizeof(struct mr_cqe) == 128, "mr_cqe");
_Static_assert(sizeof(struct mr_assist) == 24, "mr_assist");
_Static_assert(sizeof(struct mr_assist_desc) == 32, "mr_assist_desc");
_Static_assert(sizeof(struct mr_assist_page) == MR_ASSIST_BYTES - MR_ASSIST_DATA, "mr_assist_page");
#endif

#endif
