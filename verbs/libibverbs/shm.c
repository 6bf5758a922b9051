/* SPDX-License-Identifier: Apache-2.0
 *
 * shm.c: the shared memory of a context: one sealed memfd, its allocator and the numbers of its doorbells.
 *
 * The file is large and sparse: pages cost nothing until a ring uses them, and they are given back when it is freed.
 * It is sealed before the daemon sees it, because a file that can shrink under a mapping is a SIGBUS for the daemon.
 */
#include "mr.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8u
#endif

#define ARENA_BYTES       (16ull << 30)
#define ARENA_BYTES_LEAST MR_CTX_BYTES_MIN

static int make_file(void) {
    int fd = memfd_create("mroce", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0 && errno == EACCES) /* vm.memfd_noexec = 2 */
        fd = memfd_create("mroce", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
    return fd;
}

/* Sizes the file as large as this process may have it, and maps it. */
static int size_and_map(struct mr_arena *a) {
    struct rlimit lim;
    uint64_t bytes = ARENA_BYTES;
    /* growing a file beyond this limit is a signal that kills, not an error */
    if (!getrlimit(RLIMIT_FSIZE, &lim) && lim.rlim_cur != RLIM_INFINITY)
        while (bytes > lim.rlim_cur)
            bytes >>= 1;
    for (; bytes >= ARENA_BYTES_LEAST; bytes >>= 1) {
        if (ftruncate(a->fd, (off_t)bytes))
            continue;
        void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, a->fd, 0);
        if (p == MAP_FAILED)
            continue;
        a->base = p;
        a->bytes = bytes;
        madvise(p, bytes, MADV_DONTDUMP);
        return 0;
    }
    return ENOMEM;
}

static int seal(int fd) {
    return fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) ? errno : 0;
}

int mr_memfd(uint64_t bytes, void **map) {
    struct rlimit lim;
    int fd = make_file(), err = errno;

    if (fd < 0)
        return -err;
    if (!getrlimit(RLIMIT_FSIZE, &lim) && bytes > lim.rlim_cur)
        err = EFBIG;
    else if (ftruncate(fd, (off_t)bytes))
        err = errno;
    else
        err = seal(fd);
    if (!err) {
        *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (*map != MAP_FAILED)
            return fd;
        err = errno;
    }
    *map = NULL;
    close(fd);
    return -err;
}

int mr_arena_make(struct mr_arena *a) {
    int err;

    memset(a, 0, sizeof *a);
    pthread_mutex_init(&a->lock, NULL);
    a->fd = make_file();
    if (a->fd < 0)
        return errno;
    err = size_and_map(a);
    if (!err)
        err = seal(a->fd);
    a->free = err ? NULL : calloc(1, sizeof *a->free);
    a->bells = err ? NULL : calloc(MR_MAX_DOORBELLS / 64, sizeof(uint64_t));
    if (!a->free || !a->bells) {
        mr_arena_drop(a);
        return err ? err : ENOMEM;
    }
    a->free->off = MR_CTX_PAGE_BYTES;
    a->free->len = a->bytes - MR_CTX_PAGE_BYTES;
    return 0;
}

void mr_arena_drop(struct mr_arena *a) {
    while (a->free) {
        struct mr_extent *e = a->free;
        a->free = e->next;
        free(e);
    }
    free(a->bells);
    if (a->base)
        munmap(a->base, a->bytes);
    if (a->fd >= 0)
        close(a->fd);
    a->bells = NULL;
    a->base = NULL;
    a->fd = -1;
}

static uint64_t pages(uint64_t len) {
    return (len + MR_RING_ALIGN - 1) & ~(uint64_t)(MR_RING_ALIGN - 1);
}

/* First fit; the list is sorted by offset. */
uint64_t mr_arena_alloc(struct mr_arena *a, uint64_t len) {
    uint64_t off = 0;

    len = pages(len);
    pthread_mutex_lock(&a->lock);
    for (struct mr_extent **p = &a->free; *p; p = &(*p)->next) {
        struct mr_extent *e = *p;
        if (e->len < len)
            continue;
        off = e->off;
        e->off += len;
        e->len -= len;
        if (!e->len) {
            *p = e->next;
            free(e);
        }
        break;
    }
    pthread_mutex_unlock(&a->lock);
    return off;
}

void mr_arena_free(struct mr_arena *a, uint64_t off, uint64_t len) {
    if (!off)
        return;
    len = pages(len);
    if (syscall(SYS_fallocate, a->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, off, len))
        memset(a->base + off, 0, len); /* the next user counts on zeros */
    struct mr_extent *fresh = malloc(sizeof *fresh);
    if (!fresh)
        return; /* the extent is lost until the context is closed */
    pthread_mutex_lock(&a->lock);
    struct mr_extent *prev = NULL, *next = a->free;
    while (next && next->off < off) {
        prev = next;
        next = next->next;
    }
    *fresh = (struct mr_extent){.off = off, .len = len, .next = next};
    if (prev)
        prev->next = fresh;
    else
        a->free = fresh;
    if (next && off + len == next->off) {
        fresh->len += next->len;
        fresh->next = next->next;
        free(next);
    }
    if (prev && prev->off + prev->len == off) {
        prev->len += fresh->len;
        prev->next = fresh->next;
        free(fresh);
    }
    pthread_mutex_unlock(&a->lock);
}

/* The lowest free number: the daemon then has few words to look at. */
int mr_bell_alloc(struct mr_arena *a, uint32_t *bell) {
    int err = ENOMEM;
    pthread_mutex_lock(&a->lock);
    for (uint32_t w = 0; w < MR_MAX_DOORBELLS / 64; w++) {
        if (a->bells[w] == ~0ull)
            continue;
        uint32_t bit = (uint32_t)__builtin_ctzll(~a->bells[w]);
        a->bells[w] |= 1ull << bit;
        *bell = w * 64 + bit;
        err = 0;
        break;
    }
    pthread_mutex_unlock(&a->lock);
    return err;
}

void mr_bell_free(struct mr_arena *a, uint32_t bell) {
    pthread_mutex_lock(&a->lock);
    a->bells[bell / 64] &= ~(1ull << (bell % 64));
    pthread_mutex_unlock(&a->lock);
}
