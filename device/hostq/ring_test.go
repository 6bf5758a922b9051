package hostq_test

import (
	"testing"

	"github.com/metaroce/metaroce/device/hostq"
	"github.com/metaroce/metaroce/device/hostq/hostqtest"
)

// TestPlaces: a ring that does not fit is not made.
func TestPlaces(t *testing.T) {
	m := hostq.NewTestMem(1 << 20)
	for _, c := range []struct {
		off            uint64
		n, stride, max uint32
		ok             bool
	}{
		{hostq.CtxPageBytes, 64, 64, 64, true},
		{1<<20 - 4096, 32, 64, 64, true},
		{1<<20 - 4096, 64, 64, 64, false},
		{1 << 20, 1, 64, 64, false},
		{0, 64, 64, 64, false},
		{hostq.CtxPageBytes + 64, 64, 64, 64, false},
		{hostq.CtxPageBytes, 128, 64, 64, false},
		{hostq.CtxPageBytes, 0, 64, 64, false},
		{hostq.CtxPageBytes, 63, 64, 64, false},
		{hostq.CtxPageBytes, 64, 0, 64, false},
		{hostq.CtxPageBytes, 64, 1 << 16, 64, false},
		{hostq.CtxPageBytes, 1 << 31, 4096, 1 << 31, false},
		{^uint64(0) &^ 4095, 64, 64, 64, false},
		{1<<63 + hostq.CtxPageBytes, 64, 64, 64, false},
	} {
		if _, err := m.Ring(c.off, c.n, c.stride, c.max); (err == nil) != c.ok {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// TestIndicesAreMasked: there is no index outside of a ring, and no list longer than its slot.
func TestIndicesAreMasked(t *testing.T) {
	m := hostq.NewTestMem(1 << 20)
	p := hostqtest.New(m)
	q := p.NewQueue(4, 128, 0)
	r, err := m.Ring(q.Off, 4, 128, 4)
	if err != nil {
		t.Fatal(err)
	}
	sge := make([]hostq.SGE, hostq.MaxSGE)
	q.PutSend(hostq.SQE{WRID: 7}, nil, make([]hostq.SGE, 9)...)
	var e hostq.SQE
	if n, ok := r.CopySQE(0xfffffffc, &e, sge); !ok || n != 4 || e.WRID != 7 || e.NumSGE != 9 {
		t.Errorf("%d %v %+v", n, ok, e)
	}
	q.PutRecv(8, make([]hostq.SGE, 9)...)
	var rq hostq.RQE
	if n, ok := r.CopyRQE(5, &rq, sge); !ok || n != 7 || rq.WRID != 8 || rq.NumSGE != 9 {
		t.Errorf("%d %v %+v", n, ok, rq)
	}
	if r.SendPayload(0, 65) != nil || len(r.SendPayload(0, 64)) != 64 {
		t.Error("payload")
	}
	if !r.SetProd(3) || q.Hdr.Prod != 3 {
		t.Error("producer index")
	}
}

func TestNoAllocation(t *testing.T) {
	m := hostq.NewTestMem(1 << 20)
	r, err := m.Ring(hostq.CtxPageBytes, 4, 128, 4)
	if err != nil {
		t.Fatal(err)
	}
	var e hostq.SQE
	var c hostq.CQE
	sge := make([]hostq.SGE, 4)
	if n := testing.AllocsPerRun(100, func() {
		r.Prod()
		r.CopySQE(1, &e, sge)
		r.PutCQE(1, &c)
		r.SetProd(1)
		m.TakeSummary(0)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkPutCQE(b *testing.B) {
	m := hostq.NewTestMem(1 << 20)
	r, _ := m.Ring(hostq.CtxPageBytes, 4, 128, 4)
	var c hostq.CQE
	for i := range b.N {
		r.Cons()
		r.PutCQE(uint32(i), &c)
		r.SetProd(uint32(i))
	}
}
