package fabric

import (
	"github.com/metaroce/metaroce/internal/link"
	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
)

// fifo is what waits in front of a port with priority flow control: control first, then data unless the other end has paused
// it. It belongs to the port's sender.
type fifo struct {
	head, tail       *Packet // data
	ctlHead, ctlTail *Packet
	bytes, ctlBytes  int // waiting or being sent
	sending          *Packet
	paused           bool
	pausedAt         mono.Time
	pausedFor        mono.Duration
	pauses           uint64
	ingress          int  // bytes that came by this port and wait in the switch behind it; belongs to that switch
	asked            bool // the switch behind it has paused this port
	pauseSeq         uint32
}

// pauseBytes is a pause frame on the wire.
const pauseBytes = 84

// enqueue puts a packet behind those that wait.
func (d *domain) enqueue(now mono.Time, x *Port, p *Packet) {
	s, q := x.m.Spec(), x.fifo
	st := x.m.Stats()
	st.Sent++
	if s.Down {
		st.Down++
		d.leave(now, p)
		d.free.put(p)
		return
	}
	if x.control && p.control() {
		q.ctlHead, q.ctlTail = chain(q.ctlHead, q.ctlTail, p)
		q.ctlBytes += int(p.Wire)
		d.transmit(now, x)
		return
	}
	if s.Queue > 0 && q.bytes+int(p.Wire) > s.Queue {
		if x.trim && p.Payload {
			d.leave(now, p)
			p.In = -1
			if d.cut(x, p) {
				st.QueueFull++ // less the trimmed ones: see Link
				d.enqueue(now, x, p)
				return
			}
		}
		st.QueueFull++
		d.leave(now, p)
		d.free.put(p)
		return
	}
	if p.ect() && x.m.Mark(q.bytes) {
		p.TOS |= pkt.CE
		st.Marked++
	}
	q.head, q.tail = chain(q.head, q.tail, p)
	q.bytes += int(p.Wire)
	x.depth(q.bytes)
	d.transmit(now, x)
}

func chain(head, tail, p *Packet) (*Packet, *Packet) {
	p.next = nil
	if head == nil {
		return p, p
	}
	tail.next = p
	return head, p
}

// transmit begins with the next packet if the port is idle.
func (d *domain) transmit(now mono.Time, x *Port) {
	q := x.fifo
	if q.sending != nil {
		return
	}
	var p *Packet
	switch {
	case q.ctlHead != nil:
		p = q.ctlHead
		q.ctlHead = p.next
	case q.head != nil && !q.paused:
		p = q.head
		q.head = p.next
	default:
		return
	}
	p.next = nil
	q.sending = p
	d.queue.push(event{at: x.m.Occupy(now, int(p.Wire)), key: keyTxDone | uint64(x.id)})
}

// txDone: the last bit is out.
func (d *domain) txDone(now mono.Time, x *Port) {
	q := x.fifo
	p := q.sending
	q.sending = nil
	class := 0
	if x.control && p.control() {
		class = 1
		q.ctlBytes -= int(p.Wire)
	} else {
		q.bytes -= int(p.Wire)
	}
	d.leave(now, p)
	t := link.Treat(0)
	if x.exempt && !p.Payload {
		t = link.Exempt
	}
	if f, v := x.m.Release(now, t); v == link.Queued {
		d.fly(x, p, &f, class)
	} else {
		d.free.put(p)
	}
	d.transmit(now, x)
	if x.fromHost >= 0 {
		d.step(now, x.fromHost)
	}
}

// held counts a packet that came into a switch by a port and asks for a pause where there are too many. False: there is no
// room left for it.
func (d *domain) hold(now mono.Time, x *Port, p *Packet) bool {
	p.In = -1
	if d.n.pfc.XOFF == 0 || x.control && p.control() {
		return true
	}
	q := x.fifo
	if d.n.pfc.Headroom > 0 && q.ingress+int(p.Wire) > d.n.pfc.XOFF+d.n.pfc.Headroom {
		x.drops.hold++
		d.C.HeadroomFull++
		return false
	}
	p.In = x.id
	q.ingress += int(p.Wire)
	if q.ingress > d.n.pfc.XOFF && !q.asked {
		q.asked = true
		d.pause(now, x, 1)
	}
	return true
}

// leave takes a packet out of the count of the port that it came by.
func (d *domain) leave(now mono.Time, p *Packet) {
	if p.In < 0 {
		return
	}
	x := &d.n.ports[p.In]
	p.In = -1
	q := x.fifo
	q.ingress -= int(p.Wire)
	if q.asked && q.ingress <= d.n.pfc.XON {
		q.asked = false
		d.pause(now, x, 0)
	}
}

// pause tells the sender of a port to stop or to go on; that takes the time of a frame on the way back.
func (d *domain) pause(now mono.Time, x *Port, on int32) {
	s := d.n.ports[x.back].m.Spec()
	at := now.Add(s.Delay)
	if s.RateBps > 0 {
		at = at.Add(mono.Duration(pauseBytes * 8_000_000_000 / s.RateBps))
	}
	q := x.fifo
	q.pauseSeq++
	if on != 0 {
		d.C.Pauses++
	}
	d.post(x.dom, event{at: at, key: keyPause | uint64(x.id)<<24 | uint64(q.pauseSeq&keySeq), arg: on})
}

// onPause is a pause frame at the sender.
func (d *domain) onPause(now mono.Time, x *Port, on bool) {
	q := x.fifo
	if q.paused == on {
		return
	}
	q.paused = on
	if on {
		q.pausedAt = now
		q.pauses++
		return
	}
	q.pausedFor += now.Sub(q.pausedAt)
	d.transmit(now, x)
}
