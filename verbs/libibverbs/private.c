/* SPDX-License-Identifier: Apache-2.0
 *
 * private.c: the names that rdma-core's own provider libraries import from it. perftest, UCX and libfabric are linked
 * with the real libmlx5 and libefa, so these must be here for them to start; the providers then find no device of
 * theirs. rdma-core renames the version node with every change of these functions, so each name is exported under
 * every node that is in use (the default one, 34, by libibverbs.map; the others by .symver).
 */
#include "mr.h"

/* One body, one name a node. The bodies have names of their own: a name that is both plain and versioned loses its
 * default version in the linker. */
#define AT_NODE(name, node, at)                                                                                     \
    extern __typeof(stub_##name) stub_##name##_##node __attribute__((alias("stub_" #name), visibility("default"))); \
    __asm__(".symver stub_" #name "_" #node ", " #name at "IBVERBS_PRIVATE_" #node);
#define FROM_64(name, first) AT_NODE(name, 64, first) AT_NODE(name, 65, "@")
#define FROM_59(name, first) AT_NODE(name, 59, first) FROM_64(name, "@")
#define FROM_57(name, first) AT_NODE(name, 57, first) FROM_59(name, "@")
/* 25 and 33: rdma-core 28 and 33, as Ubuntu 20.04, RHEL 8 and Debian 11 have them */
#define EXPORT(name)        \
    AT_NODE(name, 34, "@@") \
    AT_NODE(name, 25, "@") AT_NODE(name, 33, "@") FROM_57(name, "@")

#define STUB_INT(name)             \
    int stub_##name(void);         \
    int stub_##name(void) {        \
        return mr_err(EOPNOTSUPP); \
    }                              \
    EXPORT(name)
#define STUB_POINTER(name)          \
    void *stub_##name(void);        \
    void *stub_##name(void) {       \
        return mr_null(EOPNOTSUPP); \
    }                               \
    EXPORT(name)
#define STUB_VOID(name)       \
    void stub_##name(void);   \
    void stub_##name(void) {} \
    EXPORT(name)

/* Not a stub: ibv_devinfo and pyverbs call it. */
int stub_ibv_query_gid_type(struct ibv_context *c, uint8_t port, unsigned index, int *type);
int stub_ibv_query_gid_type(struct ibv_context *c, uint8_t port, unsigned index, int *type) {
    return mr_query_gid_type(c, port, index, type);
}
EXPORT(ibv_query_gid_type)

/* A provider's constructor announces itself here. */
MR_EXPORT void verbs_register_driver_34(const void *ops);
void verbs_register_driver_34(const void *ops) {
    (void)ops;
}
MR_EXPORT void ibv_register_driver(const char *name, void *init);
void ibv_register_driver(const char *name, void *init) {
    (void)name, (void)init;
}
#define REGISTER_DRIVER(node)                                              \
    extern __typeof(verbs_register_driver_34) verbs_register_driver_##node \
        __attribute__((alias("verbs_register_driver_34"), visibility("default")));
REGISTER_DRIVER(25)
REGISTER_DRIVER(33)
REGISTER_DRIVER(57)
REGISTER_DRIVER(59)
REGISTER_DRIVER(64)
REGISTER_DRIVER(65)

extern bool stub_verbs_allow_disassociate_destroy;
bool stub_verbs_allow_disassociate_destroy;
EXPORT(verbs_allow_disassociate_destroy)

STUB_VOID(__verbs_log)
STUB_VOID(verbs_set_ops)
STUB_VOID(verbs_uninit_context)
STUB_POINTER(_verbs_init_and_alloc_context)
STUB_POINTER(verbs_open_device)
STUB_INT(execute_ioctl)
STUB_INT(verbs_init_cq)
STUB_INT(ibv_read_ibdev_sysfs_file)

/* Counts attributes of an ioctl; no error. */
unsigned stub___ioctl_final_num_attrs(unsigned n);
unsigned stub___ioctl_final_num_attrs(unsigned n) {
    return n;
}
EXPORT(__ioctl_final_num_attrs)

STUB_INT(ibv_cmd_advise_mr)
STUB_INT(ibv_cmd_alloc_dm)
STUB_INT(ibv_cmd_alloc_mw)
STUB_INT(ibv_cmd_alloc_pd)
STUB_INT(ibv_cmd_attach_mcast)
STUB_INT(ibv_cmd_close_xrcd)
STUB_INT(ibv_cmd_create_ah)
STUB_INT(ibv_cmd_create_counters)
STUB_INT(ibv_cmd_create_cq)
STUB_INT(ibv_cmd_create_cq_ex)
STUB_INT(ibv_cmd_create_cq_ex2)
STUB_INT(ibv_cmd_create_flow)
STUB_INT(ibv_cmd_create_flow_action_esp)
STUB_INT(ibv_cmd_create_qp)
STUB_INT(ibv_cmd_create_qp_ex)
STUB_INT(ibv_cmd_create_qp_ex2)
STUB_INT(ibv_cmd_create_rwq_ind_table)
STUB_INT(ibv_cmd_create_srq)
STUB_INT(ibv_cmd_create_srq_ex)
STUB_INT(ibv_cmd_create_wq)
STUB_INT(ibv_cmd_dealloc_mw)
STUB_INT(ibv_cmd_dealloc_pd)
STUB_INT(ibv_cmd_dereg_mr)
STUB_INT(ibv_cmd_destroy_ah)
STUB_INT(ibv_cmd_destroy_counters)
STUB_INT(ibv_cmd_destroy_cq)
STUB_INT(ibv_cmd_destroy_flow)
STUB_INT(ibv_cmd_destroy_flow_action)
STUB_INT(ibv_cmd_destroy_qp)
STUB_INT(ibv_cmd_destroy_rwq_ind_table)
STUB_INT(ibv_cmd_destroy_srq)
STUB_INT(ibv_cmd_destroy_wq)
STUB_INT(ibv_cmd_detach_mcast)
STUB_INT(ibv_cmd_free_dm)
STUB_INT(ibv_cmd_get_context)
STUB_INT(ibv_cmd_modify_cq)
STUB_INT(ibv_cmd_modify_flow_action_esp)
STUB_INT(ibv_cmd_modify_qp)
STUB_INT(ibv_cmd_modify_qp_ex)
STUB_INT(ibv_cmd_modify_srq)
STUB_INT(ibv_cmd_modify_wq)
STUB_INT(ibv_cmd_open_qp)
STUB_INT(ibv_cmd_open_xrcd)
STUB_INT(ibv_cmd_poll_cq)
STUB_INT(ibv_cmd_post_recv)
STUB_INT(ibv_cmd_post_send)
STUB_INT(ibv_cmd_post_srq_recv)
STUB_INT(ibv_cmd_query_context)
STUB_INT(ibv_cmd_query_device)
STUB_INT(ibv_cmd_query_device_any)
STUB_INT(ibv_cmd_query_mr)
STUB_INT(ibv_cmd_query_port)
STUB_INT(ibv_cmd_query_qp)
STUB_INT(ibv_cmd_query_srq)
STUB_INT(ibv_cmd_read_counters)
STUB_INT(ibv_cmd_reg_dm_mr)
STUB_INT(ibv_cmd_reg_dmabuf_mr)
STUB_INT(ibv_cmd_reg_mr)
STUB_INT(ibv_cmd_req_notify_cq)
STUB_INT(ibv_cmd_rereg_mr)
STUB_INT(ibv_cmd_resize_cq)

/* Names that came later, or went. */
#define LATER(name, from)          \
    int stub_##name(void);         \
    int stub_##name(void) {        \
        return mr_err(EOPNOTSUPP); \
    }                              \
    from(name, "@@")
#define ONLY(name, node)           \
    int stub_##name(void);         \
    int stub_##name(void) {        \
        return mr_err(EOPNOTSUPP); \
    }                              \
    AT_NODE(name, node, "@@")

ONLY(ibv_cmd_query_device_ex, 25)
ONLY(ibv_get_fw_ver, 25)
LATER(ibv_cmd_alloc_dmah, FROM_59)
LATER(ibv_cmd_free_dmah, FROM_59)
LATER(ibv_cmd_reg_mr_ex, FROM_59)
LATER(ibv_cmd_query_port_speed, FROM_59)
LATER(ibv_cmd_export_dmabuf_fd, FROM_59)
LATER(ibv_dmabuf_heap_alloc, FROM_64)
LATER(ibv_dmabuf_heap_cc_shared_init, FROM_64)
LATER(ibv_dmabuf_heap_destroy, FROM_64)
LATER(ibv_dmabuf_heap_free, FROM_64)
ONLY(ibv_cmd_create_comp_cntr, 65)
ONLY(ibv_cmd_destroy_comp_cntr, 65)
ONLY(ibv_cmd_inc_comp_cntr, 65)
ONLY(ibv_cmd_inc_err_comp_cntr, 65)
ONLY(ibv_cmd_qp_attach_comp_cntr, 65)
ONLY(ibv_cmd_query_comp_cntr_caps, 65)
ONLY(ibv_cmd_read_comp_cntr, 65)
ONLY(ibv_cmd_read_err_comp_cntr, 65)
ONLY(ibv_cmd_set_comp_cntr, 65)
ONLY(ibv_cmd_set_err_comp_cntr, 65)

const char *stub_ibv_wr_opcode_str(int opcode);
const char *stub_ibv_wr_opcode_str(int opcode) {
    (void)opcode;
    return "unknown";
}
EXPORT(ibv_wr_opcode_str)
