package wire

// Drop is the reason why bytes from the network were not accepted. 0 is "accepted".
type Drop uint8

// Drop reasons. Those up to DropICRC come from Decode, in the order in which it checks.
const (
	// Accepted: nothing wrong.
	Accepted Drop = iota
	// DropLength: shorter than BTH + MPH + ICRC, or not a multiple of 4 bytes.
	DropLength
	// DropTVer: the transport header version of BTH is not 0.
	DropTVer
	// DropVersion: a version of the protocol that we do not speak (HELLO is read in every version).
	DropVersion
	// DropOpcode: not one of ours.
	DropOpcode
	// DropExtension: the extension headers of this opcode are cut off.
	DropExtension
	// DropPad: more padding than there is payload.
	DropPad
	// DropPayload: payload behind an opcode that has none.
	DropPayload
	// DropICRC: the checksum does not match.
	DropICRC
	// DropAckLength: an ACK without room for its header, or bytes behind its last block.
	DropAckLength
	// DropAckBlock: a block that is cut off, or too short or too long for its type.
	DropAckBlock
	// DropHelloLength: a HELLO that is cut off, or a TLV too short for its type.
	DropHelloLength
	// DropHelloStage: no such stage.
	DropHelloStage
	// DropHelloMust: a TLV that must be understood and is not.
	DropHelloMust
	// DropHelloTwice: a TLV, or a plane, that comes twice.
	DropHelloTwice
	// DropHelloMissing: the NIC or TAGS TLV is missing.
	DropHelloMissing
	// DropHelloPlanes: a plane number that is not below MaxPlanes.
	DropHelloPlanes
	// DropProbe: a PROBE or PROBE-ACK shorter than its fixed part.
	DropProbe
	// DropStale: a STALE without the tag.
	DropStale

	numDrops
)

// NumDrops is the number of drop reasons, Accepted included.
const NumDrops = int(numDrops)

var dropNames = [NumDrops]string{
	Accepted: "accepted", DropLength: "length", DropTVer: "tver", DropVersion: "version", DropOpcode: "opcode",
	DropExtension: "extension", DropPad: "pad", DropPayload: "payload", DropICRC: "icrc",
	DropAckLength: "ack-length", DropAckBlock: "ack-block",
	DropHelloLength: "hello-length", DropHelloStage: "hello-stage", DropHelloMust: "hello-must-understand",
	DropHelloTwice: "hello-twice", DropHelloMissing: "hello-missing", DropHelloPlanes: "hello-planes",
	DropProbe: "probe", DropStale: "stale",
}

// String returns the reason's name as in counters.
func (d Drop) String() string {
	if int(d) < len(dropNames) {
		return dropNames[d]
	}
	return unknown("drop", uint32(d))
}
