/* SPDX-License-Identifier: Apache-2.0
 *
 * cm_api.c: errors as the man pages have them, events, datagrams, groups, forked children.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "cm_parts.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/wait.h>

static void errors_of_addresses(struct rdma_event_channel *ch) {
    struct rdma_cm_id *a, *b;
    struct sockaddr_in s, d;
    struct sockaddr odd = {.sa_family = AF_UNIX};

    ERR(rdma_create_id(ch, &a, NULL, (enum rdma_port_space)7), EPROTONOSUPPORT);
    OK(rdma_create_id(ch, &a, NULL, RDMA_PS_TCP));
    OK(rdma_create_id(ch, &b, NULL, RDMA_PS_TCP));
    CHECK(!a->verbs && !a->pd && a->qp_type == IBV_QPT_RC && a->channel == ch && !rdma_get_src_port(a));
    ERR(rdma_bind_addr(a, NULL), EINVAL);
    ERR(rdma_bind_addr(a, &odd), EAFNOSUPPORT);
    ERR(rdma_bind_addr(a, at(&s, "192.0.2.1", 0)), ENODEV);
    OK(rdma_bind_addr(a, at(&s, "10.0.0.1", 9000)));
    CHECK(a->verbs && rdma_get_src_port(a) == htons(9000));
    ERR(rdma_bind_addr(a, at(&s, "10.0.0.1", 9001)), EINVAL);
    ERR(rdma_bind_addr(b, at(&s, "10.0.0.1", 9000)), EADDRINUSE);
    OK(rdma_bind_addr(b, at(&s, "10.0.0.2", 9000)));
    ERR(rdma_resolve_addr(a, NULL, NULL, 100), EINVAL);
    ERR(rdma_resolve_addr(a, NULL, &odd, 100), EAFNOSUPPORT);
    ERR(rdma_resolve_route(a, 100), EINVAL);
    ERR(rdma_connect(a, NULL), EINVAL);
    ERR(rdma_accept(a, NULL), EINVAL);
    ERR(rdma_reject(a, NULL, 0), EINVAL);
    ERR(rdma_disconnect(a), EINVAL);
    ERR(rdma_establish(a), EINVAL);
    ERR(rdma_notify(a, IBV_EVENT_COMM_EST), EINVAL);
    ERR(rdma_notify(a, IBV_EVENT_QP_FATAL), EINVAL);
    ERR(rdma_join_multicast(a, at(&d, "239.1.1.1", 0), NULL), EINVAL); /* not a datagram ID */
    ERR(rdma_leave_multicast(a, at(&d, "239.1.1.1", 0)), EADDRNOTAVAIL);
    ERR(rdma_get_request(a, &b), EINVAL);
    OK(rdma_listen(a, 1));
    ERR(rdma_listen(a, 1), EINVAL);
    OK(rdma_destroy_id(a));
    OK(rdma_create_id(ch, &a, NULL, RDMA_PS_TCP));
    OK(rdma_bind_addr(a, at(&s, "10.0.0.1", 9000))); /* free at once */
    OK(rdma_destroy_id(a));
    OK(rdma_destroy_id(b));
}

static void errors_of_parameters(struct rdma_event_channel *ch) {
    struct rdma_cm_id *a = routed(ch, RDMA_PS_TCP, "10.0.0.2", 9002);
    struct rdma_conn_param p = {.private_data = "x", .private_data_len = 57, .qp_num = 5};
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR};
    uint8_t tos = 0x60, timeout = 32;
    int one = 1, mask;
    char big[256] = "";

    p.private_data = big;
    ERR(rdma_connect(a, &p), EINVAL);
    p.private_data_len = 0;
    p.responder_resources = 200;
    ERR(rdma_connect(a, &p), EINVAL);
    ERR(rdma_init_qp_attr(a, &attr, &mask), EINVAL); /* no peer yet */
    attr.qp_state = IBV_QPS_INIT;
    OK(rdma_init_qp_attr(a, &attr, &mask));
    CHECK(mask == (IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) && attr.port_num == 1);
    OK(rdma_set_option(a, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, sizeof tos));
    ERR(rdma_set_option(a, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &one, sizeof one), EINVAL);
    ERR(rdma_set_option(a, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, sizeof timeout), EINVAL);
    ERR(rdma_set_option(a, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &one, sizeof one), EINVAL); /* too late */
    ERR(rdma_set_option(a, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &one, sizeof one), EOPNOTSUPP);
    struct ibv_ece ece = {.vendor_id = 0};
    ERR(rdma_set_local_ece(a, &ece), EINVAL);
    OK(rdma_get_remote_ece(a, &ece));
    OK(rdma_destroy_id(a));
}

static void errors_of_names(void) {
    struct rdma_addrinfo *res, hints = {.ai_flags = RAI_NUMERICHOST};
    ERR(rdma_getaddrinfo(NULL, NULL, NULL, &res), EINVAL);
    ERR(rdma_getaddrinfo("no number", "1", &hints, &res), ENODATA);
    hints.ai_port_space = RDMA_PS_UDP;
    OK(rdma_getaddrinfo("::1", "7", &hints, &res));
    CHECK(res->ai_family == AF_INET6 && res->ai_qp_type == IBV_QPT_UD && res->ai_port_space == RDMA_PS_UDP &&
          res->ai_dst_len == 28);
    rdma_freeaddrinfo(res);
    int n;
    struct ibv_context **list = rdma_get_devices(&n);
    CHECK(list && n == 2 && list[0] && list[1] && !list[2]);
    rdma_free_devices(list);
}

void api_errors(void) {
    struct rdma_event_channel *ch = rdma_create_event_channel();
    struct rdma_cm_event *e;
    CHECK(ch);
    fcntl(ch->fd, F_SETFL, O_NONBLOCK);
    ERR(rdma_get_cm_event(ch, &e), EAGAIN);
    ERR(rdma_ack_cm_event(NULL), EINVAL);
    CHECK(!strcmp(rdma_event_str((enum rdma_cm_event_type)99), "UNKNOWN EVENT"));
    errors_of_addresses(ch);
    errors_of_parameters(ch);
    errors_of_names();
    ERR(rdma_get_cm_event(ch, &e), EAGAIN);
    rdma_destroy_event_channel(ch);
}

/* An ID moves with the events that wait; the old channel has no signal left. */
void migration(void) {
    struct rdma_event_channel *x = rdma_create_event_channel(), *y = rdma_create_event_channel();
    struct rdma_cm_id *a, *b;
    struct sockaddr_in s;
    struct rdma_cm_event *e;
    fcntl(x->fd, F_SETFL, O_NONBLOCK);
    OK(rdma_create_id(x, &a, NULL, RDMA_PS_TCP));
    OK(rdma_create_id(x, &b, NULL, RDMA_PS_TCP));
    OK(rdma_resolve_addr(a, NULL, at(&s, "10.0.0.1", 1), 100));
    OK(rdma_resolve_addr(b, NULL, at(&s, "10.0.0.1", 1), 100));
    OK(rdma_migrate_id(a, y));
    e = expect(y, RDMA_CM_EVENT_ADDR_RESOLVED);
    CHECK(e->id == a && a->channel == y);
    rdma_ack_cm_event(e);
    e = expect(x, RDMA_CM_EVENT_ADDR_RESOLVED);
    CHECK(e->id == b);
    rdma_ack_cm_event(e);
    ERR(rdma_get_cm_event(x, &e), EAGAIN);
    OK(rdma_resolve_route(b, 100));
    OK(rdma_destroy_id(b)); /* with an event that nobody took */
    ERR(rdma_get_cm_event(x, &e), EAGAIN);
    struct pollfd p = {.fd = x->fd, .events = POLLIN};
    CHECK(poll(&p, 1, 0) == 0);
    OK(rdma_migrate_id(a, NULL)); /* synchronous from here on */
    OK(rdma_resolve_route(a, 100));
    CHECK(a->event && a->event->event == RDMA_CM_EVENT_ROUTE_RESOLVED);
    OK(rdma_destroy_id(a));
    rdma_destroy_event_channel(x);
    rdma_destroy_event_channel(y);
}

/* More events than a socket holds: none is lost, none comes twice. */
void many(void) {
    enum { N = 2000 };
    static struct rdma_cm_id *id[N];
    static int seen[N];
    struct rdma_event_channel *ch = rdma_create_event_channel();
    struct sockaddr_in s;
    struct rdma_cm_event *e;
    for (int i = 0; i < N; i++) {
        OK(rdma_create_id(ch, &id[i], &seen[i], RDMA_PS_TCP));
        OK(rdma_resolve_addr(id[i], NULL, at(&s, "10.0.0.2", 1), 100));
    }
    for (int i = 0; i < N; i++) {
        e = expect(ch, RDMA_CM_EVENT_ADDR_RESOLVED);
        ++*(int *)e->id->context;
        rdma_ack_cm_event(e);
    }
    fcntl(ch->fd, F_SETFL, O_NONBLOCK);
    ERR(rdma_get_cm_event(ch, &e), EAGAIN);
    for (int i = 0; i < N; i++) {
        CHECK(seen[i] == 1);
        OK(rdma_resolve_route(id[i], 100)); /* these nobody takes */
    }
    for (int i = N; i--;)
        OK(rdma_destroy_id(id[i]));
    ERR(rdma_get_cm_event(ch, &e), EAGAIN);
    rdma_destroy_event_channel(ch);
}

static volatile int acked;

static void *ack_later(void *event) {
    usleep(100000);
    acked = 1;
    rdma_ack_cm_event(event);
    return NULL;
}

/* An ID is destroyed only when its events are acknowledged. */
void acknowledged(void) {
    struct rdma_event_channel *ch = rdma_create_event_channel();
    struct rdma_cm_id *a;
    struct sockaddr_in s;
    pthread_t t;
    OK(rdma_create_id(ch, &a, NULL, RDMA_PS_TCP));
    OK(rdma_resolve_addr(a, NULL, at(&s, "10.0.0.2", 1), 100));
    pthread_create(&t, NULL, ack_later, expect(ch, RDMA_CM_EVENT_ADDR_RESOLVED));
    OK(rdma_destroy_id(a));
    CHECK(acked);
    pthread_join(t, NULL);
    rdma_destroy_event_channel(ch);
}

void datagrams(void) {
    struct rdma_event_channel *ca = rdma_create_event_channel(), *cb = rdma_create_event_channel();
    struct rdma_cm_id *l = listener(cb, RDMA_PS_UDP, "10.0.0.2", 7200), *a = routed(ca, RDMA_PS_UDP, "10.0.0.2", 7200),
                      *b;
    struct rdma_conn_param p = {.private_data = "who", .private_data_len = 4, .qp_num = 1};
    struct ibv_qp_init_attr q = queues(IBV_QPT_UD);

    OK(rdma_create_qp(a, NULL, &q));
    OK(rdma_connect(a, &p));
    struct rdma_cm_event *e = expect(cb, RDMA_CM_EVENT_CONNECT_REQUEST);
    b = e->id;
    CHECK(e->param.ud.private_data_len == 180 && !strcmp(e->param.ud.private_data, "who"));
    rdma_ack_cm_event(e);
    q = queues(IBV_QPT_UD);
    OK(rdma_create_qp(b, NULL, &q));
    p = (struct rdma_conn_param){.private_data = "me", .private_data_len = 3, .qp_num = b->qp->qp_num};
    OK(rdma_accept(b, &p));
    e = expect(ca, RDMA_CM_EVENT_ESTABLISHED);
    CHECK(e->param.ud.qp_num == b->qp->qp_num && e->param.ud.qkey == RDMA_UDP_QKEY &&
          !strcmp(e->param.ud.private_data, "me"));
    CHECK(e->param.ud.ah_attr.is_global && !memcmp(&e->param.ud.ah_attr.grh.dgid, &a->route.addr.addr.ibaddr.dgid, 16));
    struct ibv_ah *ah = ibv_create_ah(a->pd, &e->param.ud.ah_attr);
    CHECK(ah);
    char out[32] = "datagram", in[40 + 32];
    struct ibv_mr *m = rdma_reg_msgs(a, out, sizeof out), *n = rdma_reg_msgs(b, in, sizeof in);
    struct ibv_wc wc;
    OK(rdma_post_recv(b, NULL, in, sizeof in, n));
    OK(rdma_post_ud_send(a, NULL, out, sizeof out, m, 0, ah, e->param.ud.qp_num));
    CHECK(rdma_get_send_comp(a, &wc) == 1 && rdma_get_recv_comp(b, &wc) == 1 && !memcmp(in + 40, out, sizeof out));
    rdma_ack_cm_event(e);
    ibv_destroy_ah(ah);
    rdma_dereg_mr(m);
    rdma_dereg_mr(n);
    rdma_destroy_qp(a);
    rdma_destroy_qp(b);
    OK(rdma_destroy_id(a));
    OK(rdma_destroy_id(b));
    a = routed(ca, RDMA_PS_UDP, "10.0.0.2", 7200);
    OK(rdma_connect(a, &p));
    e = expect(cb, RDMA_CM_EVENT_CONNECT_REQUEST);
    OK(rdma_reject(e->id, NULL, 0));
    b = e->id;
    rdma_ack_cm_event(e);
    OK(rdma_destroy_id(b));
    e = expect(ca, RDMA_CM_EVENT_UNREACHABLE);
    CHECK(e->status == 2);
    rdma_ack_cm_event(e);
    OK(rdma_destroy_id(a));
    OK(rdma_destroy_id(l));
    rdma_destroy_event_channel(ca);
    rdma_destroy_event_channel(cb);
}

/* A QP with a shared receive queue of its ID, and a refusal for the vendor's options. */
void shared_queues(void) {
    struct rdma_event_channel *ch = rdma_create_event_channel();
    struct rdma_cm_id *l = listener(ch, RDMA_PS_TCP, "10.0.0.2", 7471), *id = routed(ch, RDMA_PS_TCP, "10.0.0.2", 7471);
    struct ibv_srq_init_attr a = {.attr = {.max_wr = 4, .max_sge = 1}};
    struct ibv_srq_init_attr_ex again = {.attr = a.attr};
    struct ibv_qp_init_attr_ex q = {.qp_type = IBV_QPT_RC, .cap = {.max_send_wr = 4, .max_send_sge = 1}};
    struct rdma_conn_param p = {.retry_count = 7};
    OK(rdma_create_srq(id, NULL, &a));
    CHECK(id->srq && a.attr.max_wr >= 4);
    ERR(rdma_create_srq_ex(id, &again), EINVAL);
    q.srq = id->srq;
    OK(rdma_create_qp_ex(id, &q));
    CHECK(id->qp && id->qp->srq == id->srq);
    OK(rdma_connect(id, &p));
    struct rdma_cm_event *e = expect(ch, RDMA_CM_EVENT_CONNECT_REQUEST);
    struct rdma_cm_id *child = e->id;
    CHECK(e->param.conn.srq);
    OK(rdma_reject_ece(child, "no", 2));
    rdma_ack_cm_event(e);
    e = expect(ch, RDMA_CM_EVENT_REJECTED);
    CHECK(e->status == 35 && !memcmp(e->param.conn.private_data, "no", 2));
    rdma_ack_cm_event(e);
    rdma_destroy_qp(id);
    rdma_destroy_srq(id);
    CHECK(!id->srq);
    rdma_destroy_srq(id);
    OK(rdma_destroy_id(child) || rdma_destroy_id(id) || rdma_destroy_id(l));
    rdma_destroy_event_channel(ch);
}

void groups(void) {
    struct rdma_event_channel *ch = rdma_create_event_channel();
    struct rdma_cm_id *a;
    struct sockaddr_in s, g;
    struct ibv_qp_init_attr q = queues(IBV_QPT_UD);
    int context;
    OK(rdma_create_id(ch, &a, NULL, RDMA_PS_UDP));
    ERR(rdma_join_multicast(a, at(&g, "239.1.2.3", 0), &context), EINVAL); /* no NIC yet */
    OK(rdma_resolve_addr(a, at(&s, "10.0.0.1", 0), at(&g, "239.1.2.3", 0), 100));
    swallow(ch, RDMA_CM_EVENT_ADDR_RESOLVED);
    OK(rdma_create_qp(a, NULL, &q));
    ERR(rdma_join_multicast(a, at(&s, "10.0.0.2", 0), &context), EINVAL);
    OK(rdma_join_multicast(a, (struct sockaddr *)&g, &context));
    struct rdma_cm_event *e = expect(ch, RDMA_CM_EVENT_MULTICAST_JOIN);
    CHECK(!e->status && e->param.ud.private_data == &context && e->param.ud.qp_num == 0xffffff &&
          e->param.ud.qkey == RDMA_UDP_QKEY);
    CHECK(e->param.ud.ah_attr.grh.dgid.raw[12] == 239 && e->param.ud.ah_attr.grh.dgid.raw[10] == 0xff);
    rdma_ack_cm_event(e);
    struct rdma_cm_join_mc_attr_ex ex = {.comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS, .addr = (struct sockaddr *)&g};
    ERR(rdma_join_multicast_ex(a, &ex, NULL), EINVAL); /* flags missing */
    OK(rdma_leave_multicast(a, (struct sockaddr *)&g));
    ERR(rdma_leave_multicast(a, (struct sockaddr *)&g), EADDRNOTAVAIL);
    rdma_destroy_qp(a); /* EBUSY inside, and a leak at the sanitizer, were it still a member */
    OK(rdma_destroy_id(a));
    rdma_destroy_event_channel(ch);
}

/* A child does not speak on its parent's connection, and may begin for itself. */
void forked(void) {
    struct rdma_event_channel *ch = rdma_create_event_channel();
    struct rdma_cm_id *a = listener(ch, RDMA_PS_TCP, "10.0.0.1", 7201);
    int status;
    pid_t child = fork();
    if (!child) {
        struct rdma_cm_id *b;
        struct sockaddr_in s;
        ERR(rdma_listen(a, 1), EIO);
        ERR(rdma_create_id(ch, &b, NULL, RDMA_PS_TCP), EIO);
        struct rdma_event_channel *own = rdma_create_event_channel();
        OK(rdma_create_id(own, &b, NULL, RDMA_PS_TCP));
        ERR(rdma_bind_addr(b, at(&s, "10.0.0.1", 7201)), EADDRINUSE); /* its parent's */
        OK(rdma_bind_addr(b, at(&s, "10.0.0.1", 7202)));
        CHECK(b->verbs);
        _exit(failed);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    ERR(rdma_listen(a, 1), EINVAL); /* still ours, and listening */
    OK(rdma_destroy_id(a));
    rdma_destroy_event_channel(ch);
}
