/* SPDX-License-Identifier: Apache-2.0
 *
 * data.c: what is sent, what must arrive. Values are small whole numbers, so that sums are exact in every type and
 * order.
 */
#include "coll.h"

#include <string.h>

const char *const type_names[] = {"float", "double", "int32", "uint8"};

size_t type_size(void) {
    static const size_t sizes[] = {4, 8, 4, 1};
    return sizes[opt.type];
}

double value(int rank, size_t i) {
    return (double)((i * 7 + (i >> 10) + (size_t)rank * 3) % 13);
}

/* BODY once for each type, with T its name. */
#define FOR_TYPE(BODY)     \
    switch (opt.type) {    \
    case TYPE_FLOAT: {     \
        typedef float T;   \
        BODY;              \
        break;             \
    }                      \
    case TYPE_DOUBLE: {    \
        typedef double T;  \
        BODY;              \
        break;             \
    }                      \
    case TYPE_INT32: {     \
        typedef int32_t T; \
        BODY;              \
        break;             \
    }                      \
    case TYPE_UINT8: {     \
        typedef uint8_t T; \
        BODY;              \
        break;             \
    }                      \
    }

void data_fill(char *src, size_t count) {
    FOR_TYPE(for (size_t i = 0; i < count; i++)((T *)src)[i] = (T)value(opt.rank, i))
}

size_t data_wrong(const struct coll *c, const char *dst, size_t bytes, size_t count) {
    size_t wrong = 0;
    FOR_TYPE(for (size_t i = 0; i < bytes / sizeof(T); i++) wrong +=
             ((const T *)dst)[i] != (T)c->expected(opt.rank, i, count))
    return wrong;
}

void data_add(void *to, const void *from, size_t bytes) {
    FOR_TYPE(T *restrict a = to; const T *restrict b = from;
             for (size_t i = 0, n = bytes / sizeof(T); i < n; i++) a[i] = (T)(a[i] + b[i]))
}
