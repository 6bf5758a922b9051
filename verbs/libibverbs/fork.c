/* SPDX-License-Identifier: Apache-2.0
 *
 * fork.c: what a forked child must not inherit, and the guard page.
 *
 * A child shares the parent's descriptors and, worse, its mapped queues: posting would be posting into the parent's
 * NIC. In the child every context is marked gone, its socket is closed and its queues are replaced by zero pages.
 * The child may open the device for itself. (A raw clone() or vfork() runs no handlers: for those the daemon's pidfd
 * and the guard are the protection.)
 */
#include "mr.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static struct mr_ctx *list;
static pthread_once_t watch_once = PTHREAD_ONCE_INIT;

static void before(void) {
    pthread_mutex_lock(&list_lock);
    pthread_mutex_lock(&mr_devices_lock);
}

static void in_parent(void) {
    pthread_mutex_unlock(&mr_devices_lock);
    pthread_mutex_unlock(&list_lock);
}

static void in_child(void) {
    for (struct mr_ctx *c = list; c; c = c->next) {
        c->forked = true;
        atomic_store(&c->gone, 1);
        if (c->conn.fd >= 0)
            close(c->conn.fd);
        c->conn.fd = -1;
        c->v.context.cmd_fd = -1;
        pthread_mutex_init(&c->conn.lock, NULL); /* another thread of the parent may have held it */
        pthread_mutex_init(&c->table_lock, NULL);
        pthread_mutex_init(&c->mr_lock, NULL);
        pthread_mutex_init(&c->arena.lock, NULL);
        pthread_mutex_init(&c->v.context.mutex, NULL);
        c->users = 0; /* threads of the parent */
        if (c->arena.base)
            mmap(c->arena.base, c->arena.bytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
        if (c->arena.fd >= 0) /* giving pages back would punch holes into the parent's queues */
            close(c->arena.fd);
        c->arena.fd = -1;
        mr_assist_forked(c);
    }
    list = NULL;
    mr_guard_forget();
    pthread_mutex_init(&list_lock, NULL);
    pthread_mutex_init(&mr_devices_lock, NULL);
}

static void watch(void) {
    pthread_atfork(before, in_parent, in_child);
}

/* Registered at first use, not at load: most programs that link this library never touch a NIC. */
void mr_fork_watch(void) {
    pthread_once(&watch_once, watch);
}

void mr_fork_add(struct mr_ctx *ctx) {
    pthread_mutex_lock(&list_lock);
    ctx->next = list;
    list = ctx;
    pthread_mutex_unlock(&list_lock);
}

void mr_fork_del(struct mr_ctx *ctx) {
    pthread_mutex_lock(&list_lock);
    for (struct mr_ctx **p = &list; *p; p = &(*p)->next)
        if (*p == ctx) {
            *p = ctx->next;
            break;
        }
    pthread_mutex_unlock(&list_lock);
}

/* ---------------------------------------------------------------------------------------------------- guard */

static uint64_t guard_addr, guard_nonce;

/* The guard page: one per process, at a random address, with a random number in it. The daemon reads it as the first
 * segment of every DMA call; another image under the same pid does not have it. A forked child must not have it
 * either (DONTFORK): it makes its own. */
void mr_guard(uint64_t *addr, uint64_t *nonce) {
    pthread_mutex_lock(&list_lock);
    for (int i = 0; !guard_addr && i < 64; i++) {
        uint64_t r[2];
        if (getrandom(r, sizeof r, 0) != sizeof r)
            break;
        /* anywhere in a range that holds no program, heap, stack or library */
        void *want = (void *)((r[0] & 0x3ffffffff000ull) | 0x100000000000ull);
        size_t page = (size_t)sysconf(_SC_PAGESIZE);
#ifdef __SANITIZE_THREAD__ /* which keeps that range for itself */
        void *p = want = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
#else
        void *p = mmap(want, page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
#endif
        if (p == MAP_FAILED)
            continue;
        if (p != want) { /* kernels before 4.17 take the address as a hint */
            munmap(p, page);
            continue;
        }
        *(uint64_t *)p = r[1];
        madvise(p, page, MADV_DONTFORK);
        guard_nonce = r[1];
        guard_addr = (uint64_t)(uintptr_t)p;
    }
    *addr = guard_addr;
    *nonce = guard_nonce;
    pthread_mutex_unlock(&list_lock);
}

void mr_guard_forget(void) {
    guard_addr = guard_nonce = 0;
}

/* Nothing is pinned, so nothing has to be kept from a child: fork is always safe. */
MR_EXPORT int ibv_fork_init(void) {
    return 0;
}

MR_EXPORT enum ibv_fork_status ibv_is_fork_initialized(void) {
    return IBV_FORK_UNNEEDED;
}

MR_EXPORT int ibv_dontfork_range(void *base, size_t size);
MR_EXPORT int ibv_dofork_range(void *base, size_t size);

int ibv_dontfork_range(void *base, size_t size) {
    (void)base;
    (void)size;
    return 0;
}

int ibv_dofork_range(void *base, size_t size) {
    (void)base;
    (void)size;
    return 0;
}
