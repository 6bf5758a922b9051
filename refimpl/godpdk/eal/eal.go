//go:build dpdk

// Package eal starts and ends DPDK's environment.
package eal

/*
#cgo pkg-config: libdpdk
#cgo CFLAGS: -Wall -Wextra
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_lcore.h>

static int
mr_rte_errno(void)
{
	return rte_errno;
}

extern void mr_eal_starts(bool on);
*/
import "C"

import (
	"errors"
	"fmt"
	"runtime"
	"syscall"
	"unsafe"
)

// result is what the thread that is the main lcore says about the start.
type result struct {
	n   int
	err error
}

// Init starts the environment with the arguments of a DPDK program, args[0] being its name, and returns how many of them
// were EAL's. The calling goroutine stays as it is: a thread of its own becomes the main lcore, since EAL binds it to a
// core, and lives as long as the process. Where EAL would end the process, the error is ErrExit.
func Init(args []string) (n int, err error) {
	starting = make(chan result)
	go func() {
		runtime.LockOSThread() // never unlocked
		C.mr_eal_starts(true)
		n, err := initHere(args)
		C.mr_eal_starts(false)
		starting <- result{n, err}
		select {}
	}()
	r := <-starting
	return r.n, r.err
}

func initHere(args []string) (int, error) {
	if len(args) == 0 {
		return 0, errors.New("eal: no arguments, not even a name")
	}
	// EAL keeps pointers into argv, and shuffles it: it is never freed.
	argv := (**C.char)(C.calloc(C.size_t(len(args)+1), C.size_t(unsafe.Sizeof((*C.char)(nil)))))
	list := unsafe.Slice(argv, len(args))
	for i, a := range args {
		list[i] = C.CString(a)
	}
	n := C.rte_eal_init(C.int(len(args)), argv)
	if n < 0 {
		return 0, fmt.Errorf("eal: %w", syscall.Errno(C.mr_rte_errno()))
	}
	return int(n), nil
}

// Cleanup gives back what Init took.
func Cleanup() error {
	if n := C.rte_eal_cleanup(); n < 0 {
		return fmt.Errorf("eal: %w", syscall.Errno(-n))
	}
	return nil
}

// HasHugePages reports whether memory is huge pages.
func HasHugePages() bool { return C.rte_eal_has_hugepages() != 0 }

// GetMainLcore is the lcore of the main thread.
func GetMainLcore() uint { return uint(C.rte_get_main_lcore()) }

// LcoreCount is how many lcores were asked for.
func LcoreCount() uint { return uint(C.rte_lcore_count()) }
