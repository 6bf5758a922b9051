package nic

import (
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
	"github.com/metaroce/metaroce/tools/sim/fabric"
	"github.com/metaroce/metaroce/transport"
)

const dscpTrim = fabric.DSCPTrim

// host is a NIC and its programs. It implements fabric.Host.
type host struct {
	w     *World
	id    int32
	e     engine
	whole *whole // the NIC around the engine, or nil
	ports []*fabric.Port
	busy  interface{ SetBusy(planes uint32) } // of the engine, or nil
	last  int                                 // plane that was sent on last
	s     *scratch
	conns map[int32]*conn // by the other host
	list  []*conn         // in the order in which they were made
	timed []timed         // heap: messages whose time has not come
	ready []int32         // messages to be posted
	freed []*lane         // that have a place in their send queue for what waits

	now    mono.Time       // of the call
	took   []mono.Duration // of a steady run: requests that ended since it is measured
	placed uint64          // bytes in memory
	posted uint64          // requests
}

// scratch is what the hosts of one thread share within a call.
type scratch struct {
	batch *pkt.Batch
	rx    []pkt.Packet
	buf   []byte
	recv  []*transport.RecvWR // free
	ended int                 // messages, of all its hosts
}

func newScratch() *scratch {
	return &scratch{batch: pkt.NewBatch(1, packetMax), rx: make([]pkt.Packet, 1), buf: make([]byte, packetMax+tagBytes)}
}

// timed is a message that is posted at a time.
type timed struct {
	at  mono.Time
	msg int32
}

// Deliver implements fabric.Host.
func (h *host) Deliver(now mono.Time, p *fabric.Packet) {
	h.now = now
	r := &h.s.rx[0]
	r.Kind = pkt.RoCE
	r.Data = p.Bytes(h.s.buf)
	r.Src, r.Dst, r.SrcPort, r.TOS, r.Plane, r.Time, r.TTL = h.w.addrs[p.From], h.w.addrs[h.id], p.SrcPort, p.TOS, p.Plane, now, 64
	if h.whole != nil {
		x := h.whole.wires[p.Plane]
		x.rx = append(x.rx, *r)
		return
	}
	h.e.HandlePackets(now, h.s.rx)
}

// ahead is how many bytes a NIC has in front of a wire beside what it is sending.
func (h *host) ahead() int { return h.w.wireBytes }

// Step implements fabric.Host: timers, requests whose time has come, packets. As device.Step does, but that packets have been
// taken in before, one by one as they came.
func (h *host) Step(now mono.Time) mono.Time {
	h.now = now
	if h.whole == nil && h.e.NextTimeout() <= now {
		h.e.HandleTimers(now)
	}
	for len(h.timed) > 0 && h.timed[0].at <= now {
		m := h.timed[0].msg
		h.popTimed()
		h.ready = append(h.ready, m)
	}
	var at mono.Time
	if h.whole != nil {
		at = h.whole.step(now)
	} else {
		h.postAll(now)
		room, blocked := h.transmit(now)
		at = h.e.NextTimeout()
		if at <= now && blocked { // what it wants goes when there is room
			at = room
		}
		at = min(at, room)
	}
	if len(h.timed) > 0 {
		at = min(at, h.timed[0].at)
	}
	return at
}

// transmit sends what may go: a NIC does not take more data from its engine than a little ahead of each wire. It returns when a
// wire has room again, or Never, and whether all of them were full.
func (h *host) transmit(now mono.Time) (room mono.Time, blocked bool) {
	all := uint32(1)<<len(h.ports) - 1
	for {
		full, at := h.full(now)
		switch {
		case full == 0:
		case h.busy == nil && full>>h.last&1 != 0, full == all && (!h.w.control || h.e.NextTimeout() > now):
			return at, true
		}
		if h.busy != nil { // with a class of control, acknowledgements pass the data that waits
			h.busy.SetBusy(full)
		}
		b := h.s.batch
		b.Reset()
		h.e.Transmit(now, b)
		if b.N == 0 {
			return at, full == all
		}
		p := &b.Pkts[0]
		h.last = int(p.Plane)
		h.send(now, p)
	}
}

// send puts a packet on its wire.
func (h *host) send(now mono.Time, p *pkt.Packet) {
	to, ok := h.w.hostOf(p.Dst)
	if !ok {
		return
	}
	data := payload(p.Data, h.w.tx.metaroce())
	whole := !data || h.w.tx.p.Transport.Verify
	x := h.w.net.NewPacket(h.id, fabric.IsLong(p, whole))
	x.To = to
	x.Fill(p, whole, h.w.overhead)
	x.Payload = data
	h.w.net.Send(now, h.id, x)
}

// full says which planes take no more, a bit each, and when the first of them will, or Never.
func (h *host) full(now mono.Time) (planes uint32, at mono.Time) {
	at = mono.Never
	for i, x := range h.ports {
		if n := x.Backlog(now) - h.ahead(); n > 0 {
			planes |= 1 << i
			if !x.Asks() {
				at = min(at, now.Add(mono.Duration(float64(n)*h.w.nsPerByte)+1))
			}
		}
	}
	return planes, at
}

// Trigger implements fabric.Host: a message of another host has ended that one of ours waits for.
func (h *host) Trigger(now mono.Time, msg int32) {
	h.now = now
	h.fulfil(now, msg)
}

func (h *host) pushTimed(t timed) {
	q := append(h.timed, t)
	i := len(q) - 1
	for i > 0 {
		up := (i - 1) / 2
		if !t.before(q[up]) {
			break
		}
		q[i] = q[up]
		i = up
	}
	q[i] = t
	h.timed = q
}

func (t timed) before(u timed) bool { return t.at < u.at || t.at == u.at && t.msg < u.msg }

func (h *host) popTimed() {
	n := len(h.timed) - 1
	t := h.timed[n]
	q := h.timed[:n]
	h.timed = q
	if n == 0 {
		return
	}
	i := 0
	for {
		c := 2*i + 1
		if c >= n {
			break
		}
		if c+1 < n && q[c+1].before(q[c]) {
			c++
		}
		if !q[c].before(t) {
			break
		}
		q[i] = q[c]
		i = c
	}
	q[i] = t
}
