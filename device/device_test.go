package device_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/metaroce/metaroce/device"
	"github.com/metaroce/metaroce/device/hostq"
	"github.com/metaroce/metaroce/transport"
)

func fill(b []byte, seed byte) {
	for i := range b {
		b[i] = byte(i)*7 + seed
	}
}

// TestMessages moves every kind of message between two programs, over the double and over the real engine.
func TestMessages(t *testing.T) {
	for _, double := range []bool{true, false} {
		t.Run(fmt.Sprintf("double=%v", double), func(t *testing.T) {
			w := newWorld(t, double)
			a, b, qa, qb := w.pair(t)
			fill(a.ram.b[:10000], 1)
			const sig = hostq.SendSignaled

			qb.RQ.PutRecv(1, b.sge(0, 5000), b.sge(100000, 5000))
			qb.RQ.Ring()
			qa.SQ.PutSend(hostq.SQE{WRID: 2, Opcode: hostq.WRSendImm, Flags: sig, Imm: 0xabcd}, nil, a.sge(0, 3000), a.sge(3000, 7000))
			qa.SQ.Ring()
			e := w.want(b, 1, transport.OK)
			if e.ByteLen != 10000 || e.Imm != 0xabcd || e.Opcode != 128 || e.WCFlags != 2 || e.QPN != qb.QPN() || e.SrcQP != qa.QPN() {
				t.Errorf("receive completion %+v", e)
			}
			if got := append(append([]byte(nil), b.ram.b[:5000]...), b.ram.b[100000:105000]...); !bytes.Equal(got, a.ram.b[:10000]) {
				t.Error("SEND: wrong bytes")
			}
			e = w.want(a, 2, transport.OK)
			if e.Flags != hostq.CQESend || e.Slot != 0 || e.Opcode != 0 {
				t.Errorf("send completion %+v", e)
			}

			qa.SQ.PutSend(hostq.SQE{WRID: 3, Opcode: hostq.WRWrite, Flags: sig, RKey: b.mr.Key(), RemoteAddr: ramBase + 200001}, nil, a.sge(5, 9001))
			qa.SQ.Ring()
			w.want(a, 3, transport.OK)
			if !bytes.Equal(b.ram.b[200001:200001+9001], a.ram.b[5:5+9001]) {
				t.Error("WRITE: wrong bytes")
			}

			fill(b.ram.b[300000:300999], 9)
			qa.SQ.PutSend(hostq.SQE{WRID: 4, Opcode: hostq.WRRead, Flags: sig, RKey: b.mr.Key(), RemoteAddr: ramBase + 300000}, nil, a.sge(400000, 500), a.sge(500000, 499))
			qa.SQ.Ring()
			if e = w.want(a, 4, transport.OK); e.ByteLen != 999 || e.Opcode != 2 {
				t.Errorf("READ completion %+v", e)
			}
			if !bytes.Equal(append(append([]byte(nil), a.ram.b[400000:400500]...), a.ram.b[500000:500499]...), b.ram.b[300000:300999]) {
				t.Error("READ: wrong bytes")
			}

			binary.LittleEndian.PutUint64(b.ram.b[8:], 40)
			fa := hostq.SQE{WRID: 5, Opcode: hostq.WRFetchAdd, Flags: sig, RKey: b.mr.Key(), RemoteAddr: ramBase + 8}
			binary.LittleEndian.PutUint64(fa.U[:], 2)
			qa.SQ.PutSend(fa, nil, a.sge(16, 8))
			cs := hostq.SQE{WRID: 6, Opcode: hostq.WRCmpSwap, Flags: sig, RKey: b.mr.Key(), RemoteAddr: ramBase + 8}
			binary.LittleEndian.PutUint64(cs.U[:], 42)
			binary.LittleEndian.PutUint64(cs.U[8:], 77)
			qa.SQ.PutSend(cs, nil, a.sge(24, 8))
			qa.SQ.Ring()
			w.want(a, 5, transport.OK)
			w.want(a, 6, transport.OK)
			le := binary.LittleEndian
			//= MR-VRB-008
			if le.Uint64(a.ram.b[16:]) != 40 || le.Uint64(a.ram.b[24:]) != 42 || le.Uint64(b.ram.b[8:]) != 77 {
				t.Error("atomics: wrong values")
			}

			qb.RQ.PutRecv(7, b.sge(600000, 256))
			qb.RQ.Ring()
			qa.SQ.PutSend(hostq.SQE{WRID: 8, Opcode: hostq.WRSend, Flags: hostq.SendInline}, []byte("inline, unsignalled"))
			qa.SQ.Ring()
			e = w.want(b, 7, transport.OK)
			got := b.ram.b[600000 : 600000+int(e.ByteLen)]
			if e.InlineLen > 0 {
				got = e.Data[:e.InlineLen]
			}
			//= MR-VRB-002
			if string(got) != "inline, unsignalled" {
				t.Errorf("inline: %q", got)
			}
			w.step(1000)
			//= MR-VRB-003
			if e, ok := a.CQ.Poll(); ok {
				t.Errorf("completion of an unsignalled request: %+v", e)
			}
		})
	}
}

// TestBadRequests: each wrong thing gets the status that verbs gives it, and its QP ends.
func TestBadRequests(t *testing.T) {
	type bad struct {
		name string
		sqe  hostq.SQE
		sge  func(a *prog) []hostq.SGE
		want transport.Status
		b    transport.Status // what the receiver sees for its posted receive; OK = flushed
	}
	one := func(off, n uint32) func(*prog) []hostq.SGE {
		return func(a *prog) []hostq.SGE { return []hostq.SGE{a.sge(off, n)} }
	}
	key := func(k uint32) func(*prog) []hostq.SGE {
		return func(a *prog) []hostq.SGE { return []hostq.SGE{{Addr: ramBase, Length: 8, LKey: a.mr.Key() + k}} }
	}
	const sig = hostq.SendSignaled
	for _, c := range []bad{
		{"opcode", hostq.SQE{Opcode: 99, Flags: sig}, one(0, 8), transport.LocQPOpErr, 0},
		{"local invalidate", hostq.SQE{Opcode: hostq.WRLocalInv, Flags: sig}, one(0, 8), transport.LocQPOpErr, 0},
		{"flags", hostq.SQE{Opcode: hostq.WRSend, Flags: sig | 0x4000}, one(0, 8), transport.LocQPOpErr, 0},
		{"lkey", hostq.SQE{Opcode: hostq.WRSend, Flags: sig}, key(1), transport.LocProtErr, 0},
		{"out of the region", hostq.SQE{Opcode: hostq.WRSend, Flags: sig}, one(ramBytes-4, 8), transport.LocProtErr, 0},
		{"address wraps", hostq.SQE{Opcode: hostq.WRSend, Flags: sig}, func(a *prog) []hostq.SGE {
			return []hostq.SGE{{Addr: ^uint64(0) - 3, Length: 8, LKey: a.mr.Key()}}
		}, transport.LocProtErr, 0},
		{"atomic of 4 bytes", hostq.SQE{Opcode: hostq.WRFetchAdd, Flags: sig}, one(0, 4), transport.LocLenErr, 0},
		{"inline READ", hostq.SQE{Opcode: hostq.WRRead, Flags: sig | hostq.SendInline}, one(0, 0), transport.LocQPOpErr, 0},
		{"rkey", hostq.SQE{Opcode: hostq.WRWrite, Flags: sig, RKey: 5, RemoteAddr: ramBase}, one(0, 8), transport.RemAccessErr, 0},
		{"remote bounds", hostq.SQE{Opcode: hostq.WRWrite, Flags: sig, RemoteAddr: ramBase + ramBytes - 7}, one(0, 8), transport.RemAccessErr, 0},
		{"remote READ bounds", hostq.SQE{Opcode: hostq.WRRead, Flags: sig, RemoteAddr: ramBase - 1}, one(0, 8), transport.RemAccessErr, 0},
		{"misaligned atomic", hostq.SQE{Opcode: hostq.WRFetchAdd, Flags: sig, RemoteAddr: ramBase + 4}, one(0, 8), transport.RemInvReqErr, 0},
		{"receive too small", hostq.SQE{Opcode: hostq.WRSend, Flags: sig}, one(0, 2000), transport.RemInvReqErr, transport.LocLenErr},
	} {
		for _, double := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/double=%v", c.name, double), func(t *testing.T) {
				w := newWorld(t, double)
				a, b, qa, qb := w.pair(t)
				qb.RQ.PutRecv(1, b.sge(0, 1000))
				qb.RQ.Ring()
				e := c.sqe
				e.WRID = 2
				if e.RKey == 0 {
					e.RKey = b.mr.Key()
				}
				qa.SQ.PutSend(e, []byte("x"), c.sge(a)...)
				qa.SQ.PutSend(hostq.SQE{WRID: 3, Opcode: hostq.WRSend}, nil, a.sge(0, 8))
				qa.SQ.Ring()
				w.want(a, 2, c.want)
				//= MR-VRB-003
				w.want(a, 3, transport.WRFlushErr)
				if a.state(qa) != device.Err {
					t.Errorf("QP is %v", a.state(qa))
				}
				qa.SQ.PutSend(hostq.SQE{WRID: 4, Opcode: hostq.WRSend}, nil, a.sge(0, 8))
				qa.SQ.Ring()
				qa.RQ.PutRecv(5, a.sge(0, 8))
				qa.RQ.Ring()
				w.want(a, 4, transport.WRFlushErr)
				w.want(a, 5, transport.WRFlushErr)
				if c.b != transport.OK {
					w.want(b, 1, c.b)
				}
				if responderFault := c.want == transport.RemAccessErr || c.want == transport.RemInvReqErr; responderFault {
					if c.b == transport.OK {
						w.want(b, 1, transport.WRFlushErr)
					}
					if b.state(qb) != device.Err || len(b.ev.async) != 1 {
						t.Errorf("responder: %v, events %v", b.state(qb), b.ev.async)
					}
				}
			})
		}
	}
}

// TestRights: every right that is missing on the region or the QP refuses the operation.
func TestRights(t *testing.T) {
	for _, c := range []struct {
		op     uint8
		access uint32
		ok     bool
	}{
		{hostq.WRWrite, 1 | 2, true}, {hostq.WRWrite, 1 | 4 | 8, false},
		{hostq.WRRead, 4, true}, {hostq.WRRead, 1 | 2 | 8, false},
		{hostq.WRFetchAdd, 1 | 8, true}, {hostq.WRFetchAdd, 1 | 2 | 4, false},
	} {
		w := newWorld(t, true)
		a, b, qa, _ := w.pair(t)
		mr := must(b.ctx.RegMR(&hostq.RegMR{PD: b.pd, Addr: ramBase, IOVA: 0x5000, Length: 64, Access: c.access}))(t)
		qa.SQ.PutSend(hostq.SQE{WRID: 1, Opcode: c.op, Flags: hostq.SendSignaled, RKey: mr.Key(), RemoteAddr: 0x5000}, nil, a.sge(0, 8))
		qa.SQ.Ring()
		want := transport.RemAccessErr
		if c.ok {
			want = transport.OK
		}
		//= MR-MSG-020
		w.want(a, 1, want)
	}
}

// TestKeys: a key is gone when its region is, another PD's key is nobody's, and keys do not come back soon.
func TestKeys(t *testing.T) {
	w := newWorld(t, true)
	a, b, qa, _ := w.pair(t)
	seen := map[uint32]bool{}
	for range 5000 {
		m := must(b.ctx.RegMR(&hostq.RegMR{PD: b.pd, Addr: ramBase, IOVA: ramBase, Length: 64, Access: allRight}))(t)
		//= MR-SEC-002
		if seen[m.Key()] || m.Key() == 0 {
			t.Fatalf("key %#x came back", m.Key())
		}
		seen[m.Key()] = true
		if err := b.ctx.DeregMR(m.Handle()); err != nil {
			t.Fatal(err)
		}
	}
	other := must(b.ctx.AllocPD())(t)
	m := must(b.ctx.RegMR(&hostq.RegMR{PD: other, Addr: ramBase, IOVA: ramBase, Length: 64, Access: allRight}))(t)
	qa.SQ.PutSend(hostq.SQE{WRID: 1, Opcode: hostq.WRWrite, RKey: m.Key(), RemoteAddr: ramBase}, nil, a.sge(0, 8))
	qa.SQ.Ring()
	//= MR-MSG-020 MR-VRB-022
	w.want(a, 1, transport.RemAccessErr)
}

// TestFault: memory that is registered but not there fails the message, here or there.
func TestFault(t *testing.T) {
	for _, local := range []bool{true, false} {
		w := newWorld(t, true)
		a, b, qa, _ := w.pair(t)
		am := must(a.ctx.RegMR(&hostq.RegMR{PD: a.pd, Addr: 0x100, IOVA: 0x100, Length: 64, Access: allRight}))(t)
		bm := must(b.ctx.RegMR(&hostq.RegMR{PD: b.pd, Addr: 0x100, IOVA: 0x100, Length: 64, Access: allRight}))(t)
		sge, rkey, addr, want := a.sge(0, 8), bm.Key(), uint64(0x100), transport.RemAccessErr
		if local {
			sge, rkey, addr, want = hostq.SGE{Addr: 0x100, Length: 8, LKey: am.Key()}, b.mr.Key(), ramBase, transport.LocProtErr
		}
		qa.SQ.PutSend(hostq.SQE{WRID: 1, Opcode: hostq.WRWrite, RKey: rkey, RemoteAddr: addr}, nil, sge)
		qa.SQ.Ring()
		w.want(a, 1, want)
		if a.nic.C.DMAFaults+b.nic.C.DMAFaults == 0 {
			t.Error("no fault counted")
		}
	}
}

// TestStates: from each state to each state, which masks pass. The golden file is the table of ibv_modify_qp(3).
func TestStates(t *testing.T) {
	w := newWorld(t, true)
	a := newProg(t, w.nics[0])
	reach := func(q *qpair, s device.State) {
		remote := w.nics[1].Addrs()[0]
		for _, step := range []struct {
			to   device.State
			mask uint32
		}{{device.Init, toInit}, {device.RTR, toRTR}, {device.RTS, toRTS}, {device.SQD, 1}} {
			if s == device.Reset || s == device.Err {
				break
			}
			m := attr(q.Handle(), step.to, remote, 0x20)
			m.Mask = step.mask
			if err := a.ctx.ModifyQP(w.now, m); err != nil {
				t.Fatal(err)
			}
			if step.to == s {
				return
			}
		}
		if s == device.Err {
			for _, step := range []struct {
				to   device.State
				mask uint32
			}{{device.Init, toInit}, {device.Err, 1}} {
				m := attr(q.Handle(), step.to, remote, 0x20)
				m.Mask = step.mask
				if err := a.ctx.ModifyQP(w.now, m); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	states := []device.State{device.Reset, device.Init, device.RTR, device.RTS, device.SQD, device.Err}
	q := a.qp()
	var out strings.Builder
	try := func(from, to device.State, mask uint32) error {
		m := attr(q.Handle(), device.Reset, w.nics[1].Addrs()[0], 0x20)
		m.Mask = 1
		if err := a.ctx.ModifyQP(w.now, m); err != nil {
			t.Fatal(err)
		}
		reach(q, from)
		m = attr(q.Handle(), to, w.nics[1].Addrs()[0], 0x20)
		m.Mask, m.CurQPState = mask|1, uint32(from)
		err := a.ctx.ModifyQP(w.now, m)
		if got := a.state(q); err == nil && got != to || err != nil && got != from {
			t.Errorf("%v to %v mask %#x: %v, and the QP is %v", from, to, mask, err, got)
		}
		return err
	}
	for _, from := range states {
		for _, to := range append(states, device.SQE) {
			need, may := masks(func(mask uint32) bool { return try(from, to, mask) == nil })
			fmt.Fprintf(&out, "%-5s -> %-5s %s\n", from, to, describe(need, may))
		}
	}
	//= MR-QP-007
	golden(t, "testdata/rc-states.txt", out.String())
}

// masks finds which bits a transition needs and which it may have, by trying; -1, -1 when it does not exist.
func masks(ok func(uint32) bool) (need, may int64) {
	usual := []uint32{0, toInit &^ 1, toRTR &^ 1, toRTS &^ 1}
	for _, base := range usual {
		if !ok(base) {
			continue
		}
		for bit := uint32(2); bit < 1<<26; bit <<= 1 {
			switch {
			case base&bit != 0 && !ok(base&^bit):
				need |= int64(bit)
			case base&bit == 0 && ok(base|bit) || base&bit != 0 && ok(base&^bit):
				may |= int64(bit)
			}
		}
		return need, may
	}
	return -1, -1
}

var maskNames = [...]string{"STATE", "CUR_STATE", "EN_SQD_ASYNC_NOTIFY", "ACCESS_FLAGS", "PKEY_INDEX", "PORT", "QKEY", "AV", "PATH_MTU",
	"TIMEOUT", "RETRY_CNT", "RNR_RETRY", "RQ_PSN", "MAX_QP_RD_ATOMIC", "ALT_PATH", "MIN_RNR_TIMER", "SQ_PSN", "MAX_DEST_RD_ATOMIC",
	"PATH_MIG_STATE", "CAP", "DEST_QPN", "21", "22", "23", "24", "RATE_LIMIT"}

func describe(need, may int64) string {
	if need < 0 {
		return "no"
	}
	list := func(m int64) string {
		var s []string
		for i, n := range maskNames {
			if m&(1<<i) != 0 {
				s = append(s, n)
			}
		}
		if s == nil {
			return "-"
		}
		return strings.Join(s, "|")
	}
	return "needs " + list(need) + " may " + list(may)
}

func golden(t *testing.T, path, got string) {
	t.Helper()
	if os.Getenv("MR_UPDATE_GOLDEN") != "" {
		os.MkdirAll("testdata", 0o755)
		os.WriteFile(path, []byte(got), 0o644)
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs (MR_UPDATE_GOLDEN=1 rewrites it); got:\n%s", path, got)
	}
}

// TestObjects: what is in use cannot be freed, what is wrong is refused, and everything is freed with the context.
func TestObjects(t *testing.T) {
	w := newWorld(t, true)
	a, b, _, _ := w.pair(t)
	wantErr := func(name string, err, want error) {
		t.Helper()
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
	}
	wantErr("free PD in use", a.ctx.FreePD(a.pd), syscall.EBUSY)
	wantErr("destroy channel in use", a.ctx.DestroyChannel(a.ch), syscall.EBUSY)
	_, _, err := a.ctx.DestroyCQ(a.cq)
	wantErr("destroy CQ in use", err, syscall.EBUSY)
	wantErr("free PD that is not", a.ctx.FreePD(77), syscall.EINVAL)
	for name, m := range map[string]hostq.RegMR{
		"remote write alone": {PD: a.pd, Length: 1, Access: 2},
		"unknown right":      {PD: a.pd, Length: 1, Access: 1 << 15},
		"no PD":              {PD: 9, Length: 1},
		"wraps":              {PD: a.pd, Addr: ^uint64(0), Length: 2},
	} {
		_, err := a.ctx.RegMR(&m)
		wantErr(name, err, syscall.EINVAL)
	}
	for name, c := range map[string]hostq.CreateCQ{
		"not a power of two": {Entries: 3, Ring: 1 << 20},
		"in the first page":  {Entries: 4, Ring: 4096},
		"not aligned":        {Entries: 4, Ring: 1<<20 + 64},
		"outside":            {Entries: 4, Ring: 8 << 20},
		"too large":          {Entries: 1 << 23, Ring: 1 << 20},
		"vector":             {Entries: 4, Ring: 1 << 20, CompVector: 99},
		"wraps":              {Entries: 4, Ring: ^uint64(0) &^ 4095},
	} {
		_, err := a.ctx.CreateCQ(&c)
		wantErr(name, err, syscall.EINVAL)
	}
	_, err = a.ctx.CreateQP(&hostq.CreateQP{PD: a.pd, SendCQ: a.cq, RecvCQ: a.cq, Type: 8})
	wantErr("raw packets", err, syscall.EOPNOTSUPP)
	a.ctx.Close(w.now)
	b.ctx.Close(w.now)
	w.step(10)
	for _, n := range w.nics {
		if n.C.Live != (device.Live{}) || n.Contexts() != 0 {
			t.Errorf("left over: %+v", n.C.Live)
		}
	}
	if a.Page().Dead != 1 {
		t.Error("the program was not told")
	}
}
