/* SPDX-License-Identifier: Apache-2.0
 *
 * assist.c: the copy thread (mode 3 of DMA). Where the daemon is not allowed to read and write this program's memory
 * (seccomp, Yama, another pid namespace), a thread in here does it at the daemon's word, through a memfd that both have
 * mapped (mr_abi.h, section 3). It exists only there: in modes 1 and 2 no thread of this library runs.
 *
 * The thread never touches the program's memory itself: it lets the kernel copy between it and the memfd (preadv,
 * pwritev), which answers EFAULT where the memory is gone or has not the rights, and needs no right that a filter would
 * refuse. All signals are blocked in it.
 */
#include "mr.h"

#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#define BATCH       64u           /* descriptors copied by one system call */
#define STACK_BYTES (256u * 1024) /* of address space; sanitizers want that much */
#define PEEKS       100           /* looks for work before it yields … */
#define YIELDS      10            /* … and yields before it sleeps */

struct mr_assist_thread {
    struct mr_assist_page *page;
    int fd;
    pthread_t thread;
    pthread_mutex_t copying; /* held while bytes move: who deregisters memory waits for that */
    _Atomic int stop;
    uint32_t next; /* descriptor */
    uint32_t failed_call;
    bool failed;
};

static void wake(uint32_t *word) {
    __atomic_fetch_add(word, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* ------------------------------------------------------------------------------------------------------ the thread */

static bool has_work(struct mr_assist_thread *t) {
    return __atomic_load_n(&t->page->prod, __ATOMIC_SEQ_CST) != t->next || atomic_load(&t->stop);
}

static void wait_for_work(struct mr_assist_thread *t) {
    for (int i = 0; i < PEEKS; i++) {
        if (has_work(t))
            return;
    }
    for (int i = 0; i < YIELDS; i++) {
        if (has_work(t))
            return;
        sched_yield();
    }
    while (!has_work(t)) {
        uint32_t bell = __atomic_load_n(&t->page->bell, __ATOMIC_SEQ_CST);
        __atomic_store_n(&t->page->asleep, 1, __ATOMIC_SEQ_CST);
        if (!has_work(t))
            syscall(SYS_futex, &t->page->bell, FUTEX_WAIT, bell, NULL, NULL, 0);
        __atomic_store_n(&t->page->asleep, 0, __ATOMIC_SEQ_CST);
    }
}

struct batch {
    struct mr_assist_desc *desc[BATCH];
    struct iovec iov[2 * BATCH]; /* the program's memory, and what fills the gaps between the pieces in the memfd */
    int n, iovs;
    uint32_t off, end;
    bool write;
    uint8_t gap[8];
};

/* True when the descriptor goes on where the batch ends. */
static bool joins(const struct batch *b, const struct mr_assist_desc *d) {
    return !b->n || (b->write == !!d->write && d->off - b->end < sizeof b->gap && b->desc[0]->call == d->call);
}

static void join(struct batch *b, struct mr_assist_desc *d) {
    if (!b->n) {
        b->write = d->write;
        b->off = b->end = d->off;
    }
    if (d->off != b->end)
        b->iov[b->iovs++] = (struct iovec){b->gap, d->off - b->end};
    b->iov[b->iovs++] = (struct iovec){(void *)(uintptr_t)d->addr, d->len};
    b->end = d->off + d->len;
    b->desc[b->n++] = d;
}

static void finish(struct mr_assist_desc *d, uint32_t state) {
    __atomic_store_n(&d->state, state, __ATOMIC_RELEASE);
}

static ssize_t move(struct mr_assist_thread *t, struct batch *b) {
    ssize_t n;
    if (b->write)
        n = preadv(t->fd, b->iov, b->iovs, b->off);
    else
        n = pwritev(t->fd, b->iov, b->iovs, b->off);
    return n < 0 ? 0 : n;
}

/* Copies a batch. A short count is a fault in the first piece that it does not cover: what follows of the same call is
 * left to the daemon to ask for again. */
static void copy(struct mr_assist_thread *t, struct batch *b) {
    uint32_t reached = b->n ? b->off + (uint32_t)move(t, b) : 0;
    for (int i = 0; i < b->n; i++) {
        struct mr_assist_desc *d = b->desc[i];
        if (t->failed && t->failed_call == d->call) {
            finish(d, MR_ASSIST_SKIPPED);
        } else if (d->off + d->len <= reached) {
            finish(d, MR_ASSIST_DONE);
        } else {
            t->failed = true;
            t->failed_call = d->call;
            finish(d, MR_ASSIST_FAULT);
        }
    }
}

/* Does what was posted up to prod, at most a batch. */
static void work(struct mr_assist_thread *t, uint32_t prod) {
    struct batch b = {.n = 0};
    uint32_t from = t->next;

    pthread_mutex_lock(&t->copying); /* what was taken cannot be taken back: mr_assist_settle waits for it, too */
    while (t->next != prod && b.n < (int)BATCH) {
        struct mr_assist_desc *d = &t->page->desc[t->next % MR_ASSIST_DESCS];
        uint32_t posted = MR_ASSIST_POSTED;
        if (!joins(&b, d))
            break;
        t->next++;
        if (!__atomic_compare_exchange_n(&d->state, &posted, MR_ASSIST_TAKEN, false, __ATOMIC_SEQ_CST,
                                         __ATOMIC_SEQ_CST))
            continue; /* cancelled */
        if (t->failed && t->failed_call == d->call)
            finish(d, MR_ASSIST_SKIPPED);
        else
            join(&b, d);
    }
    copy(t, &b);
    pthread_mutex_unlock(&t->copying);
    __atomic_fetch_add(&t->page->done, t->next - from, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&t->page->waiting, __ATOMIC_SEQ_CST))
        syscall(SYS_futex, &t->page->done, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static void *serve(void *arg) {
    struct mr_assist_thread *t = arg;
    while (!atomic_load(&t->stop)) {
        uint32_t prod = __atomic_load_n(&t->page->prod, __ATOMIC_SEQ_CST);
        if (prod == t->next)
            wait_for_work(t);
        else
            work(t, prod);
    }
    return NULL;
}

/* ------------------------------------------------------------------------------------------------- start and end */

static int make_area(struct mr_assist_thread *t) {
    void *p;
    t->fd = mr_memfd(MR_ASSIST_BYTES, &p);
    if (t->fd < 0)
        return -t->fd;
    t->page = p;
    madvise(p, MR_ASSIST_BYTES, MADV_DONTFORK);
    memset(p, 0, MR_ASSIST_BYTES); /* the pages are this program's, not of who touches them first */
    t->page->magic = MR_ABI_MAGIC;
    return 0;
}

static int start_thread(struct mr_assist_thread *t) {
    pthread_attr_t attr;
    sigset_t all, before;
    int err;

    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    err = pthread_create(&t->thread, &attr, serve, t);
    if (err == EINVAL) /* a program with much thread-local memory */
        err = pthread_create(&t->thread, NULL, serve, t);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    if (!err)
        pthread_setname_np(t->thread, "mr-assist");
    return err;
}

static void drop_area(struct mr_assist_thread *t) {
    if (t->page)
        munmap(t->page, MR_ASSIST_BYTES);
    if (t->fd >= 0)
        close(t->fd);
    pthread_mutex_destroy(&t->copying);
    free(t);
}

int mr_assist_start(struct mr_ctx *ctx) {
    struct mr_assist_thread *t = calloc(1, sizeof *t);
    if (!t)
        return ENOMEM;
    t->fd = -1;
    pthread_mutex_init(&t->copying, NULL);
    int err = make_area(t);
    if (!err)
        err = start_thread(t);
    if (err) {
        drop_area(t);
        return err;
    }
    ctx->assist = t;
    struct mr_assist req = {.bytes = MR_ASSIST_BYTES};
    struct mr_hdr rep;
    err = mr_conn_call(&ctx->conn, MR_OP_ASSIST, &req, sizeof req, t->fd, &rep, sizeof rep, NULL, 0);
    if (err) {
        mr_log("a copy thread for the daemon: %s", strerror(err));
        mr_assist_stop(ctx);
    }
    return err;
}

/* Ends the thread. The daemon is told, so that it waits for nothing more. */
void mr_assist_stop(struct mr_ctx *ctx) {
    struct mr_assist_thread *t = ctx->assist;
    if (!t)
        return;
    ctx->assist = NULL;
    atomic_store(&t->stop, 1);
    __atomic_store_n(&t->page->gone, 1, __ATOMIC_SEQ_CST);
    wake(&t->page->bell);
    pthread_join(t->thread, NULL);
    wake(&t->page->done);
    drop_area(t);
}

/* In a forked child: the thread is its parent's, and so is the memory, which was not even inherited. */
void mr_assist_forked(struct mr_ctx *ctx) {
    if (!ctx->assist)
        return;
    ctx->assist->page = NULL;
    drop_area(ctx->assist);
    ctx->assist = NULL;
}

/* Returns when no copy is under way that was begun before: memory that was deregistered is touched no more, even when
 * the daemon had given up waiting. */
void mr_assist_settle(struct mr_ctx *ctx) {
    if (!ctx->assist)
        return;
    pthread_mutex_lock(&ctx->assist->copying);
    pthread_mutex_unlock(&ctx->assist->copying);
}
