/* SPDX-License-Identifier: Apache-2.0
 *
 * addrinfo.c: rdma_getaddrinfo, by getaddrinfo. Routes are not looked up: a RoCE route is its addresses.
 */
#include "cm.h"

#include <netdb.h>
#include <stdlib.h>

static void hints_to_host(struct addrinfo *to, const struct rdma_addrinfo *from, bool passive) {
    memset(to, 0, sizeof *to);
    if (passive)
        to->ai_flags |= AI_PASSIVE;
    if (!from)
        return;
    if (from->ai_flags & RAI_NUMERICHOST)
        to->ai_flags |= AI_NUMERICHOST;
    if (from->ai_flags & RAI_FAMILY || from->ai_family)
        to->ai_family = from->ai_family;
    if (from->ai_qp_type == IBV_QPT_UD)
        to->ai_socktype = SOCK_DGRAM;
    else if (from->ai_qp_type)
        to->ai_socktype = SOCK_STREAM;
}

static struct sockaddr *copy_addr(const struct sockaddr *a, socklen_t len) {
    struct sockaddr *s = calloc(1, len > sizeof(struct sockaddr_storage) ? len : sizeof(struct sockaddr_storage));
    return s ? memcpy(s, a, len) : NULL;
}

static int fill(struct rdma_addrinfo *rai, const struct addrinfo *ai, const struct rdma_addrinfo *hints) {
    bool passive = hints && hints->ai_flags & RAI_PASSIVE;
    rai->ai_flags = passive ? RAI_PASSIVE : 0;
    rai->ai_family = ai->ai_family;
    rai->ai_qp_type = hints && hints->ai_qp_type ? hints->ai_qp_type : IBV_QPT_RC;
    if (hints && !hints->ai_qp_type && hints->ai_port_space == RDMA_PS_UDP)
        rai->ai_qp_type = IBV_QPT_UD;
    rai->ai_port_space = hints && hints->ai_port_space   ? hints->ai_port_space
                         : rai->ai_qp_type == IBV_QPT_UD ? RDMA_PS_UDP
                                                         : RDMA_PS_TCP;
    struct sockaddr *a = copy_addr(ai->ai_addr, ai->ai_addrlen);
    if (!a)
        return ENOMEM;
    char *name = ai->ai_canonname ? strdup(ai->ai_canonname) : NULL;
    if (passive) {
        rai->ai_src_addr = a;
        rai->ai_src_len = ai->ai_addrlen;
        rai->ai_src_canonname = name;
        return 0;
    }
    rai->ai_dst_addr = a;
    rai->ai_dst_len = ai->ai_addrlen;
    rai->ai_dst_canonname = name;
    if (hints && hints->ai_src_len && hints->ai_src_addr) {
        rai->ai_src_addr = copy_addr(hints->ai_src_addr, hints->ai_src_len);
        rai->ai_src_len = hints->ai_src_len;
        if (!rai->ai_src_addr)
            return ENOMEM;
    }
    return 0;
}

/* errno of what getaddrinfo says. */
static int eai_errno(int e) {
    switch (e) {
    case EAI_SYSTEM:
        return errno;
    case EAI_MEMORY:
        return ENOMEM;
    case EAI_AGAIN:
        return EAGAIN;
    case EAI_FAMILY:
    case EAI_ADDRFAMILY:
        return EAFNOSUPPORT;
    case EAI_NONAME:
    case EAI_NODATA:
        return ENODATA;
    default:
        return EINVAL;
    }
}

static int copy_into(struct sockaddr **to, socklen_t *to_len, const struct sockaddr *from, socklen_t len) {
    if (!from || !len)
        return 0;
    *to = copy_addr(from, len);
    *to_len = *to ? len : 0;
    return *to ? 0 : ENOMEM;
}

/* Without a name: what the hints have, be it one address only (pyverbs describes a group by a source). */
static int from_hints(const struct rdma_addrinfo *h, struct rdma_addrinfo *rai) {
    rai->ai_flags = h->ai_flags;
    rai->ai_family = h->ai_family;
    rai->ai_qp_type = h->ai_qp_type;
    rai->ai_port_space = h->ai_port_space;
    int err = copy_into(&rai->ai_dst_addr, &rai->ai_dst_len, h->ai_dst_addr, h->ai_dst_len);
    return err ? err : copy_into(&rai->ai_src_addr, &rai->ai_src_len, h->ai_src_addr, h->ai_src_len);
}

MR_EXPORT int rdma_getaddrinfo(const char *node, const char *service, const struct rdma_addrinfo *hints,
                               struct rdma_addrinfo **res) {
    struct addrinfo want, *list = NULL;
    int err = 0;

    if (!res || (!node && !service && !hints))
        return mr_minus1(EINVAL);
    struct rdma_addrinfo *rai = calloc(1, sizeof *rai);
    if (!rai)
        return mr_minus1(ENOMEM);
    if (node || service) {
        hints_to_host(&want, hints, hints && hints->ai_flags & RAI_PASSIVE);
        int e = getaddrinfo(node, service, &want, &list);
        err = e ? eai_errno(e) : fill(rai, list, hints);
        if (!e)
            freeaddrinfo(list);
    } else {
        err = from_hints(hints, rai);
    }
    if (err) {
        rdma_freeaddrinfo(rai);
        return mr_minus1(err);
    }
    *res = rai;
    return 0;
}

MR_EXPORT void rdma_freeaddrinfo(struct rdma_addrinfo *res) {
    while (res) {
        struct rdma_addrinfo *r = res;
        res = r->ai_next;
        free(r->ai_src_addr);
        free(r->ai_dst_addr);
        free(r->ai_src_canonname);
        free(r->ai_dst_canonname);
        free(r->ai_route);
        free(r->ai_connect);
        free(r);
    }
}
