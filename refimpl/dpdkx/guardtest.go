//go:build dpdk

package dpdkx

/*
#include <stddef.h>
#include <sys/mman.h>

#include "guard.h"

static void *
map_page(void)
{
	return mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static void
touch(volatile char *p)
{
	*p = 1;
}
*/
import "C"

import "unsafe"

// For the test of the guard: tests cannot use cgo.

func mapPage() unsafe.Pointer { return C.map_page() }

func unmapPage(p unsafe.Pointer) { C.munmap(p, 4096) }

func touch(p unsafe.Pointer) { C.touch((*C.char)(p)) }

// underBurst has a burst under way for as long as f runs.
func underBurst(f func()) {
	g := C.mr_guard_take()
	defer C.mr_guard_give(g)
	C.mr_burst_begin(g)
	defer C.mr_burst_end(g)
	f()
}
