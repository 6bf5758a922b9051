/* SPDX-License-Identifier: Apache-2.0
 *
 * errors.h: what the files of mr_errors share: checks, the connected pair that most cases use, and the cases.
 */
#ifndef MR_TEST_ERRORS_H
#define MR_TEST_ERRORS_H

#include "common.h"

extern struct options opt;
extern const char *second; /* the other device, when there is one */
extern int failures, checks;
extern const char *current;

#define CHECK(cond, ...)                                             \
    do {                                                             \
        checks++;                                                    \
        if (!(cond)) {                                               \
            failures++;                                              \
            printf("  %s, line %d: %s: ", current, __LINE__, #cond); \
            printf(__VA_ARGS__);                                     \
            printf("\n");                                            \
        }                                                            \
    } while (0)
/* A call that must fail with `want`, returned or not, and in errno. */
#define FAILS(call, want)                                                                                     \
    do {                                                                                                      \
        errno = 0;                                                                                            \
        long got_ = (long)(call);                                                                             \
        CHECK((got_ == (want) || got_ == -1) && errno == (want), "returned %ld, errno %s, expected %s", got_, \
              strerror(errno), strerror(want));                                                               \
    } while (0)
#define FAILS_NULL(call, want)                                                                                        \
    do {                                                                                                              \
        errno = 0;                                                                                                    \
        const void *got_ = (call);                                                                                    \
        CHECK(!got_ && errno == (want), "returned %p, errno %s, expected %s", got_, strerror(errno), strerror(want)); \
    } while (0)

#define LEN (1u << 20)
struct pair {
    struct end a, b;
};
extern const struct end_want usual;
extern const struct connect_attr impatient;
void pair_open(struct pair *p, int a_access, int b_access, int b_mr_access);
void pair_usual(struct pair *p);
void pair_close(struct pair *p);

struct wr {
    enum ibv_wr_opcode op;
    uint64_t remote, local;
    uint32_t rkey, lkey, len;
    unsigned flags;
};
int post(struct ibv_qp *qp, const struct wr *w, uint64_t id);
int post_recv(struct end *e, uint32_t len, uint32_t lkey, uint64_t id);
/* The usual request from a to b; cases change one thing. */
struct wr good(const struct pair *p, enum ibv_wr_opcode op);
enum ibv_wc_status next(struct end *e, struct ibv_wc *wc);
enum ibv_qp_state state(struct ibv_qp *qp);
/* One bad request, then a good one that must be flushed; the QP is in the error state. */
void one_bad(struct pair *p, const struct wr *w, enum ibv_wc_status want);

#define EXPECT(e, want)                                                                             \
    do {                                                                                            \
        enum ibv_wc_status got_ = next(e, NULL);                                                    \
        CHECK(got_ == (want), "%s, expected %s", ibv_wc_status_str(got_), ibv_wc_status_str(want)); \
    } while (0)

/* The cases. */
void wrong_rkey(void);
void out_of_bounds(void);
void wrapping_range(void);
void region_without_right(void);
void qp_without_right(void);
void deregistered_rkey(void);
void rkey_of_other_pd(void);
void unaligned_atomic(void);
void remote_memory_gone(void);
void wrong_lkey(void);
void local_out_of_bounds(void);
void read_into_read_only_region(void);
void lkey_of_other_pd(void);
void local_memory_gone(void);
void no_receive(void);
void receive_too_small(void);
void small_receive_too_small(void);
void receive_wrong_lkey(void);
void receive_memory_gone(void);
void flush_receives(void);
void peer_destroyed(void);
void post_states(void);
void post_limits(void);
void full_queues(void);
void unsignalled(void);
void zero_length(void);
void transitions(void);
void reset_and_reuse(void);
void registration(void);
void cq_errors(void);
void cq_resize_keeps(void);
void cq_overrun(void);
void destroy_cleans_cq(void);
void cq_events(void);
void api_details(void);
void fork_safety(void);
void cancelled_threads(void);
void closed_under_waiter(void);
void resize_while_armed(void);
void uc_rules(void);
void xrc_rules(void);
void on_demand(void);
void on_demand_gone(void);
void advice(void);
void null_region(void);
void dmabuf_region(void);
void device_memory(void);
void reregister(void);
void parent_domains(void);
void imported(void);
void moderation(void);
void extended_cq(void);
void exhaustion(void);
void not_offered(void);
void small_calls(void);
void buffers(void);
void nccl_sequence(void);
void nonblocking(void);
void closed_library(void);

#endif
