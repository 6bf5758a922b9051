/* SPDX-License-Identifier: Apache-2.0
 *
 * rs_stream.c: bytes over an RC connection. Out: wait for a credit, room in our ring and room in the peer's buffer,
 * copy, WRITE with immediate data. In: a completion says how many bytes were written behind the last ones; the program
 * copies them out; a half of the buffer that was read is given to the peer again.
 */
#include "rs.h"

#include <byteswap.h>
#include <endian.h>
#include <stdlib.h>

enum kind { KIND_RECV, KIND_DATA, KIND_CTRL };
#define WR_ID(kind, bytes) ((uint64_t)(kind) << 32 | (bytes))

void rs_fail(struct rsock *rs, int err) {
    rs->state = RS_FAILED;
    rs->err = err;
    rs->read_open = rs->write_open = false;
}

/* ---------------------------------------------------------------------------------------------------- begin and end */

static int post_recv(struct rsock *rs) {
    struct ibv_recv_wr w = {.wr_id = WR_ID(KIND_RECV, 0)}, *bad;
    return ibv_post_recv(rs->qp, &w, &bad);
}

static void *pages(size_t n) {
    void *p = NULL;
    if (posix_memalign(&p, 4096, n))
        return NULL;
    return memset(p, 0, n);
}

static int make_buffers(struct rsock *rs) {
    size_t target = sizeof *rs->target + rs->iomap_size * sizeof(struct rs_iomap);
    size_t send = rs->sbuf_size + RS_CTRL_SLOTS * sizeof(struct rs_sge);
    rs->sbuf = pages(send);
    rs->rbuf = pages(rs->rbuf_size);
    rs->target = pages(target);
    rs->lens = calloc(rs->rq_size + 1, sizeof *rs->lens);
    if (!rs->sbuf || !rs->rbuf || !rs->target || !rs->lens)
        return ENOMEM;
    struct ibv_pd *pd = rs->qp->pd;
    int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
    rs->smr = ibv_reg_mr(pd, rs->sbuf, send, IBV_ACCESS_LOCAL_WRITE);
    rs->rmr = rs->smr ? ibv_reg_mr(pd, rs->rbuf, rs->rbuf_size, access) : NULL;
    rs->tmr = rs->rmr ? ibv_reg_mr(pd, rs->target, target, access) : NULL;
    return rs->tmr ? 0 : errno;
}

static uint32_t within(uint32_t v, uint32_t least, uint32_t most) {
    return v < least ? least : v > most ? most : v;
}

static int make_qp(struct rsock *rs) {
    struct ibv_device_attr dev;
    if (ibv_query_device(rs->id->verbs, &dev))
        return errno;
    rs->sq_size = within(rs->sq_size, RS_QUEUE_LEAST, within((uint32_t)dev.max_qp_wr, RS_QUEUE_LEAST, RS_QUEUE_MOST));
    rs->rq_size = within(rs->rq_size, RS_QUEUE_LEAST, within((uint32_t)dev.max_qp_wr, RS_QUEUE_LEAST, RS_QUEUE_MOST));
    rs->sbuf_size = within(rs->sbuf_size, 2 * RS_LOWAT, 1u << 30) & ~63u;
    rs->rbuf_size = within(rs->rbuf_size, 2 * RS_LOWAT, 1u << 29) & ~127u;
    rs->comp = ibv_create_comp_channel(rs->id->verbs);
    if (!rs->comp)
        return errno;
    fcntl(rs->comp->fd, F_SETFL, O_NONBLOCK);
    int err = rs_watch(rs, rs->comp->fd);
    if (err)
        return err;
    rs->cq = ibv_create_cq(rs->id->verbs, (int)(rs->sq_size + rs->rq_size), rs, rs->comp, 0);
    if (!rs->cq)
        return errno;
    struct ibv_qp_init_attr init = {.qp_context = rs,
                                    .send_cq = rs->cq,
                                    .recv_cq = rs->cq,
                                    .qp_type = IBV_QPT_RC,
                                    .sq_sig_all = 1,
                                    .cap = {.max_send_wr = rs->sq_size,
                                            .max_recv_wr = rs->rq_size,
                                            .max_send_sge = 2,
                                            .max_recv_sge = 1,
                                            .max_inline_data = rs->inline_max}};
    if (rdma_create_qp(rs->id, NULL, &init)) { /* inline data are a wish */
        init.cap.max_inline_data = 0;
        if (rdma_create_qp(rs->id, NULL, &init))
            return errno;
    }
    rs->qp = rs->id->qp;
    rs->inline_max = init.cap.max_inline_data;
    return 0;
}

int rs_stream_setup(struct rsock *rs) {
    int err = make_qp(rs);
    if (!err)
        err = make_buffers(rs);
    for (uint32_t i = 0; !err && i < rs->rq_size; i++)
        err = post_recv(rs);
    if (err)
        return err;
    rs->s_free = rs->sbuf_size;
    rs->sqe_avail = rs->sq_size - RS_CTRL_SLOTS;
    rs->ctrl_avail = RS_CTRL_SLOTS;
    rs->granted = rs->rbuf_size / 2; /* the first half is in our connection data */
    rs->r_spare = rs->r_spare_at = rs->rbuf_size / 2;
    rs->tell_at = (uint16_t)(rs->rq_size / 2);
    return 0;
}

void rs_stream_drop(struct rsock *rs) {
    struct ibv_mr *mrs[] = {rs->smr, rs->rmr, rs->tmr};
    if (rs->qp)
        rdma_destroy_qp(rs->id);
    if (rs->cq) {
        struct ibv_cq *cq;
        void *context;
        while (rs->comp && !ibv_get_cq_event(rs->comp, &cq, &context))
            ibv_ack_cq_events(cq, 1);
        ibv_destroy_cq(rs->cq);
    }
    for (int i = 0; i < 3; i++)
        if (mrs[i])
            ibv_dereg_mr(mrs[i]);
    if (rs->comp)
        ibv_destroy_comp_channel(rs->comp);
    free(rs->sbuf);
    free(rs->rbuf);
    free(rs->target);
    free(rs->lens);
}

void rs_conn_data_ours(struct rsock *rs, struct rs_conn_data *c) {
    *c = (struct rs_conn_data){
        .version = RS_VERSION,
        .flags = RS_CONN_IOMAP | (__BYTE_ORDER == __BIG_ENDIAN ? RS_CONN_BIG : 0),
        .credits = htobe16((uint16_t)rs->rq_size),
        .iomap_size = rs_scaled(rs->iomap_size),
        .list = {htobe64((uintptr_t)rs->target), htobe32(rs->tmr->rkey), htobe32(RS_LIST_LENGTH)},
        .data = {htobe64((uintptr_t)rs->rbuf), htobe32(rs->rmr->rkey), htobe32(rs->rbuf_size / 2)},
    };
}

/* What the peer says of itself. Its addresses and keys only ever go to its own NIC. */
int rs_conn_data_theirs(struct rsock *rs, const void *data, size_t len) {
    struct rs_conn_data c;
    if (!data || len < sizeof c)
        return EPROTO;
    memcpy(&c, data, sizeof c);
    if (c.version != RS_VERSION)
        return EPROTONOSUPPORT;
    rs->peer_list = (struct rs_sge){be64toh(c.list.addr), be32toh(c.list.key), be32toh(c.list.length)};
    if (!rs->peer_list.length || rs->peer_list.length > 1024)
        return EPROTO;
    rs->peer_list_at = rs->peer_list.length > 1; /* the first entry is taken by the data of the connection */
    rs->swap = !!(c.flags & RS_CONN_BIG) != (__BYTE_ORDER == __BIG_ENDIAN);
    if (c.flags & RS_CONN_IOMAP)
        rs->peer_iomap = (struct rs_sge){rs->peer_list.addr + rs->peer_list.length * sizeof(struct rs_sge),
                                         rs->peer_list.key, rs_unscaled(c.iomap_size)};
    rs->target->list[0] = (struct rs_sge){be64toh(c.data.addr), be32toh(c.data.key), be32toh(c.data.length)};
    rs->may_send = be16toh(c.credits);
    return 0;
}

void rs_stream_open(struct rsock *rs) {
    rs->state = RS_OPEN;
    rs->opened = true;
    rs->read_open = rs->write_open = true;
}

/* ------------------------------------------------------------------------------------------------------- posting */

static int post(struct rsock *rs, struct ibv_send_wr *w) {
    struct ibv_send_wr *bad;
    int err = ibv_post_send(rs->qp, w, &bad);
    if (err)
        rs_fail(rs, err == ENOMEM ? ENOBUFS : err);
    return err;
}

/* Posts a WRITE of n bytes at data, which are copied: inline or through the ring. The caller has seen that there is
 * room: rs->s_free for all of them, rs->sqe_avail for one more. */
int rs_post_write(struct rsock *rs, int opcode, const void *data, uint32_t n, uint32_t imm, uint64_t addr,
                  uint32_t key) {
    struct ibv_sge sge[2];
    struct ibv_send_wr w = {.sg_list = sge,
                            .num_sge = 1,
                            .opcode = (enum ibv_wr_opcode)opcode,
                            .imm_data = htobe32(imm),
                            .wr.rdma = {.remote_addr = addr, .rkey = key}};
    if (n <= rs->inline_max) {
        sge[0] = (struct ibv_sge){.addr = (uintptr_t)data, .length = n};
        w.send_flags = IBV_SEND_INLINE;
        w.wr_id = WR_ID(KIND_DATA, 0);
    } else {
        uint32_t first = rs->sbuf_size - rs->s_head < n ? rs->sbuf_size - rs->s_head : n;
        memcpy(rs->sbuf + rs->s_head, data, first);
        sge[0] = (struct ibv_sge){.addr = (uintptr_t)rs->sbuf + rs->s_head, .length = first, .lkey = rs->smr->lkey};
        if (first < n) {
            memcpy(rs->sbuf, (const uint8_t *)data + first, n - first);
            sge[1] = (struct ibv_sge){.addr = (uintptr_t)rs->sbuf, .length = n - first, .lkey = rs->smr->lkey};
            w.num_sge = 2;
        }
        rs->s_head = (rs->s_head + n) % rs->sbuf_size;
        rs->s_free -= n;
        w.wr_id = WR_ID(KIND_DATA, n);
    }
    rs->sqe_avail--;
    return post(rs, &w);
}

int rs_send_ctrl(struct rsock *rs, enum rs_ctrl what) {
    struct ibv_send_wr w = {.wr_id = WR_ID(KIND_CTRL, 0),
                            .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
                            .imm_data = htobe32(RS_IMM(RS_OP_CTRL, what))};
    rs->ctrl_avail--;
    return post(rs, &w);
}

/* Tells the peer how far it may go: messages, and with them the next half of the buffer when it was read. A peer of the
 * other byte order finds the entry in its own. */
static void tell(struct rsock *rs) {
    uint32_t half = rs->rbuf_size / 2;
    struct rs_sge entry = {(uintptr_t)rs->rbuf + rs->r_spare_at, rs->rmr->rkey, half};
    struct ibv_sge sge = {.addr = (uintptr_t)&entry, .length = sizeof entry};
    struct ibv_send_wr w = {.wr_id = WR_ID(KIND_CTRL, 0),
                            .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
                            .imm_data = htobe32(RS_IMM(RS_OP_LIST, (uint16_t)(rs->taken + rs->rq_size)))};

    if (rs->r_spare >= half && rs->peer_list_at < rs->peer_list.length) {
        if (rs->swap)
            entry = (struct rs_sge){bswap_64(entry.addr), bswap_32(entry.key), bswap_32(entry.length)};
        w.sg_list = &sge;
        w.num_sge = 1;
        w.wr.rdma.remote_addr = rs->peer_list.addr + rs->peer_list_at * sizeof entry;
        w.wr.rdma.rkey = rs->peer_list.key;
        if (sizeof entry <= rs->inline_max) {
            w.send_flags = IBV_SEND_INLINE;
        } else { /* behind the ring: a place for each message that may be under way */
            struct rs_sge *slot = (struct rs_sge *)(void *)(rs->sbuf + rs->sbuf_size) + rs->ctrl_at;
            rs->ctrl_at = (rs->ctrl_at + 1) % RS_CTRL_SLOTS;
            *slot = entry;
            sge.addr = (uintptr_t)slot;
            sge.lkey = rs->smr->lkey;
        }
        rs->r_spare -= half;
        rs->r_spare_at = (rs->r_spare_at + half) % rs->rbuf_size;
        rs->granted += half;
        rs->peer_list_at = (rs->peer_list_at + 1) % rs->peer_list.length;
    }
    rs->tell_at = (uint16_t)(rs->taken + rs->rq_size / 2);
    rs->ctrl_avail--;
    post(rs, &w);
}

static void tell_if_due(struct rsock *rs) {
    if (rs->state == RS_OPEN && rs->ctrl_avail &&
        (rs->r_spare >= rs->rbuf_size / 2 || (int16_t)(rs->taken - rs->tell_at) >= 0))
        tell(rs);
}

/* ---------------------------------------------------------------------------------------------------- completions */

static bool sent_all(const struct rsock *rs) {
    return rs->sqe_avail == rs->sq_size - RS_CTRL_SLOTS && rs->ctrl_avail == RS_CTRL_SLOTS;
}

static void control(struct rsock *rs, uint32_t what) {
    if (what == RS_CTRL_DISCONNECT) {
        rs->read_open = rs->write_open = false;
        rs->state = RS_CLOSED;
    } else if (what == RS_CTRL_SHUTDOWN) {
        rs->read_open = false;
        if (!rs->write_open && rs->told && sent_all(rs)) /* else our end of it is still under way: rs_shut closes it */
            rs->state = RS_CLOSED;
    }
}

/* What a peer says is checked: it may claim no more bytes than it was given room for, nor more messages than credits.
 */
static void message(struct rsock *rs, uint32_t imm) {
    uint32_t op = imm >> 29, v = imm & 0x1fffffffu, next = (rs->len_tail + 1) % (rs->rq_size + 1);
    switch (op) {
    case RS_OP_DATA:
        if (v > rs->granted || next == rs->len_head) {
            rs_fail(rs, EPROTO);
            return;
        }
        rs->granted -= v;
        rs->lens[rs->len_tail] = v;
        rs->len_tail = next;
        return;
    case RS_OP_LIST:
        rs->may_send = (uint16_t)v;
        return;
    case RS_OP_IOMAP: /* it took a credit of the peer's */
        rs->taken++;
        return;
    case RS_OP_CTRL:
        control(rs, v);
        return;
    default:
        rs_fail(rs, EPROTO);
    }
}

static void failed_wc(struct rsock *rs, const struct ibv_wc *wc) {
    if (rs->state == RS_OPEN && wc->status != IBV_WC_WR_FLUSH_ERR)
        rs_fail(rs, wc->status == IBV_WC_RETRY_EXC_ERR ? ETIMEDOUT : ECONNRESET);
}

void rs_stream_progress(struct rsock *rs) {
    struct ibv_wc wc[16];
    int n;

    while ((n = ibv_poll_cq(rs->cq, 16, wc)) > 0) {
        for (int i = 0; i < n; i++) {
            enum kind kind = (enum kind)(wc[i].wr_id >> 32);
            if (wc[i].status != IBV_WC_SUCCESS)
                failed_wc(rs, &wc[i]);
            if (kind == KIND_CTRL) {
                rs->ctrl_avail++;
            } else if (kind == KIND_DATA) {
                rs->sqe_avail++;
                rs->s_free += (uint32_t)wc[i].wr_id;
            } else if (wc[i].status == IBV_WC_SUCCESS) {
                if (rs->state == RS_OPEN && (wc[i].wc_flags & IBV_WC_WITH_IMM))
                    message(rs, be32toh(wc[i].imm_data));
                if (rs->state == RS_OPEN && post_recv(rs))
                    rs_fail(rs, EIO);
            }
        }
    }
    tell_if_due(rs);
}

/* --------------------------------------------------------------------------------------------------------- sending */

/* The entry of the target list that is being filled. The peer's NIC writes it; its last 8 bytes come last. */
static struct rs_sge target(struct rsock *rs) {
    struct rs_sge *e = &rs->target->list[rs->target_at], got;
    uint64_t tail;
    tail = __atomic_load_n((uint64_t *)(void *)&e->key, __ATOMIC_ACQUIRE);
    memcpy(&got.key, &tail, sizeof tail);
    got.addr = e->addr;
    return got;
}

bool rs_can_send(struct rsock *rs) {
    uint32_t want = rs->sbuf_size / 2 < RS_LOWAT ? rs->sbuf_size / 2 : RS_LOWAT;
    return !rs->write_open || (rs->sqe_avail && rs->s_free >= want && rs->sent != rs->may_send && target(rs).length);
}

bool rs_all_sent(struct rsock *rs) {
    if (rs->type == SOCK_DGRAM)
        return rs_dgram_all_sent(rs);
    return sent_all(rs) || rs->state != RS_OPEN;
}

static int write_error(struct rsock *rs) {
    if (rs->err) {
        int err = rs->err;
        rs->err = 0;
        return err;
    }
    return rs->we_shut ? EPIPE : rs->state < RS_OPEN ? ENOTCONN : ECONNRESET;
}

/* Sends at most n bytes in one message; returns how many. */
static uint32_t send_piece(struct rsock *rs, const uint8_t *data, uint32_t n, int *err) {
    struct rs_sge *e = &rs->target->list[rs->target_at], to = target(rs);
    if (n > rs->inline_max && n > rs->s_free)
        n = rs->s_free;
    if (n > to.length)
        n = to.length;
    /* the entry first: once the message is out, the peer may write the entry anew */
    e->addr = to.addr + n;
    e->length = to.length - n;
    if (!e->length)
        rs->target_at = (rs->target_at + 1) % RS_LIST_LENGTH;
    rs->sent++;
    *err = rs_post_write(rs, IBV_WR_RDMA_WRITE_WITH_IMM, data, n, RS_IMM(RS_OP_DATA, n), to.addr, to.key);
    return n;
}

static int send_bytes(struct rsock *rs, const uint8_t *data, size_t len, int flags, size_t *done) {
    uint32_t chunk = RS_CHUNK_FIRST;
    int err = 0;
    while (!err && len) {
        if (!rs_can_send(rs) && (err = rs_wait(rs, rs_can_send, rs_nonblocking(rs, flags), -1)))
            break;
        if (!rs->write_open)
            return write_error(rs);
        uint32_t n = send_piece(rs, data, len < chunk ? (uint32_t)len : chunk, &err);
        if (chunk < RS_CHUNK_MOST)
            chunk *= 2;
        data += n;
        len -= n;
        *done += n;
    }
    return err;
}

ssize_t rs_stream_send(struct rsock *rs, const struct iovec *iov, int n, int flags) {
    size_t done = 0;
    int err = rs_finish_connect(rs, rs_nonblocking(rs, flags));
    if (!err && !rs->write_open)
        err = write_error(rs);
    if (!err && rs->maps_untold)
        err = rs_tell_maps(rs, flags);
    for (int i = 0; !err && i < n; i++)
        err = send_bytes(rs, iov[i].iov_base, iov[i].iov_len, flags, &done);
    if (err && !done)
        return rs_err(err);
    return (ssize_t)done;
}

/* ------------------------------------------------------------------------------------------------------- receiving */

bool rs_have_data(struct rsock *rs) {
    return rs->len_head != rs->len_tail || !rs->read_open;
}

/* Copies from the buffer, which is a ring, n bytes at `at`. */
static void copy_out(struct rsock *rs, uint8_t *to, uint32_t at, uint32_t n) {
    uint32_t first = rs->rbuf_size - at < n ? rs->rbuf_size - at : n;
    memcpy(to, rs->rbuf + at, first);
    memcpy(to + first, rs->rbuf, n - first);
}

/* Takes up to len bytes of what is there. */
static size_t take_bytes(struct rsock *rs, uint8_t *to, size_t len) {
    size_t done = 0;
    while (done < len && rs->len_head != rs->len_tail) {
        uint32_t *have = &rs->lens[rs->len_head];
        uint32_t n = len - done < *have ? (uint32_t)(len - done) : *have;
        copy_out(rs, to + done, rs->r_at, n);
        rs->r_at = (rs->r_at + n) % rs->rbuf_size;
        rs->r_spare += n;
        done += n;
        *have -= n;
        if (!*have) {
            rs->len_head = (rs->len_head + 1) % (rs->rq_size + 1);
            rs->taken++;
        }
        tell_if_due(rs);
    }
    return done;
}

/* Looks at up to len bytes from the skip-th on. */
static size_t peek_bytes(struct rsock *rs, uint8_t *to, size_t len, size_t skip) {
    size_t there = 0;
    for (uint32_t i = rs->len_head; i != rs->len_tail; i = (i + 1) % (rs->rq_size + 1))
        there += rs->lens[i];
    if (there <= skip)
        return 0;
    uint32_t n = (uint32_t)(there - skip < len ? there - skip : len);
    copy_out(rs, to, (uint32_t)((rs->r_at + skip) % rs->rbuf_size), n);
    return n;
}

static int recv_bytes(struct rsock *rs, uint8_t *to, size_t len, int flags, size_t *done) {
    size_t got = 0;
    while (got < len) {
        bool wait_all = (flags & MSG_WAITALL) && !(flags & MSG_PEEK);
        if (rs->len_head == rs->len_tail) {
            if (*done && !wait_all)
                return 0;
            int err = rs_wait(rs, rs_have_data, rs_nonblocking(rs, flags), -1);
            if (err)
                return err;
        }
        size_t n = flags & MSG_PEEK ? peek_bytes(rs, to + got, len - got, *done) : take_bytes(rs, to + got, len - got);
        got += n;
        *done += n;
        if (!n || !wait_all)
            return 0;
    }
    return 0;
}

ssize_t rs_stream_recv(struct rsock *rs, const struct iovec *iov, int n, int flags) {
    size_t done = 0;
    int err = 0;
    if (rs->state < RS_OPEN)
        err = rs->state < RS_RESOLVING ? ENOTCONN : rs_finish_connect(rs, rs_nonblocking(rs, flags));
    if (!err && rs->len_head == rs->len_tail)
        rs_progress(rs);
    for (int i = 0; !err && i < n; i++) {
        size_t before = done;
        err = recv_bytes(rs, iov[i].iov_base, iov[i].iov_len, flags, &done);
        if (done - before < iov[i].iov_len)
            break;
    }
    if (!err && !done && rs->err) { /* what came before the failure was read */
        err = rs->err;
        rs->err = 0;
    }
    if (err && !done)
        return rs_err(err);
    if (!done && rs->broken) /* the end, as of TCP; but rstream looks here whether to ask again */
        errno = ECONNRESET;
    return (ssize_t)done;
}
