package figures

import (
	"net/netip"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/tools/vopr"
	"github.com/metaroce/metaroce/transport"
)

// Host is a NIC and a program that only counts.
type Host struct {
	w     *World
	i     int
	addr  netip.Addr
	E     vopr.Engine
	due   mono.Time
	batch *pkt.Batch
	rx    []pkt.Packet
	flows int
	plane int // that was sent on last
}

func (w *World) newHost(i int, e vopr.Transport, seed uint64) *Host {
	h := &Host{w: w, i: i, addr: netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), due: mono.Never,
		batch: pkt.NewBatch(1, packetMax), rx: make([]pkt.Packet, 1)}
	w.hosts[h.addr] = i
	t := vopr.Tuning{NICID: uint64(i + 1), Instance: 1, Seed: seed<<20 ^ uint64(i), Addr: h.addr, PacketMax: packetMax, Planes: w.t.Planes, RateBps: w.t.RateBps, AcksWithData: w.t.AcksWithData}
	if w.t.RateUnknown {
		t.RateBps = 0
	}
	h.E = e.New(t, memory{h})
	return h
}

// take gives the engine a packet.
func (h *Host) take(p *pkt.Packet) {
	h.rx[0] = *p
	h.rx[0].Time = h.w.Now
	h.E.HandlePackets(h.w.Now, h.rx)
}

// step runs timers and sends what may go. A NIC does not take more from its engine than a little ahead of each wire.
func (h *Host) step() {
	h.E.HandleTimers(h.w.Now)
	at := mono.Never
	for {
		var full uint32
		if full, at = h.full(); full == 1<<h.w.t.Planes-1 {
			break
		}
		if b, ok := h.E.(interface{ SetBusy(planes uint32) }); ok {
			b.SetBusy(full)
		} else if full>>h.plane&1 != 0 {
			break
		}
		h.batch.Reset()
		h.E.Transmit(h.w.Now, h.batch)
		if h.batch.N == 0 {
			break
		}
		p := &h.batch.Pkts[0]
		h.plane = int(p.Plane)
		h.w.send(h.i, p)
	}
	if at = max(mono.Min(at, h.E.NextTimeout()), h.w.Now+1); at < h.due {
		h.due = at
		h.w.push(event{at, -1 - h.i})
	}
}

// full says which planes take no more, a bit each, and when the first of them will, or Never.
func (h *Host) full() (planes uint32, at mono.Time) {
	at = mono.Never
	for i, x := range h.w.up[h.i] {
		if n := x.l.Backlog(h.w.Now) - ahead; n > 0 {
			planes |= 1 << i
			at = mono.Min(at, h.w.Now.Add(mono.Duration(float64(n)*8e9/float64(h.w.t.RateBps))+1))
		}
	}
	return planes, at
}

// ahead is how many bytes a NIC has in front of a wire.
const ahead = packetMax + outer

// Flow is a connection with WRITEs always posted, or messages one at a time.
type Flow struct {
	h, to  *Host
	qp     vopr.QP
	Size   int
	Depth  int    // work requests kept posted
	Placed uint64 // bytes in the receiver's memory, each once
	Ended  int    // messages completed at the sender
	Err    transport.Status
	OnDone func(*Flow)
	peer   *Flow
	posted int
	Read   uint64 // bytes of the stream that the sender has read once at least
	stream uint64 // bytes posted
}

// apart is how many messages in a row go to memory of their own: a byte that a later message has placed already is
// skipped, and would not be counted.
const apart = 64

// Connect makes a pair of connected QPs; f sends.
func (w *World) Connect(from, to *Host, size, depth int) *Flow {
	f := &Flow{h: from, to: to, Size: size, Depth: depth}
	g := &Flow{h: to, to: from, peer: f}
	from.flows++
	to.flows++
	qa, qb := uint32(0x100+from.flows), uint32(0x100+to.flows)
	sq := 1
	for sq < depth {
		sq *= 2
	}
	f.qp = from.E.NewQP(qa, vopr.QPConfig{Owner: f, SQ: sq, SGEs: 1})
	g.qp = to.E.NewQP(qb, vopr.QPConfig{Owner: g, SQ: 1, SGEs: 1})
	join := func(q vopr.QP, a, b *Host, n uint32) {
		q.ToInit()
		q.Connect(w.Now, vopr.Connection{Local: a.addr, Remote: b.addr, RemoteQPN: n, MTU: 4096, Rd: 16, Timeout: 14, Retry: 7, RNR: 7})
	}
	join(f.qp, from, to, qb)
	join(g.qp, to, from, qa)
	return f
}

// Start posts the first work requests.
func (f *Flow) Start() {
	for range f.Depth {
		f.Post()
	}
	f.h.step()
}

// Post posts one WRITE.
func (f *Flow) Post() {
	wr := f.qp.NextWR()
	if wr == nil {
		return
	}
	wr.Op, wr.Length, wr.RKey = transport.OpWrite, uint32(f.Size), 1
	wr.RemoteAddr = uint64(f.posted%apart) * uint64(f.Size)
	f.posted++
	wr.SGE = append(wr.SGE, transport.SGE{Addr: f.stream, Length: wr.Length}) // where in the stream: Read
	f.stream += uint64(f.Size)
	f.qp.Post(f.h.w.Now)
}

// memory is a host's memory: there is none, and everything may be done to it.
type memory struct{ h *Host }

// DMA implements transport.Host. What arrives is counted where it lands.
func (m memory) DMA(ops []transport.MemOp) {
	for i := range ops {
		o := &ops[i]
		o.Err = transport.MemOK
		switch f := o.QP.(*Flow); o.Kind {
		case transport.MemWrite:
			f.peer.Placed += uint64(len(o.Buf))
		case transport.MemGather:
			f.Read = max(f.Read, o.WR.SGE[0].Addr+uint64(o.Off)+uint64(len(o.Buf)))
		default: // nothing else is counted
		}
	}
}

// TakeRecv implements transport.Host: only WRITEs are measured.
func (memory) TakeRecv(any) *transport.RecvWR { return nil }

// ReturnRecv implements transport.Host.
func (memory) ReturnRecv(any, *transport.RecvWR) {}

// RelaxedKey implements transport.Host.
func (memory) RelaxedKey(any, uint32) bool { return false }

// KeyOffset implements transport.Host.
func (memory) KeyOffset(any, uint32) uint64 { return 0 }

// ShiftedKeys implements transport.Host.
func (memory) ShiftedKeys(any) bool { return false }

// RunLocal implements transport.Host: there are no windows.
func (memory) RunLocal(any, *transport.SendWR) transport.Status { return transport.LocQPOpErr }

// SendDone implements transport.Host: another one is posted.
func (memory) SendDone(q any, _ *transport.SendWR, s transport.Status) {
	f := q.(*Flow)
	if s != transport.OK {
		f.Err = s
		return
	}
	f.Ended++
	if f.OnDone != nil {
		f.OnDone(f)
		return
	}
	f.Post()
}

// RecvDone implements transport.Host.
func (memory) RecvDone(any, *transport.RecvWR, transport.RecvInfo) {}

// QPError implements transport.Host.
func (memory) QPError(q any, _ bool, s transport.Status) { q.(*Flow).Err = s }

// Event implements transport.Host.
func (memory) Event(transport.Event) {}
