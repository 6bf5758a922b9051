/* SPDX-License-Identifier: Apache-2.0
 *
 * refuse: runs a command where a seccomp filter refuses what reaches the memory of other programs, as containers do.
 *   refuse 2 COMMAND...   process_vm_readv and process_vm_writev: a daemon takes /proc/PID/mem instead
 *   refuse 3 COMMAND...   also what reads and writes /proc/PID/mem: programs must copy by themselves
 */
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define REFUSE(call) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##call, 0, 1), BPF_STMT(BPF_RET | BPF_K, REFUSED)
#define REFUSED      (SECCOMP_RET_ERRNO | EPERM)

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
    if (argc < 3 || (strcmp(argv[1], "2") && strcmp(argv[1], "3"))) {
        fprintf(stderr, "usage: refuse 2|3 COMMAND...\n");
        return 2;
    }
    if (argv[1][0] == '3')
        f[5] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JA, 0, 0, 0);
    struct sock_fprog prog = {.len = sizeof f / sizeof *f, .filter = f};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &prog)) {
        perror("refuse: seccomp");
        return 1;
    }
    execvp(argv[2], argv + 2);
    perror(argv[2]);
    return 127;
}
