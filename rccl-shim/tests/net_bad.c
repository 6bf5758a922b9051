/* SPDX-License-Identifier: Apache-2.0
 *
 * net_bad.c: cases of mr_net in which somebody does what he should not: a code, one line in the log, no crash.
 */
#include "net.h"

#include <arpa/inet.h>
#include <errno.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

/* A call that fails with a code, and says so in one line. */
#define FAILS(call, code)                                                                            \
    do {                                                                                             \
        int before_ = log_lines, got_ = (call);                                                      \
        CHECK(got_ == (code) && log_lines == before_ + 1, "returned %d, %d lines were logged", got_, \
              log_lines - before_);                                                                  \
    } while (0)

void too_many_groups(void) {
    struct pair p;
    pair_open(&p, 0, 1);
    void *r = reg(p.recv, memory + HALF, HALF), *at[9], *mh[9], *request = &p;
    size_t room[9];
    int tags[9];
    for (int i = 0; i < 9; i++)
        at[i] = memory + HALF, mh[i] = r, room[i] = 1, tags[i] = i;
    FAILS(net->irecv(p.recv, 9, at, room, tags, mh, NULL, &request), NN_INTERNAL);
    CHECK(!request, "a request");
    FAILS(net->irecv(p.recv, 0, at, room, tags, mh, NULL, &request), NN_INTERNAL);
    mh[3] = NULL;
    FAILS(net->irecv(p.recv, 8, at, room, tags, mh, NULL, &request), NN_INTERNAL);
    void *s = reg(p.send, memory, HALF);
    transfer(&p, s, r, 5000); /* nothing of it harmed the connection */
    CHECK(net->dereg_mr(p.recv, r) == NN_OK && net->dereg_mr(p.send, s) == NN_OK, "deregister");
    pair_close(&p);
}

void bad_handles(void) {
    struct pair p;
    char bad[NN_HANDLE_BYTES];
    void *comm = &p;
    struct nn_device_handle *dh;
    pair_open(&p, 0, 1);
    memset(bad, 0, sizeof bad);
    FAILS(net->connect(ctx, 0, bad, &comm, &dh), NN_INTERNAL);
    memset(bad, 0xee, sizeof bad);
    FAILS(net->connect(ctx, 0, bad, &comm, &dh), NN_INTERNAL);
    for (size_t i = 0; i < 56; i++) { /* each byte of a good one changed */
        comm = &p;
        memcpy(bad, p.handle, sizeof bad);
        bad[i] ^= 0x20;
        FAILS(net->connect(ctx, 0, bad, &comm, &dh), NN_INTERNAL);
        CHECK(!comm, "byte %zu: a connection", i);
    }
    FAILS(net->connect(ctx, 99, p.handle, &comm, &dh), NN_INTERNAL);
    FAILS(net->listen(ctx, 99, bad, &comm), NN_INTERNAL);
    pair_close(&p);
}

void bad_registration(void) {
    struct pair p;
    void *mh = &p;
    pair_open(&p, 0, 1);
    char *hole = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(hole != MAP_FAILED && !munmap(hole + (512 << 10), 4096), "mmap");
    FAILS(net->reg_mr(p.send, hole, 1 << 20, NN_PTR_HOST, &mh), NN_SYSTEM_ERROR);
    CHECK(!mh && strstr(last_log, strerror(EFAULT)), "%s", last_log);
    FAILS(net->reg_mr(p.send, (void *)4096, 4096, NN_PTR_HOST, &mh), NN_SYSTEM_ERROR);
    FAILS(net->reg_mr(p.send, hole, 0, NN_PTR_HOST, &mh), NN_INTERNAL);
    FAILS(net->reg_mr(p.send, hole, SIZE_MAX, NN_PTR_HOST, &mh), NN_INTERNAL);
    FAILS(net->reg_mr(p.send, NULL, 1, NN_PTR_HOST, &mh), NN_INTERNAL);
    FAILS(net->reg_mr(p.send, hole, 1, 77, &mh), NN_INTERNAL);
    FAILS(net->dereg_mr(p.send, &p), NN_INTERNAL);
    FAILS(net->dereg_mr(p.send, NULL), NN_INTERNAL);
    FAILS(net->reg_mr_dmabuf(p.send, hole, 4096, NN_PTR_GPU, 0, -1, &mh), NN_INTERNAL);
    FAILS(net->reg_mr_dmabuf(p.send, hole, 4096, NN_PTR_GPU, 0, 0, &mh), NN_SYSTEM_ERROR); /* stdin is none */
    munmap(hole, 1 << 20);
    pair_close(&p);
}

/* A part of what is registered is the same region; it goes with the last of them. */
void registration_cache(void) {
    struct pair p;
    pair_open(&p, 0, 1);
    void *whole = reg(p.send, memory, HALF), *part = reg(p.send, memory + 12345, 999),
         *again = reg(p.send, memory, HALF);
    void *beyond = reg(p.send, memory + HALF - 4096, 8192);
    CHECK(part == whole && again == whole && beyond != whole, "%p %p %p %p", whole, part, again, beyond);
    CHECK(!net->dereg_mr(p.send, whole) && !net->dereg_mr(p.send, part), "deregister");
    void *r = reg(p.recv, memory + HALF, HALF);
    transfer(&p, again, r, 10000);
    CHECK(!net->dereg_mr(p.send, again), "deregister");
    FAILS(net->dereg_mr(p.send, again), NN_INTERNAL);
    CHECK(!net->dereg_mr(p.send, beyond) && !net->dereg_mr(p.recv, r), "deregister");
    pair_close(&p);
}

/* Memory behind a descriptor that can be mapped: what a dma-buf of a GPU is to a NIC that can. */
void dmabuf(void) {
    struct pair p;
    void *mh = NULL, *smh, *rr, *sr;
    int fd = memfd_create("mr_net", MFD_CLOEXEC), tag = 0, got = 0;
    size_t room = 8192;
    MUST(fd >= 0 && !ftruncate(fd, 1 << 20), "memfd");
    char *seen = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    pair_open(&p, 0, 1);
    smh = reg(p.send, memory, HALF);
    MUST(seen != MAP_FAILED && net->reg_mr_dmabuf(p.recv, seen, 1 << 20, NN_PTR_HOST, 0, fd, &mh) == NN_OK && mh, "%s",
         last_log);
    void *at = seen + 8192;
    memset(memory, 0x77, 8192);
    MUST(!receive(p.recv, 1, &at, &room, &tag, &mh, &rr) && rr && !send_one(p.send, memory, 8192, 0, smh, &sr) && sr,
         "post");
    CHECK(!wait_for(rr, &got, 10) && got == 8192 && seen[8192] == 0x77 && seen[16383] == 0x77 && !seen[16384], "%d",
          got);
    CHECK(!wait_for(sr, NULL, 10) && !net->dereg_mr(p.recv, mh) && !net->dereg_mr(p.send, smh), "end");
    pair_close(&p);
    munmap(seen, 1 << 20);
    close(fd);
}

/* A message that is longer than its receive: the sender's fault, which the receiver learns, too. */
void too_long(void) {
    struct pair p;
    pair_open(&p, 0, 1);
    void *s = reg(p.send, memory, HALF), *r = reg(p.recv, memory + HALF, HALF), *at = memory + HALF, *rr, *sr = &p;
    size_t room = 100;
    int tag = 0, before = log_lines;
    MUST(!receive(p.recv, 1, &at, &room, &tag, &r, &rr) && rr, "irecv");
    CHECK(send_one(p.send, memory, 101, 0, s, &sr) == NN_BAD_USAGE && !sr && log_lines == before + 1, "%s", last_log);
    CHECK(net->isend(p.send, memory, 1, 0, s, NULL, &sr) == NN_BAD_USAGE, "the connection is not at its end");
    CHECK(wait_for(rr, NULL, 5) == NN_REMOTE_ERROR, "%s", last_log);
    CHECK(net->irecv(p.recv, 1, &at, &room, &tag, &r, NULL, &rr) == NN_REMOTE_ERROR, "the other end is not");
    CHECK(!net->dereg_mr(p.send, s) && !net->dereg_mr(p.recv, r), "deregister");
    pair_close(&p);
}

/* One end closes while the other waits: an error, soon. What had arrived before is still told. */
void closed_under_requests(void) {
    struct pair p;
    for (int sender_closes = 0; sender_closes < 2; sender_closes++) {
        pair_open(&p, 0, 1);
        void *s = reg(p.send, memory, HALF), *r = reg(p.recv, memory + HALF, HALF), *at = memory + HALF, *rr[2], *sr;
        size_t room = 100;
        int tag = 0, got = 0;
        double start;
        MUST(!receive(p.recv, 1, &at, &room, &tag, &r, &rr[0]) && !receive(p.recv, 1, &at, &room, &tag, &r, &rr[1]),
             "irecv");
        MUST(!send_one(p.send, memory, 100, 0, s, &sr) && !wait_for(sr, NULL, 10), "isend");
        CHECK(!net->dereg_mr(p.recv, r), "deregister");
        if (sender_closes) {
            CHECK(!net->dereg_mr(p.send, s), "deregister");
            CHECK(net->close_send(p.send) == NN_OK, "close");
            p.send = NULL;
            start = now_s();
            CHECK(wait_for(rr[0], &got, 10) == NN_OK && got == 100, "what had arrived: %d", got);
            CHECK(wait_for(rr[1], &got, 10) == NN_REMOTE_ERROR, "%s", last_log);
        } else {
            CHECK(net->close_recv(p.recv) == NN_OK, "close");
            p.recv = NULL;
            start = now_s();
            int code = send_one(p.send, memory, 100, 0, s, &sr); /* into the second receive, which has no memory now */
            CHECK((code ? code : wait_for(sr, NULL, 10)) == NN_REMOTE_ERROR, "%d %s", code, last_log);
            CHECK(!net->dereg_mr(p.send, s), "deregister");
        }
        CHECK(now_s() - start < 9, "it took %.1f s", now_s() - start);
        pair_close(&p);
    }
}

static int tcp_to(const char *handle) { /* family, port, address lie behind 32 bytes */
    struct sockaddr_in a = {.sin_family = AF_INET};
    memcpy(&a.sin_port, handle + 34, 2);
    memcpy(&a.sin_addr, handle + 40, 4);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    MUST(fd >= 0 && !connect(fd, (struct sockaddr *)&a, sizeof a), "connect to %s: %m", inet_ntoa(a.sin_addr));
    return fd;
}

/* Who knocks without a handle is dropped, and keeps nobody waiting. */
void stranger_at_the_door(void) {
    struct pair p = {.send = NULL};
    struct nn_device_handle *dh;
    char junk[4096];
    int fd[3];
    MUST(net->listen(ctx, 1, p.handle, &p.listen) == NN_OK, "listen");
    for (int i = 0; i < 3; i++)
        fd[i] = tcp_to(p.handle);
    memset(junk, 'x', sizeof junk);
    MUST(write(fd[0], junk, sizeof junk) == sizeof junk && write(fd[1], junk, 10) == 10, "write");
    close(fd[2]);
    double until = now_s() + 10;
    while ((!p.send || !p.recv) && now_s() < until) {
        CHECK(p.send || net->connect(ctx, 0, p.handle, &p.send, &dh) == NN_OK, "connect");
        CHECK(p.recv || net->accept(p.listen, &p.recv, &dh) == NN_OK, "accept");
    }
    MUST(p.send && p.recv, "no connection");
    void *s = reg(p.send, memory, HALF), *r = reg(p.recv, memory + HALF, HALF);
    transfer(&p, s, r, 1000);
    CHECK(!net->dereg_mr(p.send, s) && !net->dereg_mr(p.recv, r), "deregister");
    close(fd[0]);
    close(fd[1]);
    pair_close(&p);
}

void nobody_listens(void) {
    struct pair p = {.send = NULL};
    struct nn_device_handle *dh;
    int code = NN_OK, before = log_lines;
    MUST(net->listen(ctx, 1, p.handle, &p.listen) == NN_OK && net->close_listen(p.listen) == NN_OK, "listen");
    double start = now_s();
    while (!code && !p.send && now_s() < start + 10)
        code = net->connect(ctx, 0, p.handle, &p.send, &dh);
    CHECK(code == NN_REMOTE_ERROR && !p.send && log_lines == before + 1 && now_s() - start < 5,
          "%d after %.1f s, %d lines", code, now_s() - start, log_lines - before);
}
