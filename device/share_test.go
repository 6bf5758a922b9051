package device_test

import (
	"bytes"
	"errors"
	"syscall"
	"testing"

	"github.com/metaroce/metaroce/device"
	"github.com/metaroce/metaroce/device/hostq"
	"github.com/metaroce/metaroce/device/hostq/hostqtest"
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/transport"
)

const (
	onDemand   = 1 << 6
	everything = 1<<64 - 1
	// Addresses that are not in a program's memory.
	nowhere = ramBase - 0x1000
)

// TestOnDemand: a region that is the whole of a program's memory reaches what is there when it is used; short receives
// into it do not travel in the completion, for the program to put where nothing may be.
func TestOnDemand(t *testing.T) {
	policies(t, func(t *testing.T, policy device.Policy) {
		w := newWorldOf(t, false, policy)
		a, b, qa, qb := w.pair(t)
		all := must(b.ctx.RegMR(&hostq.RegMR{PD: b.pd, Length: everything, Access: allRight | onDemand}))(t)
		for _, bad := range []hostq.RegMR{
			{PD: b.pd, Length: everything, Access: allRight},
			{PD: b.pd, Addr: ramBase, Length: everything, Access: allRight | onDemand},
			{PD: b.pd, IOVA: ramBase, Length: everything, Access: allRight | onDemand},
		} {
			if _, err := b.ctx.RegMR(&bad); !errors.Is(err, syscall.EINVAL) {
				t.Errorf("%+v: %v", bad, err)
			}
		}
		copy(a.ram.b, "0123456789")
		post(qa, hostq.SQE{WRID: 1, Opcode: hostq.WRWrite, Flags: signaled, RKey: all.Key(), RemoteAddr: ramBase + 64}, nil, a.sge(0, 10))
		w.want(a, 1, transport.OK)
		if got := string(b.ram.b[64:74]); got != "0123456789" {
			t.Errorf("written: %q", got)
		}
		receive(qb, 2, hostq.SGE{Addr: ramBase + 128, Length: 64, LKey: all.Key()})
		post(qa, hostq.SQE{WRID: 3, Opcode: hostq.WRSend, Flags: signaled}, nil, a.sge(0, 10))
		if e := w.want(b, 2, transport.OK); e.InlineLen != 0 || string(b.ram.b[128:138]) != "0123456789" {
			t.Errorf("%d bytes inline, memory %q", e.InlineLen, b.ram.b[128:138])
		}
		w.want(a, 3, transport.OK)
		post(qa, hostq.SQE{WRID: 4, Opcode: hostq.WRWrite, Flags: signaled, RKey: all.Key(), RemoteAddr: nowhere}, nil, a.sge(0, 10))
		w.want(a, 4, transport.RemAccessErr)
	})
}

// TestNullMR: reads give zeros, writes go nowhere, and nobody reaches it from afar.
func TestNullMR(t *testing.T) {
	policies(t, func(t *testing.T, policy device.Policy) {
		w := newWorldOf(t, false, policy)
		a, b, qa, qb := w.pair(t)
		null, nullB := must(a.ctx.AllocNullMR(a.pd))(t), must(b.ctx.AllocNullMR(b.pd))(t)
		for i := range b.ram.b[:4096] {
			a.ram.b[i], b.ram.b[i] = 0xaa, 0xbb
		}
		// ten bytes, ten zeros, ten bytes
		list := []hostq.SGE{a.sge(0, 10), {Addr: 5, Length: 10, LKey: null.Key()}, a.sge(0, 10)}
		post(qa, hostq.SQE{WRID: 1, Opcode: hostq.WRWrite, Flags: signaled, RKey: b.mr.Key(), RemoteAddr: ramBase}, nil, list...)
		w.want(a, 1, transport.OK)
		want := append(append(bytes.Repeat([]byte{0xaa}, 10), make([]byte, 10)...), bytes.Repeat([]byte{0xaa}, 10)...)
		if !bytes.Equal(b.ram.b[:31], append(want, 0xbb)) {
			t.Errorf("gathered % x", b.ram.b[:31])
		}
		for n := uint32(20); n <= 2000; n += 1980 { // of one that the completion has room for, too
			receive(qb, 2, hostq.SGE{Length: n - 5, LKey: nullB.Key()}, hostq.SGE{Addr: ramBase + 100, Length: 5, LKey: b.mr.Key()})
			copy(a.ram.b[n-5:], "tails")
			clear(b.ram.b[100:105])
			post(qa, hostq.SQE{WRID: 3, Opcode: hostq.WRSend, Flags: signaled}, nil, a.sge(0, n))
			if e := w.want(b, 2, transport.OK); e.ByteLen != n || e.InlineLen != 0 || string(b.ram.b[100:105]) != "tails" {
				t.Errorf("received %d, %d inline, %q", e.ByteLen, e.InlineLen, b.ram.b[100:105])
			}
			w.want(a, 3, transport.OK)
		}
		if _, err := a.ctx.ReregMR(&hostq.RegMR{Handle: null.Handle(), Rereg: 4}); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("rereg: %v", err)
		}
		post(qa, hostq.SQE{WRID: 4, Opcode: hostq.WRWrite, Flags: signaled, RKey: nullB.Key(), RemoteAddr: 0}, nil, a.sge(0, 10))
		w.want(a, 4, transport.RemAccessErr)
	})
}

// sharing opens a context of another program with from's domains and regions.
func sharing(t *testing.T, from *prog) *prog {
	p := &prog{t: t, nic: from.nic, ev: &events{}, ram: &ram{base: ramBase, b: make([]byte, ramBytes)}, pd: from.pd, mr: from.mr}
	mem := hostq.NewTestMem(8 << 20)
	p.Prog = hostqtest.New(mem)
	p.ctx = from.nic.ImportContext(device.ContextConfig{Mem: mem, Space: p.ram, Notifier: p.ev, Program: "importer", PID: 2}, from.ctx)
	p.CQ = p.NewQueue(1024, 128, 0)
	p.cq = must(p.ctx.CreateCQ(&hostq.CreateCQ{Entries: 1024, Ring: p.CQ.Off}))(t)
	return p
}

// TestImport: two programs with the same addresses and other bytes; each region's are those of who registered it.
func TestImport(t *testing.T) {
	policies(t, func(t *testing.T, policy device.Policy) {
		w := newWorldOf(t, false, policy)
		a, b, _, _ := w.pair(t)
		im := sharing(t, b)
		if !im.ctx.HasPD(b.pd) || im.ctx.HasPD(b.pd+1) {
			t.Fatal("domains")
		}
		mr := must(im.ctx.ImportMR(b.mr.Handle()))(t)
		if mr.Key() != b.mr.Key() {
			t.Fatal("key")
		}
		own := must(im.ctx.RegMR(&hostq.RegMR{PD: b.pd, Addr: ramBase, IOVA: ramBase, Length: ramBytes, Access: allRight}))(t)
		qa, qi := a.qp(), im.qp()
		a.up(qa, b.nic.Addrs()[0], qi.QPN())
		im.up(qi, a.nic.Addrs()[0], qa.QPN())

		copy(a.ram.b, "to the exporter")
		post(qa, hostq.SQE{WRID: 1, Opcode: hostq.WRWrite, Flags: signaled, RKey: mr.Key(), RemoteAddr: ramBase}, nil, a.sge(0, 15))
		w.want(a, 1, transport.OK)
		copy(a.ram.b, "to the importer")
		post(qa, hostq.SQE{WRID: 2, Opcode: hostq.WRWrite, Flags: signaled, RKey: own.Key(), RemoteAddr: ramBase}, nil, a.sge(0, 15))
		w.want(a, 2, transport.OK)
		if string(b.ram.b[:15]) != "to the exporter" || string(im.ram.b[:15]) != "to the importer" {
			t.Errorf("%q, %q", b.ram.b[:15], im.ram.b[:15])
		}
		// A list over both: one call for each memory.
		copy(b.ram.b, "abc")
		copy(im.ram.b, "def")
		list := []hostq.SGE{{Addr: ramBase, Length: 3, LKey: mr.Key()}, {Addr: ramBase, Length: 3, LKey: own.Key()}, {Addr: ramBase, Length: 3, LKey: mr.Key()}}
		post(qi, hostq.SQE{WRID: 3, Opcode: hostq.WRWrite, Flags: signaled, RKey: a.mr.Key(), RemoteAddr: ramBase + 512}, nil, list...)
		w.want(im, 3, transport.OK)
		if got := string(a.ram.b[512:521]); got != "abcdefabc" {
			t.Errorf("gathered %q", got)
		}
		// A receive into the exporter's memory does not travel in the importer's completion.
		receive(qi, 4, hostq.SGE{Addr: ramBase + 256, Length: 64, LKey: mr.Key()})
		copy(a.ram.b, "short")
		post(qa, hostq.SQE{WRID: 5, Opcode: hostq.WRSend, Flags: signaled}, nil, a.sge(0, 5))
		if e := w.want(im, 4, transport.OK); e.InlineLen != 0 || string(b.ram.b[256:261]) != "short" {
			t.Errorf("%d inline, %q", e.InlineLen, b.ram.b[256:261])
		}
		w.want(a, 5, transport.OK)

		// The exporter goes: its region with it, the domain stays, and so does the importer's connection.
		b.ctx.Close(w.now)
		if _, err := im.ctx.ImportMR(b.mr.Handle()); err == nil {
			t.Error("a region outlives its memory")
		}
		copy(a.ram.b, "and on it goes!")
		post(qa, hostq.SQE{WRID: 6, Opcode: hostq.WRWrite, Flags: signaled, RKey: own.Key(), RemoteAddr: ramBase}, nil, a.sge(0, 15))
		w.want(a, 6, transport.OK)
		post(qa, hostq.SQE{WRID: 7, Opcode: hostq.WRWrite, Flags: signaled, RKey: mr.Key(), RemoteAddr: ramBase}, nil, a.sge(0, 15))
		w.want(a, 7, transport.RemAccessErr)
		im.ctx.Close(w.now)
		a.ctx.Close(w.now)
		for _, n := range w.nics {
			if n.C.Live != (device.Live{}) {
				t.Errorf("left over: %+v", n.C.Live)
			}
		}
	})
}

// TestImportWindow: what an importer opened over the exporter's region closes with that.
func TestImportWindow(t *testing.T) {
	w := newWorldOf(t, false, device.Auto)
	a, b, _, _ := w.pair(t)
	im := sharing(t, b)
	region := b.region(bindOnly, ramBase)
	qa, qi := a.qp(), im.qp()
	a.up(qa, b.nic.Addrs()[0], qi.QPN())
	im.up(qi, a.nic.Addrs()[0], qa.QPN())
	mw := im.window(mwType2)
	key := nextTag(mw.Key())
	post(qi, binding(1, key, region, ramBase+mwOff, mwLength, windowWR), nil)
	w.want(im, 1, transport.OK)
	copy(a.ram.b, "through it")
	post(qa, hostq.SQE{WRID: 2, Opcode: hostq.WRWrite, Flags: signaled, RKey: key, RemoteAddr: ramBase + mwOff}, nil, a.sge(0, 10))
	w.want(a, 2, transport.OK)
	if string(b.ram.b[mwOff:mwOff+10]) != "through it" {
		t.Error("not in the exporter's memory")
	}
	b.ctx.Close(w.now)
	post(qa, hostq.SQE{WRID: 3, Opcode: hostq.WRWrite, Flags: signaled, RKey: key, RemoteAddr: ramBase + mwOff}, nil, a.sge(0, 10))
	w.want(a, 3, transport.RemAccessErr)
	im.ctx.Close(w.now)
	if l := w.nics[1].C.Live; l != (device.Live{}) {
		t.Errorf("left over: %+v", l)
	}
}

// TestDeviceMemory: what there is, is shared, bounded and given back.
func TestDeviceMemory(t *testing.T) {
	w := newWorldOf(t, false, device.Auto)
	a := newProg(t, w.nics[0])
	var at hostq.DeviceAttr
	w.nics[0].Attr(&at)
	most := uint64(at.MaxDMKiB) << 10
	h := must(a.ctx.AllocDM(most/2, 7))(t)
	for _, c := range []struct {
		size uint64
		want error
	}{{0, syscall.EINVAL}, {most + 1, syscall.EINVAL}, {most, syscall.ENOMEM}, {most/2 + 1, syscall.ENOMEM}} {
		if _, err := a.ctx.AllocDM(c.size, 0); !errors.Is(err, c.want) {
			t.Errorf("%d: %v", c.size, err)
		}
	}
	im := sharing(t, a)
	if size, tag, err := im.ctx.ImportDM(h); size != most/2 || tag != 7 || err != nil {
		t.Errorf("import: %d %d %v", size, tag, err)
	}
	if err := im.ctx.FreeDM(h); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("freed by who has not allocated it: %v", err)
	}
	if err := a.ctx.FreeDM(h); err != nil {
		t.Error(err)
	}
	must(a.ctx.AllocDM(most, 8))(t)
	a.ctx.Close(w.now)
	must(im.ctx.AllocDM(most, 9))(t)
}

// TestModeration: an event for so many completions, or so long after the first.
func TestModeration(t *testing.T) {
	w := newWorldOf(t, false, device.Auto)
	a, b, qa, _ := w.pair(t)
	id := uint64(0)
	complete := func(n int) {
		t.Helper()
		for range n {
			id++
			post(qa, hostq.SQE{WRID: id, Opcode: hostq.WRWrite, Flags: signaled, RKey: b.mr.Key(), RemoteAddr: ramBase}, nil, a.sge(0, 8))
			w.want(a, id, transport.OK)
		}
	}
	events := func(want int) {
		t.Helper()
		if len(a.ev.comp) != want {
			t.Fatalf("%d events, want %d", len(a.ev.comp), want)
		}
	}
	modify := func(count uint32, period mono.Duration) {
		t.Helper()
		if err := a.ctx.ModifyCQ(a.cq, count, period); err != nil {
			t.Fatal(err)
		}
	}
	complete(1)
	a.CQ.Arm(hostq.ArmNext)
	complete(1)
	events(1)
	modify(4, mono.Second)
	a.CQ.Arm(hostq.ArmNext)
	complete(3)
	events(1)
	complete(1)
	events(2)
	complete(8) // not armed
	events(2)
	modify(1000, mono.Millisecond)
	a.CQ.Arm(hostq.ArmNext)
	complete(2)
	events(2)
	w.step(200)
	events(3)
	w.step(200)
	events(3)
	a.CQ.Arm(hostq.ArmNext)
	complete(1)
	modify(1, 0) // what waits is sent
	events(4)
	for _, m := range [][2]uint32{{0, 100}, {100, 0}, {1, 100}} { // no moderation
		modify(m[0], mono.Duration(m[1])*mono.Microsecond)
		a.CQ.Arm(hostq.ArmNext)
		n := len(a.ev.comp)
		complete(1)
		events(n + 1)
	}
	modify(1000, mono.Second)
	a.CQ.Arm(hostq.ArmNext)
	complete(1)
	if err := a.ctx.ModifyCQ(99, 1, 1); !errors.Is(err, syscall.EINVAL) {
		t.Error(err)
	}
	a.ctx.Close(w.now) // with an event that waits
	w.step(1)
}
