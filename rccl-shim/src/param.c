/* SPDX-License-Identifier: Apache-2.0
 *
 * param.c: settings, by environment. Read once, at first use.
 */
#include "net.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name, *alias;
    long def, least, most;
} params[PARAM_COUNT] = {
#define PARAM_ROW(name, alias, def, least, most, text) [PARAM_##name] = {"MR_NET_" #name, alias, def, least, most},
    PARAMS(PARAM_ROW)};

static int values[PARAM_COUNT];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static bool read_param(enum param p, const char *name) {
    const char *text = name ? getenv(name) : NULL;
    char *end;
    if (!text || !*text)
        return false;
    errno = 0;
    long v = strtol(text, &end, 0);
    if (errno || *end || v < params[p].least || v > params[p].most) {
        WARN("%s=%s is no number from %ld to %ld; %ld is used", name, text, params[p].least, params[p].most,
             params[p].def);
        return false;
    }
    values[p] = (int)v;
    return true;
}

static void read_params(void) {
    for (int p = 0; p < PARAM_COUNT; p++) {
        values[p] = (int)params[p].def;
        if (!read_param(p, params[p].name))
            read_param(p, params[p].alias);
    }
}

int param(enum param p) {
    pthread_once(&once, read_params);
    return values[p];
}

const char *param_word(const char *name, const char *alias) {
    const char *s = getenv(name);
    if (!s || !*s)
        s = alias ? getenv(alias) : NULL;
    return s && *s ? s : NULL;
}

/* One word of a list, as far as the comma. */
static bool word_match(const char *word, size_t len, const char *name, int port, bool exact) {
    const char *colon = memchr(word, ':', len);
    size_t n = colon ? (size_t)(colon - word) : len;
    if (colon && port >= 0 && atoi(colon + 1) != port)
        return false;
    return exact ? strlen(name) == n && !memcmp(name, word, n) : !strncmp(name, word, n);
}

bool param_match(const char *list, const char *name, int port) {
    bool except = false, exact = false, hit = false;
    if (!list)
        return true;
    for (; *list == '^' || *list == '='; list++)
        *list == '^' ? (except = true) : (exact = true);
    while (*list) {
        size_t n = strcspn(list, ",");
        hit |= n && word_match(list, n, name, port, exact);
        list += n + (list[n] == ',');
    }
    return hit != except;
}
