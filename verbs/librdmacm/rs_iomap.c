/* SPDX-License-Identifier: Apache-2.0
 *
 * rs_iomap.c: memory of the program that the peer writes to directly (riomap, riowrite). A mapping is an entry in a
 * table of the peer's, written there before the next data that we send.
 */
#include "rs.h"

#include <byteswap.h>
#include <stdlib.h>

static int free_index(const struct rsock *rs) {
    for (int i = 0; i < (int)rs->peer_iomap.length; i++) {
        const struct rs_map *m = rs->maps;
        while (m && m->index != i)
            m = m->next;
        if (!m)
            return i;
    }
    return -1;
}

static int map(struct rsock *rs, void *buf, size_t len, int prot, off_t *offset) {
    int access = IBV_ACCESS_LOCAL_WRITE | (prot & PROT_WRITE ? IBV_ACCESS_REMOTE_WRITE : 0), index = -1;
    if ((prot & PROT_WRITE) && (index = free_index(rs)) < 0)
        return ENOMEM;
    struct rs_map *m = calloc(1, sizeof *m);
    if (!m)
        return ENOMEM;
    m->mr = ibv_reg_mr(rs->qp->pd, buf, len, access);
    if (!m->mr) {
        int err = errno;
        free(m);
        return err;
    }
    if (*offset == -1)
        *offset = (off_t)(uintptr_t)buf;
    m->offset = (uint64_t)*offset;
    m->index = index;
    m->told = index < 0;
    rs->maps_untold |= !m->told;
    struct rs_map **end = &rs->maps;
    while (*end)
        end = &(*end)->next;
    *end = m;
    return 0;
}

RS_EXPORT off_t riomap(int fd, void *buf, size_t len, int prot, int flags, off_t offset) {
    struct rsock *rs = rs_find(fd);
    (void)flags;
    if (!rs)
        return -1;
    if (!rs->qp || (prot & ~(PROT_WRITE | PROT_NONE)) || len > UINT32_MAX)
        return rs_err(EINVAL);
    pthread_mutex_lock(&rs->lock);
    int err = map(rs, buf, len, prot, &offset);
    pthread_mutex_unlock(&rs->lock);
    return err ? rs_err(err) : offset;
}

RS_EXPORT int riounmap(int fd, void *buf, size_t len) {
    struct rsock *rs = rs_find(fd);
    if (!rs)
        return -1;
    int err = EINVAL;
    pthread_mutex_lock(&rs->lock);
    for (struct rs_map **p = &rs->maps; *p; p = &(*p)->next) {
        struct rs_map *m = *p;
        if (m->mr->addr != buf || m->mr->length != len)
            continue;
        *p = m->next;
        err = ibv_dereg_mr(m->mr);
        free(m);
        break;
    }
    pthread_mutex_unlock(&rs->lock);
    return err ? rs_err(err) : 0;
}

void rs_drop_maps(struct rsock *rs) {
    while (rs->maps) {
        struct rs_map *m = rs->maps;
        rs->maps = m->next;
        ibv_dereg_mr(m->mr);
        free(m);
    }
}

/* With the lock, before data: the peer's table learns what was mapped since. 0 or errno. */
int rs_tell_maps(struct rsock *rs, int flags) {
    for (struct rs_map *m = rs->maps; m; m = m->next) {
        if (m->told)
            continue;
        int err = rs_wait(rs, rs_can_send, rs_nonblocking(rs, flags), -1);
        if (err)
            return err;
        if (!rs->write_open)
            return ECONNRESET;
        struct rs_iomap e = {m->offset, {(uintptr_t)m->mr->addr, m->mr->rkey, (uint32_t)m->mr->length}};
        if (rs->swap)
            e = (struct rs_iomap){bswap_64(e.offset),
                                  {bswap_64(e.sge.addr), bswap_32(e.sge.key), bswap_32(e.sge.length)}};
        rs->sent++;
        err = rs_post_write(rs, IBV_WR_RDMA_WRITE_WITH_IMM, &e, sizeof e, RS_IMM(RS_OP_IOMAP, m->index),
                            rs->peer_iomap.addr + (uint64_t)m->index * sizeof e, rs->peer_iomap.key);
        if (err)
            return err;
        m->told = true;
    }
    rs->maps_untold = false;
    return 0;
}

/* The peer's mapping that holds the offset. Its entries are written by the peer: copied, then used. */
static bool find(struct rsock *rs, uint64_t offset, struct rs_iomap *out) {
    for (uint32_t i = 0; i < rs->iomap_size; i++) {
        *out = *(volatile struct rs_iomap *)&rs->target->iomap[i];
        if (offset >= out->offset && offset - out->offset < out->sge.length)
            return true;
    }
    return false;
}

RS_EXPORT size_t riowrite(int fd, const void *buf, size_t count, off_t offset, int flags) {
    struct rsock *rs = rs_find(fd);
    const uint8_t *data = buf;
    size_t done = 0;
    uint32_t chunk = RS_CHUNK_FIRST;
    int err = 0;

    if (!rs)
        return (size_t)-1;
    if (!rs->qp)
        return (size_t)rs_err(ENOTCONN);
    pthread_mutex_lock(&rs->lock);
    if (rs->maps_untold)
        err = rs_tell_maps(rs, flags);
    while (!err && done < count) {
        struct rs_iomap to;
        uint64_t at = (uint64_t)offset + done;
        if (!rs_can_send(rs) && (err = rs_wait(rs, rs_can_send, rs_nonblocking(rs, flags), -1)))
            break;
        if (!rs->write_open) {
            err = ECONNRESET;
            break;
        }
        if (!find(rs, at, &to)) { /* as far as the peer has mapped */
            err = done ? 0 : EFAULT;
            break;
        }
        uint64_t room = to.sge.length - (at - to.offset);
        uint32_t n = count - done < chunk ? (uint32_t)(count - done) : chunk;
        if (n > room)
            n = (uint32_t)room;
        if (n > rs->inline_max && n > rs->s_free)
            n = rs->s_free;
        err = rs_post_write(rs, IBV_WR_RDMA_WRITE, data + done, n, 0, to.sge.addr + (at - to.offset), to.sge.key);
        done += n;
        if (chunk < RS_CHUNK_MOST)
            chunk *= 2;
    }
    pthread_mutex_unlock(&rs->lock);
    return err && !done ? (size_t)rs_err(err) : done;
}
