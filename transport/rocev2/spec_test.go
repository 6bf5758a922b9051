package rocev2_test

import (
	"net/netip"
	"testing"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/rocev2"
	"github.com/metaroce/metaroce/transport/wire/ib"
)

// Proofs of what spec/11-rocev2.md asks of datagrams.

// program is a host whose memory takes everything and whose receives are counted.
type program struct {
	transport.Host
	recvs map[any]int
	got   map[any][]transport.RecvInfo
	sent  int
	short bool
	grh   []byte
}

func (p *program) DMA(ops []transport.MemOp) {
	for i := range ops {
		if ops[i].Kind == transport.MemScatter && ops[i].Off == 0 {
			p.grh = append([]byte(nil), ops[i].Buf...)
		}
		ops[i].Err = transport.MemOK
	}
}

func (p *program) TakeRecv(qp any) *transport.RecvWR {
	if p.recvs[qp] == 0 {
		return nil
	}
	p.recvs[qp]--
	n := uint32(5000)
	if p.short {
		n = 50
	}
	return &transport.RecvWR{Length: n, SGE: []transport.SGE{{Length: n}}}
}

func (p *program) RecvDone(qp any, _ *transport.RecvWR, i transport.RecvInfo) {
	p.got[qp] = append(p.got[qp], i)
}
func (p *program) SendDone(any, *transport.SendWR, transport.Status) { p.sent++ }
func (p *program) QPError(any, bool, transport.Status)               {}
func (p *program) Event(transport.Event)                             {}

var here, there = netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")

func datagrams(planes int) (*program, *rocev2.Engine) {
	p := &program{recvs: map[any]int{}, got: map[any][]transport.RecvInfo{}}
	c := rocev2.Config{Seed: 1, Addrs: []netip.Addr{here}}
	for range planes {
		c.Planes = append(c.Planes, rocev2.PlaneConfig{PacketMax: 4220})
	}
	return p, rocev2.New(c, p)
}

func udQP(e *rocev2.Engine, qpn uint32, now mono.Time) *rocev2.QP {
	q := e.CreateQP(qpn, rocev2.QPConfig{Owner: qpn, Type: transport.UD, SQEntries: 64, MaxSendSGE: 1})
	q.ToInit()
	q.SetQKey(0x1111)
	q.ToRTR(now, rocev2.RTRAttr{PathMTU: 4096})
	q.ToRTS(now, rocev2.RTSAttr{})
	return q
}

// TestSpecDatagramPath: datagrams of a QP to one destination stay on one plane and port as long as there is a link.
func TestSpecDatagramPath(t *testing.T) {
	const planes = 4
	_, e := datagrams(planes)
	now := mono.Time(mono.Second)
	used := map[uint8]bool{}
	for qpn := range uint32(16) {
		q := udQP(e, 0x20+qpn, now)
		gone, plane, port := -1, -1, -1
		for range 2 {
			for range 10 {
				w := q.NextWR()
				w.Op, *w.Dest = transport.OpSend, transport.UDDest{Local: here, Remote: there, QPN: 0x33, QKey: 1<<31 | 5}
				q.Post(now)
				b := pkt.NewBatch(pkt.Burst, 4220)
				e.Transmit(now, b)
				now = now.Add(mono.Millisecond)
				if b.N != 1 {
					t.Fatalf("%d packets", b.N)
				}
				x := &b.Pkts[0]
				if plane < 0 {
					plane, port = int(x.Plane), int(x.SrcPort)
				}
				//= MR-COEX-034
				if int(x.Plane) != plane || int(x.SrcPort) != port || plane == gone {
					t.Errorf("plane %d port %#x, then %d %#x; %d has no link", plane, port, x.Plane, x.SrcPort, gone)
				}
				var h ib.Header
				ib.Decode(x.Data, &h)
				//= MR-COEX-032
				if h.QKey != 0x1111 {
					t.Errorf("Q_Key %#x", h.QKey)
				}
				used[x.Plane] = true
			}
			gone, plane = plane, -1
			e.SetPlane(now, gone, false)
		}
		for i := range planes {
			e.SetPlane(now, i, true)
		}
	}
	if len(used) != planes {
		t.Errorf("planes %v are used", used)
	}
}

// TestSpecDatagramIn: which datagrams are taken, and by whom.
func TestSpecDatagramIn(t *testing.T) {
	p, e := datagrams(1)
	now := mono.Time(mono.Second)
	a, b := udQP(e, 0x20, now), udQP(e, 0x21, now)
	group := netip.MustParseAddr("239.1.2.3")
	var sum ib.Summer
	deliver := func(dst netip.Addr, qpn, qkey uint32, flip bool) int {
		h := ib.Header{Op: ib.UDSend, PKey: ib.PKeyDefault, DestQP: qpn, QKey: qkey, SrcQP: 0x99}
		x := pkt.Packet{Src: there, Dst: dst, SrcPort: 0xC000, Data: make([]byte, h.Size()+100+ib.ICRCLen), TTL: 64, Time: now}
		h.Put(x.Data)
		sum.Seal(&x)
		if flip {
			x.Data[30] ^= 1
		}
		was := len(p.got[uint32(0x20)]) + len(p.got[uint32(0x21)])
		e.HandlePackets(now, []pkt.Packet{x})
		out := pkt.NewBatch(pkt.Burst, 4220)
		e.Transmit(now, out)
		//= MR-COEX-031
		if out.N != 0 {
			t.Errorf("a datagram is answered")
		}
		return len(p.got[uint32(0x20)]) + len(p.got[uint32(0x21)]) - was
	}
	p.recvs[uint32(0x20)], p.recvs[uint32(0x21)] = 5, 5
	//= MR-COEX-011
	if n := deliver(here, 0x20, 0x1111, true); n != 0 {
		t.Error("a wrong ICRC is taken")
	}
	//= MR-COEX-031
	if n := deliver(here, 0x20, 0x2222, false); n != 0 || p.recvs[uint32(0x20)] != 5 {
		t.Error("a wrong Q_Key is taken")
	}
	if n := deliver(here, 0x20, 0x1111, false); n != 1 {
		t.Error("a good one is not")
	}
	//= MR-COEX-033
	if i := p.got[uint32(0x20)][0]; !i.GRH || i.Length != 140 || i.SrcQP != 0x99 || len(p.grh) != 40 || p.grh[20] != 0x45 {
		t.Errorf("%+v, header %x", i, p.grh)
	}
	//= MR-COEX-035
	if n := deliver(group, ib.MulticastQPN, 0x1111, false); n != 0 {
		t.Error("nobody is attached, and it is taken")
	}
	e.Attach(a, group)
	e.Attach(b, group)
	//= MR-COEX-035
	if n := deliver(group, ib.MulticastQPN, 0x1111, false); n != 2 {
		t.Errorf("two are attached, %d got it", n)
	}
	e.Detach(a, group)
	//= MR-COEX-035
	if n := deliver(group, ib.MulticastQPN, 0x1111, false); n != 1 || len(p.got[uint32(0x21)]) != 2 {
		t.Errorf("one is attached, %d got it", n)
	}
	p.short = true
	//= MR-COEX-031
	if n := deliver(here, 0x21, 0x1111, false); n != 1 || p.got[uint32(0x21)][2].Status != transport.LocLenErr || b.State() != rocev2.StateRTS {
		t.Errorf("a receive too short: %+v, QP %v", p.got[uint32(0x21)], b.State())
	}
	p.recvs[uint32(0x21)] = 0
	//= MR-COEX-031
	if n := deliver(here, 0x21, 0x1111, false); n != 0 || b.State() != rocev2.StateRTS {
		t.Error("without a receive")
	}
}
