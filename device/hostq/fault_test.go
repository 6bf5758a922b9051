//go:build !race

// The race detector does atomics in C, where a fault is the end.

package hostq_test

import (
	"runtime/debug"
	"syscall"
	"testing"

	"github.com/metaroce/metaroce/device/hostq"
)

// TestFaults: memory that is not there is an answer, not the end.
func TestFaults(t *testing.T) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	b, err := syscall.Mmap(-1, 0, 1<<20, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Munmap(b)
	m, err := hostq.NewMem(b)
	if err != nil {
		t.Fatal(err)
	}
	r, err := m.Ring(hostq.CtxPageBytes, 4, 128, 4)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mprotect(b, syscall.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	var e hostq.SQE
	var c hostq.CQE
	calls := map[string]func() bool{
		"SetAsleep":   func() bool { return m.SetAsleep(1) },
		"SetDead":     m.SetDead,
		"PeekSummary": func() bool { _, ok := m.PeekSummary(1); return ok },
		"TakeSummary": func() bool { _, ok := m.TakeSummary(1); return ok },
		"TakeBell":    func() bool { _, ok := m.TakeBell(1); return ok },
		"Prod":        func() bool { _, ok := r.Prod(); return ok },
		"Cons":        func() bool { _, ok := r.Cons(); return ok },
		"SetProd":     func() bool { return r.SetProd(1) },
		"SetCons":     func() bool { return r.SetCons(1) },
		"Armed":       func() bool { _, ok := r.Armed(); return ok },
		"TakeArm":     func() bool { _, ok := r.TakeArm(); return ok },
		"SetArm":      func() bool { return r.SetArm(1) },
		"SetFlags":    func() bool { return r.SetFlags(1) },
		"CopySQE":     func() bool { _, ok := r.CopySQE(0, &e, nil); return ok },
		"CopyRQE":     func() bool { _, ok := r.CopyRQE(0, &hostq.RQE{}, nil); return ok },
		"PutCQE":      func() bool { return r.PutCQE(0, &c) },
		"CopyCQE":     func() bool { return r.CopyCQE(0, &c) },
		"CopyIn":      func() bool { return hostq.CopyIn(make([]byte, 8), r.SendPayload(0, 8)) },
	}
	for name, f := range calls {
		if f() {
			t.Errorf("%s: worked on memory that is not there", name)
		}
	}
	defer func() {
		if recover() == nil {
			t.Error("a bug was swallowed")
		}
	}()
	var none *hostq.SQE
	r.CopySQE(0, none, nil)
}
