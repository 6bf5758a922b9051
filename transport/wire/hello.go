package wire

import "encoding/binary"

// HelloPlane is what a HELLO says about one plane of its sender.
//
//	bits HelloPlane
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|     Plane     |   reserved    |              MTU              |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                           RateMbps                            |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                             Grant                             |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                                                               |
//	+                                                               +
//	|                                                               |
//	+                             Addr                              +
//	|                                                               |
//	+                                                               +
//	|                                                               |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
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
//	bits HelloHead
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|     Stage     |  VersionMin   |  VersionMax   |    Chosen     |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//
//	bits TLVHead
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|M|            Type             |            Length             |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
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

const (
	helloBase = HelloHeadLen + 5*TLVHeadLen + HelloNICLen + HelloTagsLen + HelloCookieLen + HelloLimitsLen +
		HelloFeaturesLen
	helloPlaneBytes = TLVHeadLen + HelloPlaneLen
	tlvMust         = maskTLVHeadMust << 8 // in the 16 bits of the type
)

// padded reports whether this message asks for an answer and so has to be as long as the longest one.
func (h *Hello) padded() bool { return h.Stage == HelloInit || h.Stage == HelloConfirm }

// Len returns the length of the message.
func (h *Hello) Len() int {
	//= MR-ASC-006
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
	b[offHelloHeadStage], b[offHelloHeadChosen] = byte(h.Stage), h.Chosen
	b[offHelloHeadVersionMin], b[offHelloHeadVersionMax] = h.VersionMin, h.VersionMax
	n := HelloHeadLen

	v := putTLV(b, &n, uint16(TLVNIC)|tlvMust, HelloNICLen)
	binary.BigEndian.PutUint64(v[offHelloNICNICID:], h.NICID)
	binary.BigEndian.PutUint64(v[offHelloNICInstance:], h.Instance)

	v = putTLV(b, &n, uint16(TLVTags)|tlvMust, HelloTagsLen)
	binary.BigEndian.PutUint32(v[offHelloTagsTag:], h.Tag)
	binary.BigEndian.PutUint32(v[offHelloTagsEchoTag:], h.EchoTag)

	copy(putTLV(b, &n, uint16(TLVCookie), HelloCookieLen), h.Cookie[:])

	v = putTLV(b, &n, uint16(TLVLimits), HelloLimitsLen)
	clear(v)
	binary.BigEndian.PutUint16(v[offHelloLimitsPathLimit:], h.PathLimit)
	binary.BigEndian.PutUint32(v[offHelloLimitsMaxHold:], h.MaxHold)

	binary.BigEndian.PutUint32(putTLV(b, &n, uint16(TLVFeatures), HelloFeaturesLen), h.Features)

	for i := range h.planes() {
		h.Planes[i].put(putTLV(b, &n, uint16(TLVPlane), HelloPlaneLen))
	}
	if h.padded() {
		clear(putTLV(b, &n, uint16(TLVPadding), size-n-TLVHeadLen))
	}
	return n
}

func (p *HelloPlane) put(v []byte) {
	_ = v[HelloPlaneLen-1]
	clear(v)
	v[offHelloPlanePlane] = p.Plane
	binary.BigEndian.PutUint16(v[offHelloPlaneMTU:], p.MTU)
	binary.BigEndian.PutUint32(v[offHelloPlaneRateMbps:], p.RateMbps)
	binary.BigEndian.PutUint32(v[offHelloPlaneGrant:], p.Grant)
	copy(v[offHelloPlaneAddr:], p.Addr[:])
}

func (p *HelloPlane) get(v []byte) {
	_ = v[HelloPlaneLen-1]
	p.Plane = v[offHelloPlanePlane]
	p.MTU = binary.BigEndian.Uint16(v[offHelloPlaneMTU:])
	p.RateMbps = binary.BigEndian.Uint32(v[offHelloPlaneRateMbps:])
	p.Grant = binary.BigEndian.Uint32(v[offHelloPlaneGrant:])
	copy(p.Addr[:], v[offHelloPlaneAddr:])
}

// putTLV writes a TLV's head at n, moves n behind the TLV and returns its value.
func putTLV(b []byte, n *int, typ uint16, length int) []byte {
	at := *n
	binary.BigEndian.PutUint16(b[at:], typ)
	binary.BigEndian.PutUint16(b[at+offTLVHeadLength:], uint16(length))
	*n = at + TLVHeadLen + length
	return b[at+TLVHeadLen : *n]
}

// DecodeHello reads a message. Unknown TLVs are skipped and counted, unless they must be understood.
func DecodeHello(payload []byte, h *Hello) Drop {
	*h = Hello{}
	if len(payload) < HelloHeadLen {
		return DropHelloLength
	}
	h.Stage, h.Chosen = HelloStage(payload[offHelloHeadStage]), payload[offHelloHeadChosen]
	h.VersionMin, h.VersionMax = payload[offHelloHeadVersionMin], payload[offHelloHeadVersionMax]
	if h.Stage < HelloInit || h.Stage > HelloAccept {
		return DropHelloStage
	}
	//= MR-WIRE-081
	var seen uint32
	for b := payload[HelloHeadLen:]; len(b) > 0; {
		if len(b) < TLVHeadLen {
			return DropHelloLength
		}
		typ, n := binary.BigEndian.Uint16(b), int(binary.BigEndian.Uint16(b[offTLVHeadLength:]))
		b = b[TLVHeadLen:]
		if n > len(b) {
			return DropHelloLength
		}
		if d := h.tlv(typ, b[:n], &seen); d != Accepted {
			return d
		}
		//= MR-WIRE-083
		b = b[min((n+3)&^3, len(b)):]
	}
	if seen&(1<<TLVNIC) == 0 || seen&(1<<TLVTags) == 0 {
		return DropHelloMissing
	}
	return Accepted
}

// tlvMin is the shortest value of each known type; what a later version adds behind it is not read.
//
// = MR-WIRE-082
var tlvMin = [...]int{
	TLVPadding: 0, TLVNIC: HelloNICLen, TLVTags: HelloTagsLen, TLVCookie: HelloCookieLen, TLVLimits: HelloLimitsLen,
	TLVFeatures: HelloFeaturesLen, TLVPlane: HelloPlaneLen,
}

func (h *Hello) tlv(typ uint16, v []byte, seen *uint32) Drop {
	//= MR-WIRE-080
	known := typ&^tlvMust < uint16(len(tlvMin))
	if !known {
		if typ&tlvMust != 0 {
			return DropHelloMust
		}
		h.Unknown = uint8(min(int(h.Unknown)+1, 255))
		return Accepted
	}
	t := HelloTLV(typ &^ tlvMust)
	if len(v) < tlvMin[t] {
		return DropHelloLength
	}
	if *seen&(1<<t) != 0 && t != TLVPlane && t != TLVPadding {
		return DropHelloTwice
	}
	*seen |= 1 << t

	switch t {
	case TLVPadding:
	case TLVNIC:
		h.NICID = binary.BigEndian.Uint64(v[offHelloNICNICID:])
		h.Instance = binary.BigEndian.Uint64(v[offHelloNICInstance:])
	case TLVTags:
		h.Tag = binary.BigEndian.Uint32(v[offHelloTagsTag:])
		h.EchoTag = binary.BigEndian.Uint32(v[offHelloTagsEchoTag:])
	case TLVCookie:
		copy(h.Cookie[:], v)
	case TLVLimits:
		h.PathLimit = binary.BigEndian.Uint16(v[offHelloLimitsPathLimit:])
		h.MaxHold = binary.BigEndian.Uint32(v[offHelloLimitsMaxHold:])
	case TLVFeatures:
		h.Features = binary.BigEndian.Uint32(v)
	case TLVPlane:
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
