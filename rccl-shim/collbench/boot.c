/* SPDX-License-Identifier: Apache-2.0
 *
 * boot.c: ranks find each other over TCP. Rank 0 listens, the others connect; everything goes through rank 0.
 */
#include "coll.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int fds[RANKS_MAX]; /* rank 0: of the others; others: [0] */

static void all(int fd, void *data, size_t n, bool out, int rank) {
    char *p = data;
    while (n) {
        ssize_t r = out ? send(fd, p, n, MSG_NOSIGNAL) : recv(fd, p, n, 0);
        if (r < 0 && errno == EINTR)
            continue;
        if (r <= 0)
            die("rank %d is gone", rank);
        p += r;
        n -= (size_t)r;
    }
}

static struct addrinfo *address(void) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST}, *list;
    char host[256];
    const char *colon = strrchr(opt.root, ':');
    if (!colon || (size_t)(colon - opt.root) >= sizeof host)
        die("--root %s: HOST:PORT is wanted", opt.root);
    memcpy(host, opt.root, (size_t)(colon - opt.root));
    host[colon - opt.root] = 0;
    int e = getaddrinfo(host, colon + 1, &hints, &list);
    if (e)
        die("%s: %s", opt.root, gai_strerror(e));
    return list;
}

static void options_of(int fd) {
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

static void serve(void) {
    struct addrinfo *a = address();
    int one = 1, s = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (s < 0 || bind(s, a->ai_addr, a->ai_addrlen) || listen(s, RANKS_MAX))
        die("cannot listen at %s: %s", opt.root, strerror(errno));
    freeaddrinfo(a);
    for (int i = 1; i < opt.ranks; i++) {
        int rank = 0, fd = accept4(s, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0)
            die("accept: %s", strerror(errno));
        options_of(fd);
        all(fd, &rank, sizeof rank, false, -1);
        if (rank < 1 || rank >= opt.ranks || fds[rank])
            die("there are two ranks %d, or none", rank);
        fds[rank] = fd;
    }
    close(s);
}

static void join(void) {
    struct addrinfo *a = address();
    double until = now_s() + 20;
    int fd = -1;
    for (;;) {
        fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd >= 0 && !connect(fd, a->ai_addr, a->ai_addrlen))
            break;
        if (now_s() > until)
            die("rank 0 at %s: %s", opt.root, strerror(errno));
        close(fd);
        usleep(50000);
    }
    freeaddrinfo(a);
    options_of(fd);
    all(fd, &opt.rank, sizeof opt.rank, true, 0);
    fds[0] = fd;
}

void boot_open(void) {
    if (opt.ranks > 1)
        opt.rank ? join() : serve();
}

void boot_close(void) {
    for (int r = 0; r < opt.ranks; r++)
        if (fds[r])
            close(fds[r]);
}

void boot_allgather(const void *mine, size_t n, void *to) {
    memcpy((char *)to + (size_t)opt.rank * n, mine, n);
    if (opt.rank) {
        all(fds[0], (void *)(uintptr_t)mine, n, true, 0);
        all(fds[0], to, n * (size_t)opt.ranks, false, 0);
        return;
    }
    for (int r = 1; r < opt.ranks; r++)
        all(fds[r], (char *)to + (size_t)r * n, n, false, r);
    for (int r = 1; r < opt.ranks; r++)
        all(fds[r], to, n * (size_t)opt.ranks, true, r);
}

/* While connections are made nobody else tells that a rank is gone: who accepts cannot know whom he waits for. */
void boot_check(void) {
    for (int r = 0; r < opt.ranks; r++) {
        char byte;
        if (fds[r] && recv(fds[r], &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0)
            die("rank %d is gone", r);
    }
}

void boot_barrier(void) {
    char mine = 1, theirs[RANKS_MAX];
    boot_allgather(&mine, 1, theirs);
}
