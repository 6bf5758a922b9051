// Package impair wraps a wire and harms what crosses it: loss, bursts, delay, jitter, reordering, duplicates, wrong
// bits, a rate with its queue and ECN marks, link down; per direction, seeded, changeable while it runs.
//
// A sent packet's way: nothing set and nothing on its way: straight to the wire. Only losses (or down): the packets
// that survive go straight to the wire. Else the packet is copied into a buffer of ours and put on a link.Link; when
// it arrives there (TxBurst, RxBurst and NextWake look) it goes to the wire. Receiving is the same backwards.
//
// All calls come from the device's goroutine, Set included. Buffers are made by the first Set that needs them.
package impair

import (
	"github.com/metaroce/metaroce/device"
	"github.com/metaroce/metaroce/internal/link"
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
)

const (
	// Packets on their way per direction: 10 Gbit/s of full packets for 14 ms.
	slots = 4096
	// Outer headers of an Ethernet packet beyond the largest BTH … ICRC: Ethernet, VLAN, IPv6, UDP.
	frameExtra = 14 + 4 + 40 + 8
	// How soon to offer packets again that a full wire refused.
	retry = 20 * mono.Microsecond
)

// Port is an impaired wire. It implements device.Port.
type Port struct {
	device.Port // the wire
	seed        uint64
	spec        Spec
	tx, rx      *dir // nil until needed
	now         mono.Time

	// Decisions already made about packets that the wire refused: they are offered again and must not be tried twice.
	decided     uint64 // bit i: the i-th packet of the next TxBurst is lost
	decidedN    int
	survivors   [pkt.Burst]pkt.Packet
	survivorPos [pkt.Burst]int
	scratch     [pkt.Burst]pkt.Packet
}

var _ device.Port = (*Port)(nil)

// dir is one direction: the link and the packets on it.
type dir struct {
	link    *link.Link
	packets []pkt.Packet // by handle; Buf is the handle's buffer
	flipped []bool       // by handle: its wrong bit has been made (a duplicate shares the buffer)
	free    []link.Handle
	ready   []arrival // arrived but not taken yet; a ring would be longer than it ever is
	out     []link.Handle
	tooLong uint64
}

type arrival struct {
	h        link.Handle
	ce, last bool
}

// Wrap puts impairments, none at first, over a wire. Name it differently from other ports of the same seed.
func Wrap(p device.Port, seed uint64) *Port { return &Port{Port: p, seed: seed} }

// Unwrap returns the wire.
func (p *Port) Unwrap() device.Port { return p.Port }

// Spec returns what is set.
func (p *Port) Spec() Spec { return p.spec }

// Set changes the impairments from now on. Packets on their way keep their times; down loses them.
func (p *Port) Set(now mono.Time, s Spec) error {
	if err := s.Check(); err != nil {
		return err
	}
	if p.tx == nil && !s.Tx.Zero() {
		p.tx = p.newDir("tx")
	}
	if p.rx == nil && !s.Rx.Zero() {
		p.rx = p.newDir("rx")
	}
	if p.tx != nil {
		if err := p.tx.link.Set(now, s.Tx); err != nil {
			return err
		}
	}
	if p.rx != nil {
		if err := p.rx.link.Set(now, s.Rx); err != nil {
			return err
		}
	}
	p.spec = s
	p.now = max(p.now, now)
	return nil
}

func (p *Port) newDir(name string) *dir {
	size := pkt.Headroom + p.Caps().PacketMax + frameExtra
	d := &dir{
		link:    link.New(p.seed, p.Caps().Name+"/"+name, slots),
		packets: make([]pkt.Packet, slots+pkt.Burst),
		flipped: make([]bool, slots+pkt.Burst),
		ready:   make([]arrival, 0, pkt.Burst),
		out:     make([]link.Handle, 0, pkt.Burst),
	}
	arena := make([]byte, len(d.packets)*size)
	for i := range d.packets {
		d.packets[i].Buf = arena[i*size : (i+1)*size : (i+1)*size]
		d.free = append(d.free, link.Handle(i))
	}
	return d
}

// idle reports whether packets pass by this direction untouched.
func (d *dir) idle(s *link.Spec) bool { return d == nil || s.Zero() && d.empty() }

func (d *dir) empty() bool { return d.link.InFlight() == 0 && len(d.ready) == 0 }

// lossOnly reports whether a packet is either gone at once or untouched.
func (d *dir) lossOnly(s link.Spec) bool {
	s.Loss, s.Down = 0, false
	return s.Zero() && d.empty()
}

// put copies a packet and sends it over the link.
func (d *dir) put(now mono.Time, q *pkt.Packet) {
	h := d.free[len(d.free)-1]
	s := &d.packets[h]
	if len(q.Data) > len(s.Buf)-pkt.Headroom { // longer than the wire says it takes
		d.tooLong++
		return
	}
	ect := q.Kind == pkt.RoCE && q.TOS&pkt.ECNMask != 0
	if d.link.Send(now, h, len(q.Data), ect) != link.Queued {
		return
	}
	d.free = d.free[:len(d.free)-1]
	buf := s.Buf
	*s = *q
	s.Buf = buf
	s.Data = buf[pkt.Headroom : pkt.Headroom+copy(buf[pkt.Headroom:], q.Data)]
	d.flipped[h] = false
}

// arrive moves what has arrived to ready, as far as there is place.
func (d *dir) arrive(now mono.Time) {
	for len(d.ready) < cap(d.ready) {
		o, ok := d.link.Next(now)
		if !ok {
			return
		}
		if o.Lost {
			if o.Last {
				d.free = append(d.free, o.Handle)
			}
			continue
		}
		if s := &d.packets[o.Handle]; o.Corrupt && !d.flipped[o.Handle] && len(s.Data) > 0 {
			bit := o.Bit % uint32(8*len(s.Data))
			s.Data[bit/8] ^= 1 << (bit % 8)
			d.flipped[o.Handle] = true
		}
		d.ready = append(d.ready, arrival{o.Handle, o.CE, o.Last})
	}
}

// packet is an arrival as the other side sees it.
func (d *dir) packet(a arrival) pkt.Packet {
	q := d.packets[a.h]
	if a.ce {
		q.TOS |= pkt.CE
	}
	return q
}

// TxBurst implements device.Port.
func (p *Port) TxBurst(now mono.Time, ps []pkt.Packet) int {
	p.now = now
	switch d := p.tx; {
	case d.idle(&p.spec.Tx):
		p.decidedN = 0
		return p.Port.TxBurst(now, ps)
	case d.lossOnly(p.spec.Tx):
		return p.txLossOnly(now, ps)
	default:
		p.decidedN = 0
		n := 0
		for ; n < len(ps) && d.link.Room() > 0 && len(d.free) > 0; n++ {
			d.put(now, &ps[n])
		}
		p.pump(now)
		return n
	}
}

// pump gives the wire what has arrived at the end of the tx link.
func (p *Port) pump(now mono.Time) {
	d := p.tx
	if d == nil || d.empty() {
		return
	}
	for {
		d.arrive(now)
		n := len(d.ready)
		if n == 0 {
			return
		}
		for i, a := range d.ready {
			p.scratch[i] = d.packet(a)
		}
		took := p.Port.TxBurst(now, p.scratch[:n])
		for _, a := range d.ready[:took] {
			if a.last {
				d.free = append(d.free, a.h)
			}
		}
		d.ready = d.ready[:copy(d.ready, d.ready[took:])]
		if took < n {
			return // full; NextWake brings us back
		}
	}
}

// txLossOnly decides about each packet and sends the survivors from where they are.
func (p *Port) txLossOnly(now mono.Time, ps []pkt.Packet) int {
	ps = ps[:min(len(ps), pkt.Burst)]
	n := 0
	for i := range ps {
		if i == p.decidedN {
			if p.tx.lost(now, &ps[i]) {
				p.decided |= 1 << i
			}
			p.decidedN++
		}
		if p.decided&(1<<i) == 0 {
			p.survivors[n], p.survivorPos[n] = ps[i], i
			n++
		}
	}
	taken := len(ps)
	took := p.Port.TxBurst(now, p.survivors[:n])
	for i := range n { // a device.MemoryPort has exchanged buffers
		ps[p.survivorPos[i]].Buf = p.survivors[i].Buf
	}
	if took < n {
		taken = p.survivorPos[took]
	}
	p.decided >>= taken
	p.decidedN -= min(taken, p.decidedN)
	return taken
}

// lost sends a packet over a link that can only lose it.
func (d *dir) lost(now mono.Time, q *pkt.Packet) bool {
	if d.link.Send(now, 0, len(q.Data), false) != link.Queued {
		return true
	}
	d.link.Next(now)
	return false
}

// RxBurst implements device.Port.
func (p *Port) RxBurst(now mono.Time, ps []pkt.Packet) int {
	p.now = now
	p.pump(now)
	switch d := p.rx; {
	case d == nil:
		return p.Port.RxBurst(now, ps)
	default:
		d.free = append(d.free, d.out...)
		d.out = d.out[:0]
		if d.idle(&p.spec.Rx) {
			return p.Port.RxBurst(now, ps)
		}
		if d.lossOnly(p.spec.Rx) {
			return p.rxLossOnly(now, ps)
		}
		room := min(d.link.Room(), len(d.free), pkt.Burst)
		n := p.Port.RxBurst(now, p.scratch[:max(room, 0)])
		for i := range n {
			d.put(now, &p.scratch[i])
		}
		d.arrive(now)
		n = min(len(ps), len(d.ready))
		for i, a := range d.ready[:n] {
			ps[i] = d.packet(a)
			ps[i].Buf, ps[i].Time = nil, now
			if a.last {
				d.out = append(d.out, a.h)
			}
		}
		d.ready = d.ready[:copy(d.ready, d.ready[n:])]
		return n
	}
}

func (p *Port) rxLossOnly(now mono.Time, ps []pkt.Packet) int {
	n := 0
	for i := range p.Port.RxBurst(now, ps) {
		if !p.rx.lost(now, &ps[i]) {
			ps[n] = ps[i]
			n++
		}
	}
	return n
}

// LinkUp is false while both directions are down.
func (p *Port) LinkUp() bool { return !(p.spec.Tx.Down && p.spec.Rx.Down) && p.Port.LinkUp() }

// NextWake implements device.Port.
func (p *Port) NextWake() mono.Time {
	w := p.Port.NextWake()
	if d := p.tx; d != nil {
		w = mono.Min(w, d.link.NextWake())
		if len(d.ready) > 0 {
			w = mono.Min(w, p.now.Add(retry))
		}
	}
	if d := p.rx; d != nil {
		w = mono.Min(w, d.link.NextWake())
		if len(d.ready) > 0 {
			w = mono.Min(w, p.now)
		}
	}
	return w
}

// Counters returns what each direction has done so far.
func (p *Port) Counters() (tx, rx link.Stats) {
	if p.tx != nil {
		tx = p.tx.link.Stats()
	}
	if p.rx != nil {
		rx = p.rx.link.Stats()
	}
	return tx, rx
}

// Stats returns the wire's counters and our drops among its.
func (p *Port) Stats() device.PortStats {
	s := p.Port.Stats()
	if s.Drops == nil {
		s.Drops = map[string]uint64{}
	}
	tx, rx := p.Counters()
	for _, d := range []struct {
		name string
		s    link.Stats
	}{{"impair_tx_", tx}, {"impair_rx_", rx}} {
		for i, n := range []uint64{d.s.Lost, d.s.QueueFull, d.s.Down, d.s.NoSlot} {
			if n > 0 {
				s.Drops[d.name+(link.Lost+link.Verdict(i)).String()] = n
			}
		}
	}
	if p.tx != nil && p.tx.tooLong > 0 {
		s.Drops["impair_tx_too_long"] = p.tx.tooLong
	}
	if p.rx != nil && p.rx.tooLong > 0 {
		s.Drops["impair_rx_too_long"] = p.rx.tooLong
	}
	return s
}
