package fabric

import "github.com/metaroce/metaroce/internal/pkt"

// HeaderMax is how much of a packet with payload travels: all headers of both transports, up to the payload. The payload is
// no more than its length.
const HeaderMax = 80

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
	if whole && n > HeaderMax {
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

// pool is a list of packets that are free.
type pool struct {
	head *Packet
	n    int
}

func (l *pool) get() *Packet {
	if l.head == nil {
		l.grow(256)
	}
	p := l.head
	l.head, p.next = p.next, nil
	l.n--
	return p
}

func (l *pool) grow(n int) {
	for s := make([]Packet, n); len(s) > 0; s = s[1:] {
		l.put(&s[0])
	}
}

func (l *pool) put(p *Packet) {
	p.next = l.head
	l.head = p
	l.n++
}

// give moves n packets to another list.
func (l *pool) give(to *pool, n int) {
	for ; n > 0 && l.head != nil; n-- {
		p := l.head
		l.head = p.next
		l.n--
		to.put(p)
	}
}
