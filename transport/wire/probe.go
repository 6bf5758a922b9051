package wire

import "encoding/binary"

// Probe is the payload of PROBE and PROBE-ACK. Zeros may follow to any length: health probes are as long as data
// packets, so that a path that carries only small packets is found out.
//
//	bits Probe
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|     Kind      |     Plane     |    Answer     |     Code      |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                              ID                               |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|   reserved    |                      QPN                      |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|   reserved    |                    PeerQPN                    |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                            ReadNo                             |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|   reserved    |                      PSN                      |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                           reserved                            |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
type Probe struct {
	Kind    ProbeKind // ProbePath, ProbeMTU, ProbeQP
	Plane   uint8
	ID      uint32
	QPN     uint32 // PROBE: of the node asked; the answer repeats both numbers as they are
	PeerQPN uint32
	ReadNo  uint32
	PSN     uint32      // 24 bits
	Answer  Answer      // PROBE-ACK of a ProbeQP
	Code    RefusalCode // AnswerFailed: the refusal code
}

// offProbeRsv is where the zeros begin.
const offProbeRsv = ProbeLen - 4

// PutProbe writes p to b and zeros up to size bytes (at least ProbeLen), and returns the number of bytes written.
func PutProbe(b []byte, p *Probe, size int) int {
	size = max(size, ProbeLen)
	b = b[:size]
	b[offProbeKind], b[offProbePlane], b[offProbeAnswer], b[offProbeCode] = byte(p.Kind), p.Plane, byte(p.Answer), byte(p.Code)
	binary.BigEndian.PutUint32(b[offProbeID:], p.ID)
	binary.BigEndian.PutUint32(b[offProbeQPN-1:], p.QPN&Mask24)
	binary.BigEndian.PutUint32(b[offProbePeerQPN-1:], p.PeerQPN&Mask24)
	binary.BigEndian.PutUint32(b[offProbeReadNo:], p.ReadNo)
	binary.BigEndian.PutUint32(b[offProbePSN-1:], p.PSN&Mask24)
	//= MR-WIRE-090
	clear(b[offProbeRsv:])
	return size
}

// DecodeProbe reads a probe; what lies behind its fixed part is not looked at.
func DecodeProbe(payload []byte, p *Probe) Drop {
	if len(payload) < ProbeLen {
		return DropProbe
	}
	b := payload[:ProbeLen]
	*p = Probe{
		Kind:    ProbeKind(b[offProbeKind]),
		Plane:   b[offProbePlane],
		Answer:  Answer(b[offProbeAnswer]),
		Code:    RefusalCode(b[offProbeCode]),
		ID:      binary.BigEndian.Uint32(b[offProbeID:]),
		QPN:     be24(b[offProbeQPN-1:]),
		PeerQPN: be24(b[offProbePeerQPN-1:]),
		ReadNo:  binary.BigEndian.Uint32(b[offProbeReadNo:]),
		PSN:     be24(b[offProbePSN-1:]),
	}
	return Accepted
}

// PutStale writes the payload of a STALE and returns its length.
func PutStale(b []byte, tag uint32) int {
	binary.BigEndian.PutUint32(b, tag)
	return StaleLen
}

// DecodeStale reads the payload of a STALE.
func DecodeStale(payload []byte) (tag uint32, d Drop) {
	if len(payload) < StaleLen {
		return 0, DropStale
	}
	return binary.BigEndian.Uint32(payload), Accepted
}
