/* SPDX-License-Identifier: Apache-2.0
 *
 * vma.c: is a range of memory there, and with the rights that a registration needs? Nothing is pinned or touched:
 * the kernel's list of mappings is walked (PROCMAP_QUERY, Linux 6.11, 8 us for 1 GiB; else /proc/self/maps), and one
 * byte of the last page of each mapping is read, which finds files shorter than their mapping and device memory.
 */
#include "mr.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/uio.h>
#include <unistd.h>

/* struct procmap_query of linux/fs.h, newer than the headers here. */
struct procmap_query_v1 {
    uint64_t size, query_flags, query_addr;
    uint64_t vma_start, vma_end, vma_flags, vma_page_size, vma_offset, inode;
    uint32_t dev_major, dev_minor, vma_name_size, build_id_size;
    uint64_t vma_name_addr, build_id_addr;
};
#define PROCMAP_QUERY_V1 _IOWR('f', 17, struct procmap_query_v1)
#define VMA_READABLE     1u
#define VMA_WRITABLE     2u

/* Reads one byte through the kernel, as the daemon will. Where seccomp forbids that, there is nothing to learn. */
static int try_byte(uintptr_t at) {
    char b;
    struct iovec to = {&b, 1}, from = {(void *)at, 1};
    if (process_vm_readv(getpid(), &to, 1, &from, 1, 0) == 1)
        return 0;
    return errno == EFAULT ? EFAULT : 0;
}

static int check_piece(uintptr_t from, uintptr_t to, unsigned have, bool write) {
    unsigned need = VMA_READABLE | (write ? VMA_WRITABLE : 0);
    (void)from;
    if ((have & need) != need)
        return EFAULT;
    return try_byte(to - 1);
}

/* Returns 0, EFAULT, or ENOTTY when the kernel does not have the query. */
static int walk_query(uintptr_t at, uintptr_t end, bool write) {
    int err = 0, fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return ENOTTY;
    while (!err && at < end) {
        struct procmap_query_v1 q = {.size = sizeof q, .query_addr = at};
        if (ioctl(fd, PROCMAP_QUERY_V1, &q)) {
            err = errno == ENOENT ? EFAULT : ENOTTY; /* a hole, or an old kernel */
            break;
        }
        err = check_piece(at, q.vma_end < end ? q.vma_end : end, (unsigned)q.vma_flags, write);
        at = q.vma_end;
    }
    close(fd);
    return err;
}

static int walk_maps(uintptr_t at, uintptr_t end, bool write) {
    FILE *f = fopen("/proc/self/maps", "re");
    char line[512];
    int err = EFAULT;

    if (!f)
        return 0; /* no /proc: the first DMA will tell */
    while (fgets(line, sizeof line, f)) {
        unsigned long start, stop;
        char r, w;
        if (!strchr(line, '\n')) { /* a long path: skip its rest */
            int c;
            while ((c = fgetc(f)) != EOF && c != '\n')
                ;
        }
        if (sscanf(line, "%lx-%lx %c%c", &start, &stop, &r, &w) != 4 || stop <= at)
            continue;
        if (start > at)
            break; /* a hole */
        unsigned have = (r == 'r' ? VMA_READABLE : 0) | (w == 'w' ? VMA_WRITABLE : 0);
        err = check_piece(at, stop < end ? stop : end, have, write);
        if (err || stop >= end)
            break;
        at = stop;
        err = EFAULT;
    }
    fclose(f);
    return err;
}

int mr_check_range(const void *addr, size_t len, bool write) {
    uintptr_t at = (uintptr_t)addr, end = at + len;
    if (end < at)
        return EINVAL;
    int err = walk_query(at, end, write);
    return err == ENOTTY ? walk_maps(at, end, write) : err;
}

/* IBV_ACCESS_HUGETLB promises that all pages are huge. Where the kernel cannot be asked, it is believed. */
int mr_check_huge(const void *addr, size_t len) {
    uintptr_t at = (uintptr_t)addr, end = at + len;
    int err = 0, fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    while (!err && at < end) {
        struct procmap_query_v1 q = {.size = sizeof q, .query_addr = at};
        if (ioctl(fd, PROCMAP_QUERY_V1, &q))
            break; /* nothing there yet, or an old kernel */
        if (q.vma_page_size <= (uint64_t)sysconf(_SC_PAGESIZE))
            err = EINVAL;
        at = q.vma_end;
    }
    close(fd);
    return err;
}
