/* SPDX-License-Identifier: Apache-2.0
 *
 * sysfs.c: the two calls by which programs read sysfs through us. Files below the directories of our devices are
 * answered from what the daemon said; everything else is read for real.
 */
#include "mr.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* MR_SYSFS: a made-up tree (nicemu run sets it where it cannot mount one). */
MR_EXPORT const char *ibv_get_sysfs_path(void);
const char *ibv_get_sysfs_path(void) {
    const char *ours = secure_getenv("MR_SYSFS"), *p = ours && *ours ? ours : secure_getenv("SYSFS_PATH");
    return p && *p ? p : "/sys";
}

/* The device behind .../infiniband/NAME, opened once to learn its attributes. */
static bool attributes(const char *name, struct mr_device_attr *out) {
    int n = 0;
    struct ibv_device **list = ibv_get_device_list(&n);
    bool found = false;
    for (int i = 0; i < n && !found; i++) {
        if (strcmp(list[i]->name, name))
            continue;
        struct mr_dev *d = (struct mr_dev *)list[i];
        if (!d->have_attr) {
            struct ibv_context *c = ibv_open_device(list[i]);
            if (c)
                ibv_close_device(c);
        }
        found = d->have_attr;
        *out = d->attr;
    }
    ibv_free_device_list(list);
    return found;
}

static int guid_text(char *to, size_t size, uint64_t guid) {
    const uint8_t *b = (const uint8_t *)&guid;
    return snprintf(to, size, "%02x%02x:%02x%02x:%02x%02x:%02x%02x", b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]);
}

static int answer(const char *name, const char *file, char *buf, size_t size) {
    struct mr_device_attr a;
    if (!strcmp(file, "node_type"))
        return snprintf(buf, size, "1: CA");
    if (!attributes(name, &a))
        return -1;
    if (!strcmp(file, "board_id"))
        return snprintf(buf, size, "%s", a.board_id);
    if (!strcmp(file, "fw_ver"))
        return snprintf(buf, size, "%s", a.fw_ver);
    if (!strcmp(file, "hw_rev"))
        return snprintf(buf, size, "0x%x", a.hw_ver);
    if (!strcmp(file, "hca_type") || !strcmp(file, "node_desc"))
        return snprintf(buf, size, "MetaRoCE emulated NIC %s", name);
    if (!strcmp(file, "node_guid"))
        return guid_text(buf, size, a.node_guid);
    if (!strcmp(file, "sys_image_guid"))
        return guid_text(buf, size, a.sys_image_guid);
    return -1;
}

static int read_file(const char *dir, const char *file, char *buf, size_t size) {
    char path[4096];
    if (snprintf(path, sizeof path, "%s/%s", dir, file) >= (int)sizeof path)
        return -1;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    ssize_t n = read(fd, buf, size);
    close(fd);
    if (n > 0) {
        if (buf[n - 1] == '\n')
            buf[--n] = 0;
        else if ((size_t)n < size)
            buf[n] = 0;
        else
            return -1; /* does not fit with its end */
    }
    return (int)n;
}

/* Returns the length of the text, without its newline, or -1. */
MR_EXPORT int ibv_read_sysfs_file(const char *dir, const char *file, char *buf, size_t size);
int ibv_read_sysfs_file(const char *dir, const char *file, char *buf, size_t size) {
    static const char class_dir[] = "/class/infiniband/";
    int n = read_file(dir, file, buf, size);
    if (n >= 0)
        return n;
    const char *name = strstr(dir, class_dir);
    if (!name)
        return -1;
    name += sizeof class_dir - 1;
    if (!*name || strchr(name, '/'))
        return -1;
    n = answer(name, file, buf, size);
    return n < 0 || (size_t)n >= size ? -1 : n;
}
