package transporttest

import (
	"testing"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/metaroce"
	"github.com/metaroce/metaroce/transport/wire"
)

// TestEmptyMessages: messages without bytes, of each kind, between others and over a bad network.
func TestEmptyMessages(t *testing.T) {
	for seed := range uint64(20) {
		w := New(Config{Seed: seed, Planes: 1 + int(seed)%3, Link: rough()})
		a, b := w.Nodes[0], w.Nodes[1]
		p, q := w.Connect(a, b, QPOptions{SQ: 256})
		b.Keys[7] = Key{0, 1 << 20, true, true, true, false}
		b.Keys[9] = Key{0, 10, true, true, true, false}
		ops := []transport.Op{transport.OpWrite, transport.OpWriteImm, transport.OpSend, transport.OpSendImm, transport.OpSendInv, transport.OpRead}
		n, recvs := 0, 0
		for round := range 10 {
			for _, op := range ops {
				x := WR{ID: uint64(n), Op: op, Key: 99, Remote: 1 << 40, Imm: 9} // no byte, no key
				if round%2 == 1 {
					x.Key, x.Remote, x.N = 7, 0, 5000*uint32(n%3)
				}
				if op.TakesRecv() {
					q.Recv(uint64(recvs), 2<<20, 20_000)
					recvs++
				}
				p.Send(x)
				n++
			}
		}
		if !w.RunUntil(second, func() bool { return len(p.Sends) == n && len(q.Received) == recvs }) {
			t.Fatalf("seed %d: %d of %d, %d of %d\n%s\n%s", seed, len(p.Sends), n, len(q.Received), recvs, p.Dump(), q.Dump())
		}
		for i, c := range p.Sends {
			//= MR-VRB-005
			if c.Status != transport.OK || c.ID != uint64(i) {
				t.Errorf("seed %d: %+v", seed, c)
			}
		}
		for i, c := range q.Received {
			if c.Status != transport.OK || c.ID != uint64(i) || c.Op == transport.OpSendInv && c.Imm != 9 {
				t.Errorf("seed %d: %+v", seed, c)
			}
		}
		if _, still := b.Keys[9]; still {
			t.Error("key 9 lives")
		}
	}
}

// TestEarlyReceives: receives that were posted before the QP knew its peer are told to it.
func TestEarlyReceives(t *testing.T) {
	w := New(Config{Seed: 1, Planes: 2, Link: usual()})
	a, b := w.Nodes[0], w.Nodes[1]
	o := QPOptions{RNRRetry: 255, SQ: 64}
	o.defaults()
	p, q := a.NewQP(o), b.NewQP(o)
	for i := range uint64(20) {
		q.Recv(i, 0, 100)
	}
	q.Join(p, o)
	w.Run(mono.Millisecond)
	p.Join(q, o)
	for i := range uint64(20) {
		p.Send(WR{ID: i, Op: transport.OpSend, N: 100})
	}
	if !w.RunUntil(second, func() bool { return len(p.Sends) == 20 && len(q.Received) == 20 }) || p.Sends[19].Status != transport.OK {
		t.Errorf("%v\n%s", p.Sends, p.Dump())
	}
}

// TestParkedMany: RNR with many packets parked, which wake in any order.
func TestParkedMany(t *testing.T) {
	for seed := range uint64(10) {
		l := rough()
		l.Loss = 0.1
		w := New(Config{Seed: seed, Planes: 2, Link: l})
		p, q := w.Connect(w.Nodes[0], w.Nodes[1], QPOptions{SQ: 256, MinRNR: 1 + uint8(seed), MTU: 256})
		for i := range uint64(200) {
			p.Send(WR{ID: i, Op: transport.OpSend, N: uint32(i * 7 % 1500)})
		}
		posted := 0
		w.RunUntil(2*second, func() bool {
			if posted < 200 && w.Wire%3 == 0 {
				q.Recv(uint64(posted), 0, 2000)
				posted++
			}
			return len(p.Sends) == 200 && len(q.Received) == 200
		})
		if len(p.Sends) != 200 || len(q.Received) != 200 || q.Received[199].ID != 199 {
			t.Errorf("seed %d: %d sent %d received of %d posted\n%s\n%s", seed, len(p.Sends), len(q.Received), posted, p.Dump(), q.Dump())
		}
	}
}

// void is a host with nothing behind it: for messages larger than any memory of a test.
type void struct{ done []transport.Status }

func (*void) DMA(ops []transport.MemOp) {
	for i := range ops {
		ops[i].Err = transport.MemOK
	}
}
func (*void) TakeRecv(any) *transport.RecvWR                            { return &transport.RecvWR{Length: 1 << 31} }
func (*void) ReturnRecv(any, *transport.RecvWR)                         {}
func (*void) RelaxedKey(any, uint32) bool                               { return false }
func (*void) KeyOffset(any, uint32) uint64                              { return 0 }
func (*void) ShiftedKeys(any) bool                                      { return false }
func (*void) RunLocal(any, *transport.SendWR) transport.Status          { return transport.OK }
func (v *void) SendDone(_ any, _ *transport.SendWR, s transport.Status) { v.done = append(v.done, s) }
func (v *void) RecvDone(_ any, _ *transport.RecvWR, i transport.RecvInfo) {
	if i.Length != 1<<31 {
		v.done = append(v.done, transport.LocLenErr)
	}
}
func (*void) QPError(any, bool, transport.Status) {}
func (*void) Event(transport.Event)               {}

// TestLargestMessage: 2 GiB in one request, over a NIC's own wire.
func TestLargestMessage(t *testing.T) {
	if testing.Short() {
		t.Skip("short")
	}
	for _, op := range []transport.Op{transport.OpWrite, transport.OpSend, transport.OpRead} {
		w := New(Config{Nodes: 1, Link: usual()})
		v := &void{}
		e := metaroce.New(metaroce.Config{Addrs: w.Nodes[0].E.Addrs(), Planes: []metaroce.PlaneConfig{{PacketMax: PacketMax}}, FixedWindow: 1 << 20}, v)
		q := e.CreateQP(0x100, metaroce.QPConfig{SQEntries: 4, MaxSendSGE: 1})
		q.ToInit()
		now := mono.Time(1000)
		q.ToRTR(now, metaroce.RTRAttr{Local: w.Nodes[0].Addr, Remote: w.Nodes[0].Addr, RemoteQPN: 0x100, PathMTU: 4096, MaxDestRdAtomic: 4, RQPSN: 0xFFFFFE})
		q.ToRTS(now, metaroce.RTSAttr{SQPSN: 0xFFFFFE, MaxRdAtomic: 4, Timeout: 14, RetryCnt: 7})
		wr := q.NextWR()
		wr.Op, wr.Length, wr.RemoteAddr = op, 1<<31, 1<<33
		wr.SGE = append(wr.SGE, transport.SGE{Length: 1 << 31})
		q.Post(now)
		b := pkt.NewBatch(pkt.Burst, PacketMax)
		for range 200_000 {
			b.Reset()
			e.Transmit(now, b)
			e.HandlePackets(now, b.Pkts[:b.N])
			e.HandleTimers(now)
			if now++; len(v.done) > 0 {
				break
			}
		}
		//= MR-VRB-006
		if len(v.done) != 1 || v.done[0] != transport.OK {
			t.Errorf("%v: %v %s", op, v.done, q.Dump())
		}
		if e.C.Retransmits > 0 || e.C.TxPackets != 1<<19+uint64(op&4)/4 {
			t.Errorf("%v: %d packets, %d sent again", op, e.C.TxPackets, e.C.Retransmits)
		}
	}
}

// TestSkippedNumber: a sender leaves out numbers; who acknowledges one has not seen the packet.
func TestSkippedNumber(t *testing.T) {
	f := newForge(t, Config{Seed: 1, Engine: func(c *metaroce.Config) { c.SeqSkip = 0.05 }})
	q := f.qp(QPOptions{SQ: 256})
	next := map[uint16]uint32{}
	holes, seen := 0, 0
	for range 600 {
		q.Send(WR{Op: transport.OpWrite, N: 100, Key: 7})
		f.collect()
		for ; seen < len(f.log); seen++ {
			x := f.log[seen]
			if !x.Op.IsData() {
				continue
			}
			n, known := next[x.Path]
			next[x.Path] = x.Seq + 1
			lie := known && x.Seq != n
			b := wire.PathBlock{Path: x.Path, Highest: x.Seq, Echo: x.TS}
			if lie {
				b.Bitmap[0] = 1
				holes++
			}
			//= MR-ASC-071 MR-ASC-070
			if got := wantsHello(of(f.deliver(f.ack(acked{Paths: []wire.PathBlock{b}})), wire.OpHello)); got != lie {
				t.Fatalf("acknowledged a number that never was: %v, found out: %v (%v after %d)", lie, got, x, n)
			}
			if lie {
				f.meet()
				f.deliver(f.acks(x))
			}
		}
	}
	if holes < 5 {
		t.Errorf("%d numbers left out", holes)
	}
}
