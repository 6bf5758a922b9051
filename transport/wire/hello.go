package wire

import "encoding/binary"

// MaxPlanes is the largest number of planes of a NIC.
const MaxPlanes = 16

// HelloPlane is what a HELLO says about one plane of its sender.
//
//	+---------------+---------------+-------------------------------+
//	|     plane     |   reserved    |       MTU: BTH to ICRC        |
//	+---------------+---------------+-------------------------------+
//	|                     rate in Mbit/s, 0 = none                  |
//	+---------------------------------------------------------------+
//	|                       first grant, bytes                      |
//	+---------------------------------------------------------------+
//	|                  address, 16 bytes, IPv4 mapped               |
//	+---------------------------------------------------------------+
type HelloPlane struct {
	Plane    uint8
	MTU      uint16
	RateMbps uint32
	Grant    uint32
	Addr     [16]byte
}

// Hello is a message of the exchange that makes an association. It is one word, then TLVs, each of a type (16),
// a length of the value in bytes (16) and the value, padded to a multiple of four:
//
//	+---------------+---------------+---------------+---------------+
//	|     stage     |  version min  |  version max  |    chosen     |
//	+-+-------------+---------------+---------------+---------------+
//	|M|            type             |            length             |
//	+-+-----------------------------+-------------------------------+
//	|                             value                             |
//	+---------------------------------------------------------------+
type Hello struct {
	Stage      HelloStage // HelloInit …
	VersionMin uint8
	VersionMax uint8
	Chosen     uint8
	NICID      uint64
	Instance   uint64
	Tag        uint32 // the sender of this message wants to see it in packets to it
	EchoTag    uint32 // the tag that the other side asked for
	Cookie     [16]byte
	PathLimit  uint16
	MaxHold    uint32 // the longest time an ack is held back, in units of 16 ns
	Features   uint32
	NumPlanes  uint8
	Unknown    uint8 // DecodeHello: TLVs skipped because unknown (stops at 255)
	Planes     [MaxPlanes]HelloPlane
}

// Lengths.
const (
	helloFixed      = 4
	tlvHead         = 4
	lenTLVNIC       = 16
	lenTLVTags      = 8
	lenTLVCookie    = 16
	lenTLVLimits    = 8
	lenTLVFeatures  = 4
	lenTLVPlane     = 28
	helloBase       = helloFixed + 5*tlvHead + lenTLVNIC + lenTLVTags + lenTLVCookie + lenTLVLimits + lenTLVFeatures
	helloPlaneBytes = tlvHead + lenTLVPlane

	// HelloLen is the length to which INIT and CONFIRM are padded: that of the longest message without padding,
	// and an empty padding TLV. So no answer is longer than its request.
	HelloLen = helloBase + MaxPlanes*helloPlaneBytes + tlvHead
)

// padded reports whether this message asks for an answer and so has to be as long as the longest one.
func (h *Hello) padded() bool { return h.Stage == HelloInit || h.Stage == HelloConfirm }

// Len returns the length of the message.
func (h *Hello) Len() int {
	if h.padded() {
		return HelloLen
	}
	return helloBase + h.planes()*helloPlaneBytes
}

func (h *Hello) planes() int { return min(int(h.NumPlanes), MaxPlanes) }

// Put writes the message to b, which must have room for Len bytes, and returns Len.
func (h *Hello) Put(b []byte) int {
	size := h.Len()
	b = b[:size]
	b[0], b[1], b[2], b[3] = byte(h.Stage), h.VersionMin, h.VersionMax, h.Chosen
	n := helloFixed

	v := putTLV(b, &n, tlvNIC|tlvMust, lenTLVNIC)
	binary.BigEndian.PutUint64(v, h.NICID)
	binary.BigEndian.PutUint64(v[8:], h.Instance)

	v = putTLV(b, &n, tlvTags|tlvMust, lenTLVTags)
	binary.BigEndian.PutUint32(v, h.Tag)
	binary.BigEndian.PutUint32(v[4:], h.EchoTag)

	copy(putTLV(b, &n, tlvCookie, lenTLVCookie), h.Cookie[:])

	v = putTLV(b, &n, tlvLimits, lenTLVLimits)
	binary.BigEndian.PutUint16(v, h.PathLimit)
	binary.BigEndian.PutUint16(v[2:], 0)
	binary.BigEndian.PutUint32(v[4:], h.MaxHold)

	binary.BigEndian.PutUint32(putTLV(b, &n, tlvFeatures, lenTLVFeatures), h.Features)

	for i := range h.planes() {
		h.Planes[i].put(putTLV(b, &n, tlvPlane, lenTLVPlane))
	}
	if h.padded() {
		clear(putTLV(b, &n, tlvPadding, size-n-tlvHead))
	}
	return n
}

func (p *HelloPlane) put(v []byte) {
	_ = v[lenTLVPlane-1]
	v[0], v[1] = p.Plane, 0
	binary.BigEndian.PutUint16(v[2:], p.MTU)
	binary.BigEndian.PutUint32(v[4:], p.RateMbps)
	binary.BigEndian.PutUint32(v[8:], p.Grant)
	copy(v[12:], p.Addr[:])
}

func (p *HelloPlane) get(v []byte) {
	_ = v[lenTLVPlane-1]
	p.Plane = v[0]
	p.MTU = binary.BigEndian.Uint16(v[2:])
	p.RateMbps = binary.BigEndian.Uint32(v[4:])
	p.Grant = binary.BigEndian.Uint32(v[8:])
	copy(p.Addr[:], v[12:])
}

// putTLV writes a TLV's head at n, moves n behind the TLV and returns its value.
func putTLV(b []byte, n *int, typ uint16, length int) []byte {
	at := *n
	binary.BigEndian.PutUint16(b[at:], typ)
	binary.BigEndian.PutUint16(b[at+2:], uint16(length))
	*n = at + tlvHead + length
	return b[at+tlvHead : *n]
}

// DecodeHello reads a message. Unknown TLVs are skipped and counted, unless they must be understood.
func DecodeHello(payload []byte, h *Hello) Drop {
	*h = Hello{}
	if len(payload) < helloFixed {
		return DropHelloLength
	}
	h.Stage, h.VersionMin, h.VersionMax, h.Chosen = HelloStage(payload[0]), payload[1], payload[2], payload[3]
	if h.Stage < HelloInit || h.Stage > HelloAccept {
		return DropHelloStage
	}
	var seen uint32
	for b := payload[helloFixed:]; len(b) > 0; {
		if len(b) < tlvHead {
			return DropHelloLength
		}
		typ, n := binary.BigEndian.Uint16(b), int(binary.BigEndian.Uint16(b[2:]))
		b = b[tlvHead:]
		if n > len(b) {
			return DropHelloLength
		}
		if d := h.tlv(typ, b[:n], &seen); d != Accepted {
			return d
		}
		b = b[min((n+3)&^3, len(b)):]
	}
	if seen&(1<<tlvNIC) == 0 || seen&(1<<tlvTags) == 0 {
		return DropHelloMissing
	}
	return Accepted
}

// tlvMin is the shortest value of each known type; what a later version adds behind it is not read.
var tlvMin = [...]int{
	tlvPadding: 0, tlvNIC: lenTLVNIC, tlvTags: lenTLVTags, tlvCookie: lenTLVCookie, tlvLimits: lenTLVLimits,
	tlvFeatures: lenTLVFeatures, tlvPlane: lenTLVPlane,
}

func (h *Hello) tlv(typ uint16, v []byte, seen *uint32) Drop {
	t := typ &^ tlvMust
	if int(t) >= len(tlvMin) {
		if typ&tlvMust != 0 {
			return DropHelloMust
		}
		h.Unknown = uint8(min(int(h.Unknown)+1, 255))
		return Accepted
	}
	if len(v) < tlvMin[t] {
		return DropHelloLength
	}
	if *seen&(1<<t) != 0 && t != tlvPlane && t != tlvPadding {
		return DropHelloTwice
	}
	*seen |= 1 << t

	switch t {
	case tlvNIC:
		h.NICID = binary.BigEndian.Uint64(v)
		h.Instance = binary.BigEndian.Uint64(v[8:])
	case tlvTags:
		h.Tag = binary.BigEndian.Uint32(v)
		h.EchoTag = binary.BigEndian.Uint32(v[4:])
	case tlvCookie:
		copy(h.Cookie[:], v)
	case tlvLimits:
		h.PathLimit = binary.BigEndian.Uint16(v)
		h.MaxHold = binary.BigEndian.Uint32(v[4:])
	case tlvFeatures:
		h.Features = binary.BigEndian.Uint32(v)
	case tlvPlane:
		return h.plane(v)
	}
	return Accepted
}

func (h *Hello) plane(v []byte) Drop {
	var p HelloPlane
	p.get(v)
	if p.Plane >= MaxPlanes {
		return DropHelloPlanes
	}
	for i := range h.planes() {
		if h.Planes[i].Plane == p.Plane {
			return DropHelloTwice
		}
	}
	h.Planes[h.NumPlanes] = p // room: numbers are below MaxPlanes and differ
	h.NumPlanes++
	return Accepted
}
