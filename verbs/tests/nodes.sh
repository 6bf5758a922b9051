#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Programs that were linked elsewhere: for each generation of rdma-core that a distribution ships, a program is linked with a
# stub that has that release's version nodes and names, and then run with our library.
#   nodes.sh LIBDIR [CC]
# Ubuntu 20.04 and RHEL 8: rdma-core 28 and on; Debian 11: 33, 12: 44, 13: 56; Ubuntu 22.04: 39, 24.04: 50; RHEL 9: 37 to 57.
# Providers (libmlx5, libefa) and a few programs import from private nodes too: 25 to rdma-core 32, 33 to 33, 34 to 56, 57 to
# 58, 59 to 63, 64, and 65 behind it.
set -eu
lib=$1 cc=${2:-cc}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
failed=0

# names NODE: what programs import from it, or a part of it; tests/symbols.txt has all.
names() {
    case $1 in
    1.0) echo ibv_create_comp_channel ibv_destroy_comp_channel ibv_get_sysfs_path ibv_read_sysfs_file ;;
    1.1) echo ibv_get_device_list ibv_free_device_list ibv_open_device ibv_close_device ibv_alloc_pd ibv_create_qp ibv_query_gid ;;
    1.5) echo ibv_get_pkey_index ;;
    1.6) echo ibv_qp_to_qp_ex ;;
    1.7) echo ibv_reg_mr_iova ;;
    1.8) echo ibv_reg_mr_iova2 ;;
    1.9) echo ibv_get_device_index ;;
    1.10) echo ibv_import_device ibv_import_pd ibv_import_mr ibv_query_ece ibv_set_ece ;;
    1.11) echo _ibv_query_gid_ex _ibv_query_gid_table ;;
    1.12) echo ibv_reg_dmabuf_mr ;;
    1.13) echo ibv_import_dm ibv_unimport_dm ibv_is_fork_initialized ;;
    1.14) echo ibv_query_qp_data_in_order ;;
    1.15) echo ibv_alloc_dmah ibv_dealloc_dmah ibv_reg_mr_ex ;;
    1.16) echo ibv_dm_export_dmabuf_fd ibv_query_port_speed ;;
    1.17) echo ibv_alloc_buf ibv_free_buf ibv_reg_buf_mr ;;
    1.18) echo _ibv_query_comp_cntr_caps ibv_create_comp_cntr ibv_read_comp_cntr ibv_export_buf_dmabuf_fd ;;
    PRIVATE_25) echo ibv_query_gid_type ibv_cmd_create_qp ibv_get_fw_ver verbs_register_driver_25 ;;
    PRIVATE_34) echo ibv_query_gid_type ibv_cmd_create_cq_ex2 ibv_wr_opcode_str ibv_cmd_query_device verbs_register_driver_34 ;;
    PRIVATE_57) echo ibv_query_gid_type ibv_cmd_create_cq_ex2 ibv_wr_opcode_str verbs_register_driver_57 ;;
    PRIVATE_59) echo ibv_query_gid_type ibv_cmd_create_cq_ex2 ibv_cmd_reg_mr_ex ibv_cmd_alloc_dmah ibv_cmd_query_port_speed ;;
    PRIVATE_64) echo ibv_query_gid_type ibv_cmd_reg_mr_ex ibv_cmd_export_dmabuf_fd ibv_dmabuf_heap_alloc ibv_wr_opcode_str ;;
    PRIVATE_65) echo ibv_query_gid_type ibv_cmd_reg_mr_ex ibv_dmabuf_heap_free ibv_cmd_create_comp_cntr ibv_wr_opcode_str ;;
    PRIVATE_*) echo ibv_query_gid_type ibv_cmd_create_qp ibv_cmd_reg_mr execute_ioctl verbs_set_ops _verbs_init_and_alloc_context \
        "verbs_register_driver_${1#PRIVATE_}" ;;
    esac
}

# try RELEASE PRIVATE NODE…
try() {
    release=$1 private=$2
    shift 2
    : >"$tmp/stub.c"
    : >"$tmp/map"
    : >"$tmp/decl"
    : >"$tmp/use"
    for node in "$@" "PRIVATE_$private"; do
        {
            echo "IBVERBS_$node {"
            echo "global:"
            for n in $(names "$node"); do echo "$n;"; done
            [ "$node" != 1.0 ] || echo "local: *;"
            echo "};"
        } >>"$tmp/map"
        for n in $(names "$node"); do
            echo "void $n(void) {}" >>"$tmp/stub.c"
            echo "extern void $n(void);" >>"$tmp/decl"
            echo "(void *)$n," >>"$tmp/use"
        done
    done
    { cat "$tmp/decl"; echo "void *const all[] = {"; cat "$tmp/use"; echo "}; int main(void) { return all[0] == 0; }"; } >"$tmp/prog.c"
    $cc -w -shared -fPIC -Wl,-soname,libibverbs.so.1 -Wl,--version-script="$tmp/map" -o "$tmp/libibverbs.so.1" "$tmp/stub.c"
    $cc -w -o "$tmp/prog" "$tmp/prog.c" "$tmp/libibverbs.so.1" -Wl,-z,now
    if out=$(LD_PRELOAD="${MR_PRELOAD:-}" LD_LIBRARY_PATH=$lib "$tmp/prog" 2>&1) && [ -z "$out" ]; then
        printf '%-44s %s\n' "linked with rdma-core $release" ok
    else
        printf '%-44s %s\n%s\n' "linked with rdma-core $release" no "$out"
        failed=1
    fi
}

to10="1.0 1.1 1.5 1.6 1.7 1.8 1.9 1.10"
to14="$to10 1.11 1.12 1.13 1.14"
try "28 (Ubuntu 20.04)" 25 1.0 1.1 1.5 1.6 1.7 1.8
try "33 (Debian 11)" 33 $to10 1.11
try "39 (Ubuntu 22.04)" 34 $to14
try "44, 50, 56 (Debian 12, Ubuntu 24.04, Debian 13)" 34 $to14
try "57 (RHEL 9)" 57 $to14
try "59" 59 $to14 1.15
try "63" 59 $to14 1.15 1.16
try "64" 64 $to14 1.15 1.16 1.17
try "65" 65 $to14 1.15 1.16 1.17 1.18
exit $failed
