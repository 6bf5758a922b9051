package rocev2_test

import (
	"fmt"
	"net/netip"
	"testing"
	"unsafe"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/transport"
	"github.com/metaroce/metaroce/transport/rocev2"
)

// mute is a host that does nothing but hand out receives: what remains is the engine's own work.
type mute struct {
	recv  transport.RecvWR
	sends int
	recvs int
}

func (m *mute) DMA(ops []transport.MemOp) {
	for i := range ops {
		ops[i].Err = transport.MemOK
	}
}
func (m *mute) TakeRecv(any) *transport.RecvWR                      { return &m.recv }
func (m *mute) ReturnRecv(any, *transport.RecvWR)                   {}
func (m *mute) RelaxedKey(any, uint32) bool                         { return false }
func (m *mute) KeyOffset(any, uint32) uint64                        { return 0 }
func (m *mute) ShiftedKeys(any) bool                                { return false }
func (m *mute) RunLocal(any, *transport.SendWR) transport.Status    { return transport.OK }
func (m *mute) SendDone(any, *transport.SendWR, transport.Status)   { m.sends++ }
func (m *mute) RecvDone(any, *transport.RecvWR, transport.RecvInfo) { m.recvs++ }
func (m *mute) QPError(any, bool, transport.Status)                 { panic("QP failed") }
func (m *mute) Event(transport.Event)                               {}

// pair is two engines whose packets go straight to each other.
type pair struct {
	e    [2]*rocev2.Engine
	h    [2]mute
	q    [2]*rocev2.QP
	u    [2]*rocev2.QP
	c    [2]*rocev2.QP // UC
	b    [2]*pkt.Batch
	addr [2]netip.Addr
	now  mono.Time
}

func newPair(mtu int) *pair {
	p := &pair{now: 1000}
	for i := range p.e {
		p.addr[i] = netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)})
		p.b[i] = pkt.NewBatch(pkt.Burst, packetMax)
		p.h[i].recv = transport.RecvWR{SGE: []transport.SGE{{Length: 1 << 30}}, Length: 1 << 30}
		p.e[i] = rocev2.New(rocev2.Config{Addrs: p.addr[i : i+1], Planes: []rocev2.PlaneConfig{{PacketMax: packetMax}}, Window: 1 << 22}, &p.h[i])
	}
	for i, e := range p.e {
		for k, t := range []transport.QPType{transport.RC, transport.UD, transport.UC} {
			q := e.CreateQP(uint32(5+k), rocev2.QPConfig{Type: t, SQEntries: 128, MaxSendSGE: 1})
			q.ToInit()
			q.ToRTR(p.now, rocev2.RTRAttr{Local: p.addr[i], Remote: p.addr[1-i], RemoteQPN: uint32(5 + k), PathMTU: mtu, MaxDestRdAtomic: 16})
			q.ToRTS(p.now, rocev2.RTSAttr{Timeout: 14, RetryCnt: 7, MaxRdAtomic: 16})
			*[]**rocev2.QP{&p.q[i], &p.u[i], &p.c[i]}[k] = q
		}
	}
	return p
}

func (p *pair) post(q *rocev2.QP, op transport.Op, n int) {
	w := q.NextWR()
	w.Op, w.Length, w.RKey = op, uint32(n), 1
	w.SGE = append(w.SGE, transport.SGE{Length: uint32(n)})
	if w.Dest != nil {
		*w.Dest = transport.UDDest{Local: p.addr[0], Remote: p.addr[1], QPN: 6}
	}
	q.Post(p.now)
}

// settle exchanges packets until there are none, and returns how many there were.
func (p *pair) settle() (n int) {
	for quiet := 0; quiet < 2; {
		p.now += 100
		for i := range p.e {
			p.b[i].Reset()
			p.e[i].HandleTimers(p.now)
			p.e[i].Transmit(p.now, p.b[i])
			p.e[1-i].HandlePackets(p.now, p.b[i].Pkts[:p.b[i].N])
			n += p.b[i].N
			if quiet++; p.b[i].N > 0 {
				quiet = 0
			}
		}
	}
	return n
}

// TestNoAllocs: sending and receiving, of every kind, allocates nothing.
func TestNoAllocs(t *testing.T) {
	p := newPair(1024)
	for _, op := range []transport.Op{transport.OpSend, transport.OpSendImm, transport.OpWrite, transport.OpWriteImm, transport.OpRead, transport.OpFetchAdd} {
		n := 10_000
		if op == transport.OpFetchAdd {
			n = 8
		}
		if a := testing.AllocsPerRun(50, func() {
			p.post(p.q[0], op, n)
			p.settle()
		}); a != 0 {
			t.Errorf("%v: %v allocations", op, a)
		}
	}
	if a := testing.AllocsPerRun(50, func() {
		p.post(p.u[0], transport.OpSend, 1000)
		p.settle()
	}); a != 0 {
		t.Errorf("UD: %v allocations", a)
	}
	for _, op := range []transport.Op{transport.OpSend, transport.OpWriteImm} {
		if a := testing.AllocsPerRun(50, func() {
			p.post(p.c[0], op, 10_000)
			p.settle()
		}); a != 0 {
			t.Errorf("UC, %v: %v allocations", op, a)
		}
	}
	if p.h[0].sends != 9*51 {
		t.Errorf("%d done", p.h[0].sends)
	}
}

// BenchmarkPacket measures both engines' work on a packet of a long WRITE, and of datagrams, ICRC included, payload copies not.
func BenchmarkPacket(b *testing.B) {
	for _, n := range []int{256, 1024, 4096} {
		for _, ud := range []bool{false, true} {
			name := fmt.Sprintf("WRITE/%d", n)
			if ud {
				name = fmt.Sprintf("UD/%d", n)
			}
			b.Run(name, func(b *testing.B) {
				p := newPair(n)
				b.ReportAllocs()
				b.SetBytes(int64(n))
				for i := 0; i < b.N; i += 64 {
					if ud {
						for range 64 {
							p.post(p.u[0], transport.OpSend, n)
						}
					} else {
						p.post(p.q[0], transport.OpWrite, 64*n)
					}
					p.settle()
				}
			})
		}
	}
}

// TestStateSize keeps an eye on the bytes that a QP costs, without its ring of work requests.
func TestStateSize(t *testing.T) {
	n := unsafe.Sizeof(rocev2.QP{})
	t.Logf("a QP takes %d bytes", n)
	if n > 2048 {
		t.Errorf("a QP takes %d bytes", n)
	}
}
