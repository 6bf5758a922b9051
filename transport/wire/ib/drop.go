package ib

import "strconv"

// Drop is the reason why bytes from the network were not accepted.
type Drop uint8

// Drop reasons, in the order in which they are checked.
const (
	// Accepted: nothing wrong.
	Accepted Drop = iota
	// DropLength: shorter than BTH and ICRC, or not a multiple of 4 bytes.
	DropLength
	// DropTVer: the transport header version of BTH is not 0.
	DropTVer
	// DropOpcode: no opcode of RC, UC, XRC, UD or CNP.
	DropOpcode
	// DropExtension: the extension headers of this opcode are cut off.
	DropExtension
	// DropPad: more padding than there is payload.
	DropPad
	// DropPayload: payload behind an opcode that has none.
	DropPayload
	// DropICRC: the checksum does not match.
	DropICRC

	numDrops
)

// NumDrops is the number of drop reasons, Accepted included.
const NumDrops = int(numDrops)

var dropNames = [NumDrops]string{"accepted", "length", "tver", "opcode", "extension", "pad", "payload", "icrc"}

// String returns the reason's name as in counters.
func (d Drop) String() string {
	if d < numDrops {
		return dropNames[d]
	}
	return "drop(" + strconv.Itoa(int(d)) + ")"
}
