/* SPDX-License-Identifier: Apache-2.0
 *
 * mr_cm.c: what a program is told by librdmacm: connections with private data, refusals, endpoints, datagrams, groups,
 * errors, IDs that move, programs that fork and die. Two NICs, 10.0.0.1 and 10.0.0.2, of two hosts, seen at once.
 *   mr_cm [-n RECONNECTS]        all of it
 *   mr_cm --removal              waits until the daemon ends, and wants to be told
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "cm_parts.h"

#include <fcntl.h>
#include <getopt.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

int failed;

struct sockaddr *at(struct sockaddr_in *s, const char *ip, int port) {
    memset(s, 0, sizeof *s);
    s->sin_family = AF_INET;
    s->sin_port = htons((uint16_t)port);
    inet_pton(AF_INET, ip, &s->sin_addr);
    return (struct sockaddr *)s;
}

struct rdma_cm_event *expect(struct rdma_event_channel *ch, enum rdma_cm_event_type want) {
    struct pollfd p = {.fd = ch->fd, .events = POLLIN};
    struct rdma_cm_event *e;
    if (poll(&p, 1, 10000) != 1 || rdma_get_cm_event(ch, &e)) {
        fprintf(stderr, "no %s: %s\n", rdma_event_str(want), strerror(errno));
        exit(1);
    }
    if (e->event != want) {
        fprintf(stderr, "%s, status %d, instead of %s\n", rdma_event_str(e->event), e->status, rdma_event_str(want));
        exit(1);
    }
    return e;
}

void swallow(struct rdma_event_channel *ch, enum rdma_cm_event_type want) {
    rdma_ack_cm_event(expect(ch, want));
}

struct rdma_cm_id *listener(struct rdma_event_channel *ch, enum rdma_port_space ps, const char *ip, int port) {
    struct rdma_cm_id *l;
    struct sockaddr_in s;
    OK(rdma_create_id(ch, &l, NULL, ps));
    OK(rdma_bind_addr(l, at(&s, ip, port)));
    OK(rdma_listen(l, 8));
    return l;
}

struct rdma_cm_id *routed(struct rdma_event_channel *ch, enum rdma_port_space ps, const char *ip, int port) {
    struct rdma_cm_id *id;
    struct sockaddr_in s, d;
    OK(rdma_create_id(ch, &id, NULL, ps));
    OK(rdma_resolve_addr(id, at(&s, "10.0.0.1", 0), at(&d, ip, port), 1000));
    swallow(ch, RDMA_CM_EVENT_ADDR_RESOLVED);
    OK(rdma_resolve_route(id, 1000));
    swallow(ch, RDMA_CM_EVENT_ROUTE_RESOLVED);
    return id;
}

struct ibv_qp_init_attr queues(enum ibv_qp_type type) {
    struct ibv_qp_init_attr a = {.cap = {8, 8, 1, 1, 16}, .qp_type = type, .sq_sig_all = 1};
    return a;
}

static enum ibv_qp_state state_of(struct rdma_cm_id *id) {
    struct ibv_qp_attr a;
    struct ibv_qp_init_attr i;
    OK(ibv_query_qp(id->qp, &a, IBV_QP_STATE, &i));
    return a.qp_state;
}

/* --------------------------------------------------------------------------------------------- a connection */

static void exchange(struct rdma_cm_id *a, struct rdma_cm_id *b) {
    char out[64] = "over the connection", in[64];
    struct ibv_wc wc;
    struct ibv_mr *m = rdma_reg_msgs(a, out, sizeof out), *n = rdma_reg_msgs(b, in, sizeof in);
    CHECK(m && n);
    OK(rdma_post_recv(b, NULL, in, sizeof in, n));
    OK(rdma_post_send(a, NULL, out, sizeof out, m, 0));
    CHECK(rdma_get_send_comp(a, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
    CHECK(rdma_get_recv_comp(b, &wc) == 1 && wc.status == IBV_WC_SUCCESS && !memcmp(in, out, sizeof in));
    rdma_dereg_mr(m);
    rdma_dereg_mr(n);
}

static void connection(void) {
    struct rdma_event_channel *ca = rdma_create_event_channel(), *cb = rdma_create_event_channel();
    struct rdma_cm_id *l = listener(cb, RDMA_PS_TCP, "10.0.0.2", 7174), *a = routed(ca, RDMA_PS_TCP, "10.0.0.2", 7174),
                      *b;
    struct ibv_qp_init_attr q = queues(IBV_QPT_RC);
    struct rdma_conn_param p = {.private_data = "hello",
                                .private_data_len = 6,
                                .responder_resources = 3,
                                .initiator_depth = 5,
                                .retry_count = 7};

    CHECK(rdma_get_dst_port(a) == htons(7174) && rdma_get_src_port(a) && a->verbs && a->pd && a->port_num == 1);
    CHECK(a->route.num_paths == 1 && a->route.path_rec &&
          !memcmp(&a->route.path_rec->dgid, &a->route.addr.addr.ibaddr.dgid, 16));
    OK(rdma_create_qp(a, NULL, &q));
    CHECK(state_of(a) == IBV_QPS_INIT && a->send_cq_channel && a->recv_cq);
    ERR(rdma_create_qp(a, NULL, &q), EINVAL);
    OK(rdma_connect(a, &p));
    struct rdma_cm_event *e = expect(cb, RDMA_CM_EVENT_CONNECT_REQUEST);
    b = e->id;
    CHECK(e->listen_id == l && e->param.conn.private_data_len == 56 && !strcmp(e->param.conn.private_data, "hello"));
    CHECK(e->param.conn.responder_resources == 5 && e->param.conn.initiator_depth == 3 &&
          e->param.conn.qp_num == a->qp->qp_num);
    CHECK(b->verbs != a->verbs && b->channel == cb && rdma_get_dst_port(b) == rdma_get_src_port(a));
    rdma_ack_cm_event(e);
    q = queues(IBV_QPT_RC);
    OK(rdma_create_qp(b, NULL, &q));
    p = (struct rdma_conn_param){
        .private_data = "welcome", .private_data_len = 8, .responder_resources = 5, .initiator_depth = 3};
    OK(rdma_accept(b, &p));
    CHECK(state_of(b) == IBV_QPS_RTS);
    e = expect(ca, RDMA_CM_EVENT_ESTABLISHED);
    CHECK(!e->status && e->param.conn.private_data_len == 196 && !strcmp(e->param.conn.private_data, "welcome"));
    rdma_ack_cm_event(e);
    swallow(cb, RDMA_CM_EVENT_ESTABLISHED);
    CHECK(state_of(a) == IBV_QPS_RTS);
    exchange(a, b);
    exchange(b, a);
    OK(rdma_disconnect(a));
    CHECK(state_of(a) == IBV_QPS_ERR);
    swallow(ca, RDMA_CM_EVENT_DISCONNECTED);
    swallow(cb, RDMA_CM_EVENT_DISCONNECTED);
    OK(rdma_disconnect(b));
    struct rdma_cm_id *all[] = {a, b, l};
    for (int i = 0; i < 3; i++) {
        if (all[i]->qp)
            rdma_destroy_qp(all[i]);
        OK(rdma_destroy_id(all[i]));
    }
    rdma_destroy_event_channel(ca);
    rdma_destroy_event_channel(cb);
}

static void refusals(void) {
    struct rdma_event_channel *ca = rdma_create_event_channel(), *cb = rdma_create_event_channel();
    struct rdma_conn_param p = {.qp_num = 77, .retry_count = 7};
    struct rdma_cm_id *a = routed(ca, RDMA_PS_TCP, "10.0.0.2", 7175);

    OK(rdma_connect(a, &p)); /* nobody listens */
    struct rdma_cm_event *e = expect(ca, RDMA_CM_EVENT_REJECTED);
    CHECK(e->status == 8);
    rdma_ack_cm_event(e);
    OK(rdma_destroy_id(a));
    struct rdma_cm_id *l = listener(cb, RDMA_PS_TCP, "0.0.0.0", 7175);
    a = routed(ca, RDMA_PS_TCP, "10.0.0.2", 7175);
    OK(rdma_connect(a, &p));
    e = expect(cb, RDMA_CM_EVENT_CONNECT_REQUEST);
    struct rdma_cm_id *b = e->id;
    rdma_ack_cm_event(e);
    char why[148] = "not today";
    OK(rdma_reject(b, why, sizeof why));
    OK(rdma_destroy_id(b));
    e = expect(ca, RDMA_CM_EVENT_REJECTED);
    CHECK(e->status == 28 && e->param.conn.private_data_len == 148 &&
          !memcmp(e->param.conn.private_data, why, sizeof why));
    rdma_ack_cm_event(e);
    OK(rdma_destroy_id(a));
    OK(rdma_destroy_id(l));
    rdma_destroy_event_channel(ca);
    rdma_destroy_event_channel(cb);
}

/* ------------------------------------------------------------------------------------ endpoints, synchronous */

static void *serve(void *arg) {
    struct rdma_cm_id *l = arg, *id;
    OK(rdma_get_request(l, &id));
    OK(rdma_accept(id, NULL));
    char b[64];
    struct ibv_mr *m = rdma_reg_msgs(id, b, sizeof b);
    OK(rdma_post_recv(id, NULL, b, sizeof b, m));
    /* the peer sends when it is connected; its message waits for this receive */
    struct ibv_wc wc;
    CHECK(rdma_get_recv_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS && wc.byte_len == sizeof b);
    OK(rdma_post_send(id, NULL, b, sizeof b, m, 0));
    CHECK(rdma_get_send_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
    rdma_disconnect(id);
    rdma_dereg_mr(m);
    rdma_destroy_ep(id);
    return NULL;
}

void endpoints(void) {
    struct rdma_addrinfo hints = {.ai_port_space = RDMA_PS_TCP, .ai_flags = RAI_PASSIVE}, *res;
    struct ibv_qp_init_attr q = queues(IBV_QPT_RC);
    struct rdma_cm_id *l, *a;
    pthread_t t;

    OK(rdma_getaddrinfo("10.0.0.2", "7176", &hints, &res));
    CHECK(res->ai_src_addr && !res->ai_dst_addr && res->ai_qp_type == IBV_QPT_RC && res->ai_port_space == RDMA_PS_TCP);
    OK(rdma_create_ep(&l, res, NULL, &q));
    rdma_freeaddrinfo(res);
    OK(rdma_listen(l, 0));
    pthread_create(&t, NULL, serve, l);
    hints.ai_flags = RAI_NUMERICHOST;
    OK(rdma_getaddrinfo("10.0.0.2", "7176", &hints, &res));
    CHECK(!res->ai_src_addr && res->ai_dst_addr);
    q = queues(IBV_QPT_RC);
    OK(rdma_create_ep(&a, res, NULL, &q));
    rdma_freeaddrinfo(res);
    char b[64] = "echo", in[64];
    struct ibv_mr *m = rdma_reg_msgs(a, b, sizeof b), *n = rdma_reg_msgs(a, in, sizeof in);
    struct ibv_wc wc;
    OK(rdma_post_recv(a, NULL, in, sizeof in, n));
    OK(rdma_connect(a, NULL));
    OK(rdma_post_send(a, NULL, b, sizeof b, m, 0));
    CHECK(rdma_get_send_comp(a, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
    CHECK(rdma_get_recv_comp(a, &wc) == 1 && wc.status == IBV_WC_SUCCESS && !memcmp(b, in, sizeof b));
    rdma_disconnect(a);
    pthread_join(t, NULL);
    rdma_dereg_mr(m);
    rdma_dereg_mr(n);
    rdma_destroy_ep(a);
    rdma_destroy_ep(l);
}

/* ------------------------------------------------------------------------------------------------ again, and again */

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static void reconnects(int n) {
    struct rdma_event_channel *ca = rdma_create_event_channel(), *cb = rdma_create_event_channel();
    double worst = 0;
    for (int i = 0; i < n; i++) {
        struct rdma_cm_id *l = listener(cb, RDMA_PS_TCP, "0.0.0.0", 7177);
        double begin = now_ms();
        struct rdma_cm_id *a = routed(ca, RDMA_PS_TCP, "10.0.0.2", 7177);
        struct ibv_qp_init_attr q = queues(IBV_QPT_RC);
        OK(rdma_create_qp(a, NULL, &q));
        OK(rdma_connect(a, NULL));
        struct rdma_cm_event *e = expect(cb, RDMA_CM_EVENT_CONNECT_REQUEST);
        struct rdma_cm_id *b = e->id;
        rdma_ack_cm_event(e);
        q = queues(IBV_QPT_RC);
        OK(rdma_create_qp(b, NULL, &q));
        OK(rdma_accept(b, NULL));
        swallow(ca, RDMA_CM_EVENT_ESTABLISHED);
        swallow(cb, RDMA_CM_EVENT_ESTABLISHED);
        double took = now_ms() - begin;
        worst = took > worst ? took : worst;
        struct rdma_cm_id *first = i % 2 ? a : b, *second = i % 2 ? b : a; /* destroyed without a word before */
        struct rdma_event_channel *cs = i % 2 ? cb : ca;
        rdma_destroy_qp(first);
        OK(rdma_destroy_id(first));
        swallow(cs, RDMA_CM_EVENT_DISCONNECTED);
        rdma_destroy_qp(second);
        OK(rdma_destroy_id(second));
        OK(rdma_destroy_id(l));
    }
    if (worst > 1000)
        fprintf(stderr, "the slowest of %d connections took %.0f ms\n", n, worst), failed = 1;
    rdma_destroy_event_channel(ca);
    rdma_destroy_event_channel(cb);
}

/* A program that dies by kill -9: its peer is told, its port is free. */
static void deaths(void) {
    struct rdma_event_channel *ca = rdma_create_event_channel();
    for (int i = 0; i < 10; i++) {
        int ready[2];
        CHECK(!pipe(ready));
        pid_t child = fork();
        if (!child) {
            struct rdma_event_channel *c = rdma_create_event_channel();
            listener(c, RDMA_PS_TCP, "10.0.0.2", 7178);
            CHECK(write(ready[1], "x", 1) == 1);
            struct rdma_cm_event *e = expect(c, RDMA_CM_EVENT_CONNECT_REQUEST);
            struct rdma_conn_param p = {.qp_num = 99};
            OK(rdma_accept(e->id, &p));
            for (;;)
                pause();
        }
        char b;
        CHECK(read(ready[0], &b, 1) == 1);
        struct rdma_cm_id *a = routed(ca, RDMA_PS_TCP, "10.0.0.2", 7178);
        struct rdma_conn_param p = {.qp_num = 98, .retry_count = 7};
        OK(rdma_connect(a, &p));
        swallow(ca, RDMA_CM_EVENT_CONNECT_RESPONSE);
        OK(rdma_establish(a));
        double begin = now_ms();
        kill(child, SIGKILL);
        swallow(ca, RDMA_CM_EVENT_DISCONNECTED);
        CHECK(now_ms() - begin < 1000);
        waitpid(child, NULL, 0);
        OK(rdma_destroy_id(a));
        close(ready[0]);
        close(ready[1]);
    }
    rdma_destroy_event_channel(ca);
}

/* The daemon ends: the ID is told once, and then there is nothing more. */
static int removal(void) {
    struct rdma_event_channel *c = rdma_create_event_channel();
    struct rdma_cm_id *l = listener(c, RDMA_PS_TCP, "0.0.0.0", 7179);
    struct rdma_cm_event *e;
    printf("ready\n");
    fflush(stdout);
    OK(rdma_get_cm_event(c, &e));
    CHECK(e->event == RDMA_CM_EVENT_DEVICE_REMOVAL && e->id == l);
    rdma_ack_cm_event(e);
    ERR(rdma_get_cm_event(c, &e), EIO);
    ERR(rdma_listen(l, 1), EIO);
    OK(rdma_destroy_id(l));
    rdma_destroy_event_channel(c);
    CHECK(!rdma_create_event_channel());
    return failed;
}

int main(int argc, char **argv) {
    static const struct option options[] = {{"removal", no_argument, NULL, 'r'}, {0}};
    int n = 200, c;
    while ((c = getopt_long(argc, argv, "n:", options, NULL)) != -1) {
        if (c == 'r')
            return removal();
        if (c != 'n')
            return 2;
        n = atoi(optarg);
    }
    api_errors();
    connection();
    refusals();
    endpoints();
    migration();
    acknowledged();
    datagrams();
    groups();
    shared_queues();
    many();
    forked();
    deaths();
    reconnects(n);
    printf("mr_cm: %s\n", failed ? "FAILED" : "ok");
    return failed;
}
