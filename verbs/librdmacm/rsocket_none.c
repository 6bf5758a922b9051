/* SPDX-License-Identifier: Apache-2.0
 *
 * rsocket_none.c: the names of rsockets. Debian's rdmacm-utils want them to be there, whether they use them or not;
 * until rsockets are built on this library's public API, each answers EOPNOTSUPP. Their prototypes (rdma/rsocket.h) do
 * not matter for that: all return -1, as an int or a ssize_t.
 */
#include "cm.h"

static ssize_t none(void) {
    errno = EOPNOTSUPP;
    return -1;
}

#define NONE(name)                \
    MR_EXPORT ssize_t name(void); \
    ssize_t name(void) {          \
        return none();            \
    }

NONE(raccept)
NONE(rbind)
NONE(rclose)
NONE(rconnect)
NONE(rfcntl)
NONE(rgetpeername)
NONE(rgetsockname)
NONE(rgetsockopt)
NONE(riomap)
NONE(riounmap)
NONE(riowrite)
NONE(rlisten)
NONE(rpoll)
NONE(rread)
NONE(rreadv)
NONE(rrecv)
NONE(rrecvfrom)
NONE(rrecvmsg)
NONE(rselect)
NONE(rsend)
NONE(rsendmsg)
NONE(rsendto)
NONE(rsetsockopt)
NONE(rshutdown)
NONE(rsocket)
NONE(rwrite)
NONE(rwritev)
