package wire

import "encoding/binary"

// Probe is the payload of PROBE and PROBE-ACK. Zeros may follow to any length: health probes are as long as data
// packets, so that a path that carries only small packets is found out.
//
//	+---------------+---------------+---------------+---------------+
//	|     kind      |     plane     |    answer     | refusal code  |
//	+---------------+---------------+---------------+---------------+
//	|                            probe id                           |
//	+---------------+-----------------------------------------------+
//	|   reserved    |         QP number, of the probe's receiver    |
//	+---------------+-----------------------------------------------+
//	|   reserved    |         QP number, of the probe's sender      |
//	+---------------+-----------------------------------------------+
//	|                          read number                          |
//	+---------------+-----------------------------------------------+
//	|   reserved    |                      PSN                      |
//	+---------------+-----------------------------------------------+
//	|                           reserved                            |
//	+---------------------------------------------------------------+
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

// ProbeLen is the length of a probe's fixed part.
const ProbeLen = 28

const (
	offProbeKind   = 0
	offProbePlane  = 1
	offProbeAnswer = 2
	offProbeCode   = 3
	offProbeID     = 4
	offProbeQPN    = 8
	offProbePeer   = 12
	offProbeReadNo = 16
	offProbePSN    = 20
	offProbeRsv    = 24
)

// PutProbe writes p to b and zeros up to size bytes (at least ProbeLen), and returns the number of bytes written.
func PutProbe(b []byte, p *Probe, size int) int {
	size = max(size, ProbeLen)
	b = b[:size]
	b[offProbeKind], b[offProbePlane], b[offProbeAnswer], b[offProbeCode] = byte(p.Kind), p.Plane, byte(p.Answer), byte(p.Code)
	binary.BigEndian.PutUint32(b[offProbeID:], p.ID)
	binary.BigEndian.PutUint32(b[offProbeQPN:], p.QPN&Mask24)
	binary.BigEndian.PutUint32(b[offProbePeer:], p.PeerQPN&Mask24)
	binary.BigEndian.PutUint32(b[offProbeReadNo:], p.ReadNo)
	binary.BigEndian.PutUint32(b[offProbePSN:], p.PSN&Mask24)
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
		QPN:     be24(b[offProbeQPN:]),
		PeerQPN: be24(b[offProbePeer:]),
		ReadNo:  binary.BigEndian.Uint32(b[offProbeReadNo:]),
		PSN:     be24(b[offProbePSN:]),
	}
	return Accepted
}

// StaleLen is the length of a STALE's payload: the tag that was seen and is not known.
const StaleLen = 4

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
