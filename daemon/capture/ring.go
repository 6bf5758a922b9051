package capture

import (
	"encoding/binary"
	"net/netip"
	"sync/atomic"

	"github.com/metaroce/metaroce/internal/mono"
	"github.com/metaroce/metaroce/internal/pkt"
)

// ring carries records from one goroutine at a time, a device loop, to another, the writer, without locks between them.
//
//	record: size 4 (of the record; 0 = the rest up to the end is unused) · length 4 of the packet · captured 4 ·
//	        source port 2 · interface 2 · time 8 · kind 1 · TOS 1 · flags 1 (1: IPv6, 2: may be fragmented) · TTL 1 ·
//	        source 16 · destination 16 · flow label or IPv4 ID 4 · bytes, padded to 8
//
// put advances tail, release advances head; both only grow, and index the buffer modulo its size.
type ring struct {
	buf  []byte
	mask uint64
	head atomic.Uint64 // written by the reader
	tail atomic.Uint64 // written by the loop
	size uint64        // of the record that get returned last
}

const recordHead = 64

// record is a captured packet. data is in the ring and is the reader's until release.
type record struct {
	data     []byte
	length   int
	time     mono.Time
	src, dst netip.Addr
	srcPort  uint16
	port     uint16
	kind     pkt.Kind
	tos, ttl uint8
	flow     uint32
	id       uint16
	noDF     bool
}

func newRing(size int) *ring {
	n := 1 << 16
	for n < size {
		n <<= 1
	}
	return &ring{buf: make([]byte, n), mask: uint64(n - 1)}
}

// put copies a packet into the ring and reports whether there was place.
func (r *ring) put(now mono.Time, port, snap int, p *pkt.Packet) bool {
	data := p.Data
	if snap > 0 && len(data) > snap {
		data = data[:snap]
	}
	need := uint64(recordHead+len(data)+7) &^ 7
	tail := r.tail.Load() // ours
	at := tail & r.mask
	skip := uint64(0)
	if left := uint64(len(r.buf)) - at; left < need {
		skip = left
	}
	if tail+skip+need-r.head.Load() > uint64(len(r.buf)) {
		return false
	}
	le := binary.LittleEndian
	if skip > 0 {
		le.PutUint32(r.buf[at:], 0)
		at = 0
	}
	b := r.buf[at : at+need]
	le.PutUint32(b, uint32(need))
	le.PutUint32(b[4:], uint32(len(p.Data)))
	le.PutUint32(b[8:], uint32(len(data)))
	le.PutUint16(b[12:], p.SrcPort)
	le.PutUint16(b[14:], uint16(port))
	le.PutUint64(b[16:], uint64(now))
	b[24], b[25], b[26], b[27] = byte(p.Kind), p.TOS, 0, p.TTL
	if p.Dst.Is6() && !p.Dst.Is4In6() {
		b[26] = 1
		le.PutUint32(b[60:], p.FlowLabel)
	} else {
		le.PutUint32(b[60:], uint32(p.IPID))
	}
	if p.NoDF {
		b[26] |= 2
	}
	src, dst := [16]byte{}, [16]byte{}
	if p.Src.IsValid() {
		src = p.Src.As16()
	}
	if p.Dst.IsValid() {
		dst = p.Dst.As16()
	}
	copy(b[28:], src[:])
	copy(b[44:], dst[:])
	copy(b[recordHead:], data)
	r.tail.Store(tail + skip + need)
	return true
}

// get returns the oldest record, if there is one. release must follow before the next get.
func (r *ring) get() (record, bool) {
	head := r.head.Load() // ours
	if head == r.tail.Load() {
		return record{}, false
	}
	le := binary.LittleEndian
	at := head & r.mask
	skip := uint64(0)
	if le.Uint32(r.buf[at:]) == 0 {
		skip, at = uint64(len(r.buf))-at, 0
	}
	b := r.buf[at:]
	r.size = skip + uint64(le.Uint32(b))
	rec := record{
		data: b[recordHead : recordHead+le.Uint32(b[8:])], length: int(le.Uint32(b[4:])),
		srcPort: le.Uint16(b[12:]), port: le.Uint16(b[14:]), time: mono.Time(le.Uint64(b[16:])),
		kind: pkt.Kind(b[24]), tos: b[25], ttl: b[27], noDF: b[26]&2 != 0, flow: le.Uint32(b[60:]), id: uint16(le.Uint32(b[60:])),
		src: netip.AddrFrom16([16]byte(b[28:])), dst: netip.AddrFrom16([16]byte(b[44:])),
	}
	if b[26]&1 == 0 {
		rec.src, rec.dst = v4(rec.src), v4(rec.dst)
	}
	return rec, true
}

// v4 takes the last four bytes, which are the address when it was an IPv4 one.
func v4(a netip.Addr) netip.Addr {
	b := a.As16()
	return netip.AddrFrom4([4]byte(b[12:]))
}

// release gives the record of the last get back to the loop.
func (r *ring) release() { r.head.Add(r.size) }
