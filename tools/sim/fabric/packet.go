package fabric

import "github.com/metaroce/metaroce/internal/pkt"

// HeaderMax is how much of a packet with payload travels: all headers of both transports, up to the payload. The payload is
// no more than its length.
const HeaderMax = 80

// longRoom is room for the usual long packet, an acknowledgement with many gaps, so that it need not grow.
const longRoom = 512

// DSCPs of classes.
const (
	dscpControl = 48 // passes the queues of data
	// DSCPTrim is what a packet is given that was cut to its headers.
	DSCPTrim = 10
)

// Packet is one on its way.
type Packet struct {
	From, To int32 // hosts
	In       int32 // port by which it came into the switch that it waits in
	Wire     int32 // bytes on the wire, with everything
	Len      uint16
	SrcPort  uint16
	Hop      uint16 // links behind it
	TOS      uint8
	Plane    uint8
	Payload  bool
	Trimmed  bool
	Hdr      [HeaderMax]byte
	Long     []byte // all of it, where it has no payload and is longer than Hdr
	next     *Packet
}

// control reports whether it goes before data.
func (p *Packet) control() bool { return p.TOS>>2 == dscpControl || p.Trimmed }

func (p *Packet) ect() bool { return p.TOS&pkt.ECNMask != 0 }

// Fill takes over what an engine sends. whole: all bytes matter, not only the headers.
func (p *Packet) Fill(q *pkt.Packet, whole bool, overhead int) {
	n := len(q.Data)
	p.Len, p.Wire = uint16(n), int32(n+overhead)
	p.SrcPort, p.TOS, p.Plane = q.SrcPort, q.TOS, q.Plane
	p.Payload, p.Trimmed, p.Hop, p.Long = !whole, false, 0, p.Long[:0]
	if IsLong(q, whole) {
		if cap(p.Long) < n {
			room := longRoom
			for room < n {
				room *= 2
			}
			p.Long = make([]byte, 0, room)
		}
		p.Long = append(p.Long, q.Data...)
		return
	}
	copy(p.Hdr[:], q.Data)
}

// Bytes writes the packet into buf, which must be as long as the longest: headers, and whatever buf holds as payload.
func (p *Packet) Bytes(buf []byte) []byte {
	if len(p.Long) > 0 {
		copy(buf, p.Long)
	} else {
		copy(buf[:min(int(p.Len), HeaderMax)], p.Hdr[:])
	}
	return buf[:p.Len]
}

// IsLong reports whether a packet travels whole, and not by its headers.
func IsLong(q *pkt.Packet, whole bool) bool { return whole && len(q.Data) > HeaderMax }

// pool is packets that are free. Those that have room for a long one are kept apart: it stays with them, and few are long.
type pool struct {
	head, long *Packet
	n, nLong   int // in both lists; in the second
}

// get takes a packet, one with room for all of it where there is one and it shall be long.
func (l *pool) get(long bool) *Packet {
	l.n--
	if long && l.long != nil {
		p := l.long
		l.long, p.next = p.next, nil
		l.nLong--
		return p
	}
	if l.head == nil {
		l.grow(256)
	}
	p := l.head
	l.head, p.next = p.next, nil
	return p
}

func (l *pool) grow(n int) {
	for s := make([]Packet, n); len(s) > 0; s = s[1:] {
		l.put(&s[0])
	}
}

func (l *pool) put(p *Packet) {
	l.n++
	if cap(p.Long) > 0 {
		p.next, l.long = l.long, p
		l.nLong++
		return
	}
	p.next, l.head = l.head, p
}

// give moves n packets to another pool, long ones or not.
func (l *pool) give(to *pool, n int, long bool) {
	from := &l.head
	if long {
		from = &l.long
	}
	for ; n > 0 && *from != nil; n-- {
		p := *from
		*from = p.next
		l.n--
		if long {
			l.nLong--
		}
		to.put(p)
	}
}
