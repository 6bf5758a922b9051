package device_test

import (
	"errors"
	"syscall"
	"testing"

	"github.com/metaroce/metaroce/device"
	"github.com/metaroce/metaroce/device/hostq"
	"github.com/metaroce/metaroce/transport"
)

const (
	bindRight = 1 << 4
	zeroBased = 1 << 5
	farWrite  = 1 << 1
	farRead   = 1 << 2
	windowWR  = farWrite | farRead
	signaled  = hostq.SendSignaled
	mwOff     = 0x4000 // of the windows of these tests, in their region
	mwLength  = 0x1000
	mwType1   = 1
	mwType2   = 2
	bindOnly  = bindRight | 1 // a region that grants nothing to peers by itself
)

// binding is a BIND_MW over [addr, addr+length) of a region.
func binding(id uint64, rkey uint32, region *device.MR, addr, length uint64, access uint32) hostq.SQE {
	e := hostq.SQE{WRID: id, Opcode: hostq.WRBindMW, Flags: signaled, RKey: rkey, RemoteAddr: addr}
	e.SetBind(length, region.Key(), access)
	return e
}

func (p *prog) window(typ uint32) *device.MW {
	p.t.Helper()
	return must(p.ctx.AllocMW(&hostq.AllocMW{PD: p.pd, Type: typ}))(p.t)
}

func (p *prog) region(access uint32, iova uint64) *device.MR {
	p.t.Helper()
	return must(p.ctx.RegMR(&hostq.RegMR{PD: p.pd, Addr: ramBase, IOVA: iova, Length: ramBytes, Access: access}))(p.t)
}

func drain(p *prog) {
	for _, ok := p.CQ.Poll(); ok; _, ok = p.CQ.Poll() {
	}
}

func nextTag(key uint32) uint32 { return key&^0xff | (key+1)&0xff }

// TestWindow: a window opens, serves within its bounds and rights, and closes, each way there is.
func TestWindow(t *testing.T) {
	policies(t, func(t *testing.T, policy device.Policy) {
		w := newWorldOf(t, false, policy)
		a, b, qa, qb := w.pair(t)
		region := b.region(bindOnly, ramBase)
		again := func() { // a fresh connection after an error
			w.step(1000)
			drain(a)
			drain(b)
			qa, qb = a.qp(), b.qp()
			a.up(qa, b.nic.Addrs()[0], qb.QPN())
			b.up(qb, a.nic.Addrs()[0], qa.QPN())
		}
		id := uint64(100)
		write := func(key uint32, addr uint64, want transport.Status) {
			t.Helper()
			id++
			copy(a.ram.b, "0123456789")
			post(qa, hostq.SQE{WRID: id, Opcode: hostq.WRWrite, Flags: signaled, RKey: key, RemoteAddr: addr}, nil, a.sge(0, 10))
			w.want(a, id, want)
			if want != transport.OK {
				again()
			}
		}
		bind := func(e hostq.SQE, want transport.Status) hostq.CQE {
			t.Helper()
			post(qb, e, nil)
			return w.want(b, e.WRID, want)
		}

		// Type 2.
		//= MR-VRB-044
		mw := b.window(mwType2)
		write(mw.Key(), ramBase+mwOff, transport.RemAccessErr)
		key := nextTag(mw.Key())
		if e := bind(binding(1, key, region, ramBase+mwOff, mwLength, windowWR), transport.OK); e.Opcode != 5 {
			t.Errorf("opcode %d", e.Opcode)
		}
		if err := b.ctx.DeregMR(region.Handle()); !errors.Is(err, syscall.EBUSY) {
			t.Errorf("a bound region is deregistered: %v", err)
		}
		write(key, ramBase+mwOff, transport.OK)
		if got := string(b.ram.b[mwOff : mwOff+10]); got != "0123456789" {
			t.Errorf("%q", got)
		}
		write(key, ramBase+mwOff+mwLength-9, transport.RemAccessErr) // one byte beyond; this QP's successor has no right at all
		write(key, ramBase+mwOff, transport.RemAccessErr)
		//= MR-VRB-042
		bind(binding(2, nextTag(key), region, ramBase+mwOff, mwLength, windowWR), transport.MWBindErr) // it is open already
		again()
		if err := b.ctx.FreeMW(mw.Handle()); err != nil {
			t.Fatal(err)
		}

		// The peer closes it.
		//= MR-MSG-054
		mw = b.window(mwType2)
		key = nextTag(mw.Key())
		bind(binding(3, key, region, ramBase+mwOff, mwLength, windowWR|zeroBased), transport.OK)
		write(key, 100, transport.OK)
		if got := string(b.ram.b[mwOff+100 : mwOff+110]); got != "0123456789" {
			t.Errorf("zero-based: %q", got)
		}
		receive(qb, 4, b.sge(0, 100))
		post(qa, hostq.SQE{WRID: 5, Opcode: hostq.WRSendInv, Flags: signaled, Imm: key}, nil, a.sge(0, 10))
		w.want(a, 5, transport.OK)
		if e := w.want(b, 4, transport.OK); e.Imm != key || e.WCFlags != 8 {
			t.Errorf("invalidated %#x, flags %x", e.Imm, e.WCFlags)
		}
		write(key, 100, transport.RemAccessErr)

		// Its own side closes it; a second time is an error.
		//= MR-VRB-043
		key = nextTag(key)
		bind(binding(6, key, region, ramBase+mwOff, mwLength, farRead), transport.OK)
		if e := bind(hostq.SQE{WRID: 7, Opcode: hostq.WRLocalInv, Flags: signaled, Imm: key}, transport.OK); e.Opcode != 6 {
			t.Errorf("opcode %d", e.Opcode)
		}
		bind(hostq.SQE{WRID: 8, Opcode: hostq.WRLocalInv, Flags: signaled, Imm: key}, transport.LocQPOpErr)
		again()
		bind(hostq.SQE{WRID: 9, Opcode: hostq.WRLocalInv, Flags: signaled, Imm: region.Key()}, transport.LocQPOpErr)
		again()

		// Type 1: bound again and again, closed by length 0, by any QP of the domain.
		mw1 := b.window(mwType1)
		k1 := nextTag(mw1.Key())
		bind(binding(10, k1, region, ramBase+mwOff, mwLength, windowWR), transport.OK)
		k2 := nextTag(k1)
		bind(binding(11, k2, region, ramBase+2*mwOff, mwLength, farWrite), transport.OK)
		write(k2, ramBase+2*mwOff, transport.OK)
		write(k1, ramBase+mwOff, transport.RemAccessErr)
		write(k2, ramBase+2*mwOff, transport.OK) // another QP
		post(qa, hostq.SQE{WRID: 12, Opcode: hostq.WRRead, Flags: signaled, RKey: k2, RemoteAddr: ramBase + 2*mwOff}, nil, a.sge(0, 8))
		w.want(a, 12, transport.RemAccessErr) // no right to read
		again()
		k3 := nextTag(k2)
		bind(binding(13, k3, region, 0, 0, 0), transport.OK)
		write(k3, ramBase+2*mwOff, transport.RemAccessErr)

		for _, m := range []*device.MW{mw, mw1} {
			if err := b.ctx.FreeMW(m.Handle()); err != nil {
				t.Error(err)
			}
		}
		if err := b.ctx.DeregMR(region.Handle()); err != nil {
			t.Errorf("no window shows it any more: %v", err)
		}
		if l := b.nic.C.Live; l.MWs != 0 || b.nic.C.BindErrors == 0 {
			t.Errorf("%+v, %d bind errors", l, b.nic.C.BindErrors)
		}
	})
}

// TestBindRefused: what a BIND_MW cannot ask for, and what of a window cannot be done otherwise.
func TestBindRefused(t *testing.T) {
	w := newWorldOf(t, false, device.Auto)
	a, b, _, _ := w.pair(t)
	region, plain, shifted := b.region(bindOnly|windowWR, ramBase), b.mr, b.region(bindOnly, 0)
	readOnly := b.region(bindRight, ramBase)
	otherPD := must(b.ctx.AllocPD())(t)
	foreign := must(b.ctx.RegMR(&hostq.RegMR{PD: otherPD, Addr: ramBase, IOVA: ramBase, Length: ramBytes, Access: bindOnly}))(t)
	mw1, mw2 := b.window(mwType1), b.window(mwType2)
	far := must(b.ctx.AllocMW(&hostq.AllocMW{PD: otherPD, Type: mwType2}))(t)
	k1, k2 := nextTag(mw1.Key()), nextTag(mw2.Key())
	//= MR-VRB-042
	for name, e := range map[string]hostq.SQE{
		"no window":               binding(1, region.Key(), region, ramBase, 100, farRead),
		"nobody's key":            binding(1, k2^0x55500, region, ramBase, 100, farRead),
		"no right to be bound":    binding(1, k2, plain, ramBase, 100, farRead),
		"beyond the region":       binding(1, k2, region, ramBase+ramBytes-99, 100, farRead),
		"before the region":       binding(1, k2, region, ramBase-1, 100, farRead),
		"endless":                 binding(1, k2, region, ramBase, 1<<63, farRead),
		"write without right":     binding(1, k2, readOnly, ramBase, 100, farWrite),
		"the same key":            binding(1, mw2.Key(), region, ramBase, 100, farRead),
		"type 2 of length 0":      binding(1, k2, region, ramBase, 0, farRead),
		"type 1 and zero-based":   binding(1, k1, region, ramBase, 100, farRead|zeroBased),
		"rights nobody knows":     binding(1, k2, region, ramBase, 100, 1<<9),
		"region of another PD":    binding(1, k2, foreign, ramBase, 100, farRead),
		"window of another PD":    binding(1, nextTag(far.Key()), region, ramBase, 100, farRead),
		"region that is a window": binding(1, k2, region, ramBase, 100, farRead),
	} {
		t.Run(name, func(t *testing.T) {
			if name == "region that is a window" {
				e.SetBind(100, mw1.Key(), farRead)
			}
			qa, qb := a.qp(), b.qp()
			a.up(qa, b.nic.Addrs()[0], qb.QPN())
			b.up(qb, a.nic.Addrs()[0], qa.QPN())
			post(qb, e, nil)
			w.want(b, 1, transport.MWBindErr)
			if b.state(qb) != device.Err {
				t.Error(b.state(qb))
			}
		})
	}
	for _, typ := range []uint32{0, 3} {
		if _, err := b.ctx.AllocMW(&hostq.AllocMW{PD: b.pd, Type: typ}); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("type %d: %v", typ, err)
		}
	}
	if _, err := b.ctx.AllocMW(&hostq.AllocMW{PD: 99, Type: 1}); !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
	if err := b.ctx.FreeMW(99); !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
	if err := b.ctx.FreePD(b.pd); !errors.Is(err, syscall.EBUSY) {
		t.Error(err)
	}

	// A window's key is no key for local memory.
	qa, qb := a.qp(), b.qp()
	a.up(qa, b.nic.Addrs()[0], qb.QPN())
	b.up(qb, a.nic.Addrs()[0], qa.QPN())
	post(qb, binding(2, k2, shifted, mwOff, 100, farWrite), nil)
	w.want(b, 2, transport.OK)
	post(qb, hostq.SQE{WRID: 3, Opcode: hostq.WRSend, Flags: signaled}, nil, hostq.SGE{Addr: mwOff, Length: 10, LKey: k2})
	w.want(b, 3, transport.LocProtErr)

	// All goes with its program.
	b.ctx.Close(w.now)
	if l := b.nic.C.Live; l.MWs != 0 || l.MRs != 0 {
		t.Errorf("%+v", l)
	}
}

// TestWindowKeys: no key that a window had, or could have chosen, works for what has its place in the table afterwards.
func TestWindowKeys(t *testing.T) {
	w := newWorld(t, true)
	p := newProg(t, w.nics[0])
	seen := map[uint32]bool{}
	for range 3000 {
		m := p.window(mwType1)
		if key := m.Key() &^ 0xff; seen[key] {
			t.Fatalf("key %#x again", key)
		} else {
			seen[key] = true
		}
		if err := p.ctx.FreeMW(m.Handle()); err != nil {
			t.Fatal(err)
		}
	}
	for range 3000 {
		r := p.region(bindOnly, ramBase)
		if seen[r.Key()&^0xff] {
			t.Fatalf("region's key %#x is one that a window could have", r.Key())
		}
		if err := p.ctx.DeregMR(r.Handle()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestAtomicWrite: 8 bytes, aligned, in one piece; what is neither is refused by the requester.
func TestAtomicWrite(t *testing.T) {
	policies(t, func(t *testing.T, policy device.Policy) {
		w := newWorldOf(t, false, policy)
		a, b, qa, qb := w.pair(t)
		value := []byte("8 bytes!")
		wr := func(id, addr uint64) hostq.SQE {
			return hostq.SQE{WRID: id, Opcode: hostq.WRAtomicWrite, Flags: signaled, RKey: b.mr.Key(), RemoteAddr: addr}
		}
		inlined := wr(1, ramBase+16)
		inlined.Flags |= hostq.SendInline
		//= MR-VRB-010
		b.ram.pieces = nil
		post(qa, inlined, value)
		if e := w.want(a, 1, transport.OK); e.Opcode != 9 {
			t.Errorf("opcode %d", e.Opcode)
		}
		if got := string(b.ram.b[16:24]); got != string(value) || len(b.ram.pieces) != 1 || b.ram.pieces[0] != 8 {
			t.Errorf("%q, written in pieces of %v", got, b.ram.pieces)
		}
		copy(a.ram.b, "a list..")
		post(qa, wr(2, ramBase+24), nil, a.sge(0, 8))
		w.want(a, 2, transport.OK)
		if got := string(b.ram.b[24:32]); got != "a list.." {
			t.Errorf("%q", got)
		}
		for name, bad := range map[string]struct {
			addr uint64
			n    uint32
			want transport.Status
		}{"unaligned": {ramBase + 4, 8, transport.RemInvReqErr}, "too long": {ramBase, 16, transport.LocLenErr}, "empty": {ramBase, 0, transport.LocLenErr}} {
			t.Run(name, func(t *testing.T) {
				qa, qb = a.qp(), b.qp()
				a.up(qa, b.nic.Addrs()[0], qb.QPN())
				b.up(qb, a.nic.Addrs()[0], qa.QPN())
				post(qa, wr(3, bad.addr), nil, a.sge(0, bad.n))
				w.want(a, 3, bad.want)
			})
		}
	})
}
