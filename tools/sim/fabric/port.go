package fabric

import (
	"github.com/metaroce/metaroce/internal/link"
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
)

// Port is the sending end of one direction of a link.
//
// Without flow control a packet costs one event a hop: when it leaves is known when it comes. Then a packet of the control
// class takes its time from the data behind it, and waits for half a packet where data is being sent (link.Model). A port with
// a FIFO (flow control) sends packet by packet, exactly, at two events a hop.
type Port struct {
	m    link.Model
	last [2]mono.Time // arrival of the newest of data, of control: order is kept whatever the delay does
	seq  uint32

	dom, toDom int32 // whose events they are: of the switch or host in front of it, and behind it
	host       int32 // behind it, or -1
	sw         int32 // behind it, or -1
	fifo       *fifo

	control, trim, exempt bool // classes; cuts what does not fit; only packets with payload are lost
	plane                 uint8
	fromHost              int32 // in front of it, or -1
	back                  int32 // the other direction
	id                    int32

	Name   string
	base   link.Spec // without changes
	bytes  uint64
	drops  struct{ trimmed, hold uint64 }
	cutOff uint64 // packets on the wire when it went down; of the far end
	qMax   int    // bytes, over the run and since the last bin
	qBin   int
}

// Spec is what the port does when nothing has changed it.
func (p *Port) Spec() link.Spec { return p.base }

// Asks reports whether the host is asked to Step when the port has sent a packet; else its Backlog says when that will be.
func (p *Port) Asks() bool { return p.fifo != nil }

// Backlog is the number of bytes that wait or are being sent.
func (p *Port) Backlog(now mono.Time) int {
	if p.fifo != nil {
		return p.fifo.bytes + p.fifo.ctlBytes
	}
	return p.m.Backlog(now)
}

// send puts a packet on a port, or loses it.
func (d *domain) send(now mono.Time, x *Port, p *Packet) {
	d.C.Hops++
	if x.fifo != nil {
		d.enqueue(now, x, p)
		return
	}
	t := link.Treat(0)
	class := 0
	if p.ect() {
		t = link.ECT
	}
	if x.control && p.control() {
		t |= link.First
		class = 1
	} else if x.fromHost < 0 || x.base.Queue > 0 {
		x.depth(x.m.Backlog(now) + int(p.Wire))
	}
	if x.exempt && !p.Payload {
		t |= link.Exempt
	}
	f, v := x.m.Pass(now, int(p.Wire), t)
	if v != link.Queued {
		if v == link.QueueFull && x.trim && p.Payload && d.cut(x, p) {
			d.C.Hops--
			d.send(now, x, p)
			return
		}
		d.free.put(p)
		return
	}
	d.fly(x, p, &f, class)
}

// fly lets a packet arrive.
func (d *domain) fly(x *Port, p *Packet, f *link.Fate, class int) {
	if f.CE {
		p.TOS |= pkt.CE
	}
	if f.Corrupt { // the checksum would find it
		d.C.Corrupt++
		d.free.put(p)
		return
	}
	x.bytes += uint64(p.Wire)
	at := max(f.At, x.last[class])
	if f.Held > 0 {
		at = at.Add(f.Held)
	} else {
		x.last[class] = at
	}
	if f.Twice {
		q := d.free.get(len(p.Long) > 0)
		next, long := q.next, q.Long
		*q = *p
		q.next, q.Long = next, append(long[:0], p.Long...)
		d.arrival(x, q, at)
	}
	d.arrival(x, p, at)
}

func (d *domain) arrival(x *Port, p *Packet, at mono.Time) {
	x.seq++
	d.post(x.toDom, event{at: at, key: keyArrive | uint64(x.id)<<24 | uint64(x.seq&keySeq), p: p})
}

func (x *Port) depth(n int) {
	if n > x.qBin {
		x.qBin = n
		x.qMax = max(x.qMax, n)
	}
}

// trimBytes is BTH and MPH: what a switch leaves of a MetaRoCE packet (spec MR-REL-060).
const trimBytes = 28

// cut leaves the headers of a packet that does not fit.
func (d *domain) cut(x *Port, p *Packet) bool {
	if p.TOS>>2 == DSCPTrim {
		return false
	}
	p.Wire -= int32(p.Len) - trimBytes
	p.Wire = max(p.Wire, 84) // Ethernet's least, with preamble and gap
	p.Len, p.TOS, p.Payload, p.Trimmed = trimBytes, DSCPTrim<<2|p.TOS&pkt.ECNMask, false, true
	x.drops.trimmed++
	d.C.Trimmed++
	return true
}
