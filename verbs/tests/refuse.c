/* SPDX-License-Identifier: Apache-2.0
 *
 * refuse: runs a command where a seccomp filter refuses what containers refuse: what reaches the memory of other
 * programs, or what makes namespaces and mounts.
 *   refuse 2 COMMAND...   process_vm_readv and process_vm_writev: a daemon takes /proc/PID/mem instead
 *   refuse 3 COMMAND...   also what reads and writes /proc/PID/mem: programs must copy by themselves
 *   refuse n COMMAND...   unshare, setns, mount, umount, pivot_root, clone with new namespaces; clone3 is not there
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define REFUSE(call) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##call, 0, 1), BPF_STMT(BPF_RET | BPF_K, REFUSED)
#define REFUSED      (SECCOMP_RET_ERRNO | EPERM)

#define NEW_ANY \
    (CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWCGROUP)

static struct sock_filter namespaces[] = {
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
    REFUSE(unshare),
    REFUSE(setns),
    REFUSE(mount),
    REFUSE(umount2),
    REFUSE(pivot_root),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 0, 1), /* its flags are in memory, out of a filter's reach */
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 3),
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
    BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, NEW_ANY, 0, 1),
    BPF_STMT(BPF_RET | BPF_K, REFUSED),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
};

int main(int argc, char **argv) {
    struct sock_filter f[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        REFUSE(process_vm_readv),
        REFUSE(process_vm_writev),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW), /* mode 2 ends here */
        REFUSE(pread64),
        REFUSE(pwrite64),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    if (argc < 3 || !strchr("23n", argv[1][0]) || argv[1][1]) {
        fprintf(stderr, "usage: refuse 2|3|n COMMAND...\n");
        return 2;
    }
    if (argv[1][0] == '3')
        f[5] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JA, 0, 0, 0);
    struct sock_fprog prog = {.len = sizeof f / sizeof *f, .filter = f};
    if (argv[1][0] == 'n')
        prog = (struct sock_fprog){.len = sizeof namespaces / sizeof *namespaces, .filter = namespaces};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog)) {
        perror("refuse: seccomp");
        return 1;
    }
    execvp(argv[2], argv + 2);
    perror(argv[2]);
    return 127;
}
